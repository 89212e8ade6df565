"""`./dev` keeps its promises: it explains itself, and leaves nothing of a test run behind."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import tree

LEAVER = """
import os, pathlib, subprocess

def test_that_leaves_things_behind():
    assert not os.path.exists("/proc/self/fd/7"), "a descriptor of the caller was inherited"
    group = pathlib.Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
    assert "/xce-test-" in group
    [mount] = [line.split()[4] for line in open("/proc/self/mountinfo") if " - cgroup2 " in line][:1]
    (pathlib.Path(mount + group) / "left").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "left", "{folder}/mount"], check=True)
    left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print(f"LEFT {left.pid} {mount}{group}")
"""


def dev(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"XCE_VENV": sys.prefix}
    return subprocess.run(
        ["bash", "-c", 'exec 7</dev/null; exec "$@"', "dev", "./dev", *arguments],
        cwd=tree.ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_help_names_every_command_and_a_wrong_one_is_refused() -> None:
    shown = dev("--help")
    assert shown.returncode == 0
    assert all(f"\n  {name} " in shown.stdout for name in ("setup", "demo", "test", "bench", "lint"))
    wrong = dev("tset")
    assert wrong.returncode == 1
    assert "no command 'tset'" in wrong.stderr


TOOLS = ("bash", "cat", "dirname", "env", "grep", "readlink", "sed", "sha256sum", "sudo")
FAKES = {
    "dnf": '#!/bin/sh\necho "$@" >>LOG\n',
    "dpkg-query": "#!/bin/sh\necho 'git installed'\n",
    "apt-get": '#!/bin/sh\necho "$@" >>LOG\n',
    "rpm": '#!/bin/sh\nshift 4\nfor name; do [ $name = gcc ] || echo "no package provides $name"; done\n',
}


@pytest.mark.root
@pytest.mark.parametrize(("has", "lacks"), [("apt-get", "dpkg-query"), ("dnf", "rpm")])
@pytest.mark.skipif(not Path(sys.prefix, ".complete").exists(), reason="needs the environment of ./dev")
def test_what_is_missing_is_asked_of_the_package_manager_that_there_is(
    tmp_path: Path, has: str, lacks: str
) -> None:
    """Programs that write down what they were asked for stand in for it, and nothing else is to be found."""
    for tool in TOOLS:
        if found := shutil.which(tool):
            (tmp_path / tool).symlink_to(found)
    for fake in (has, lacks):
        (tmp_path / fake).write_text(FAKES[fake].replace("LOG", str(tmp_path / "log")))
        (tmp_path / fake).chmod(0o755)
    environment = {"XCE_VENV": sys.prefix, "PATH": str(tmp_path)}
    done = subprocess.run(
        [tree.ROOT / "dev", "setup"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "log").read_text().splitlines()[-1].split()
    assert "install" in asked
    assert {"podman", "pkg-config" if has == "apt-get" else "systemd-devel"} <= set(asked)
    assert ("git" if has == "apt-get" else "gcc") not in asked, "it is there"
    assert f"installing with {has}: " in done.stderr


@pytest.mark.skipif(not Path(sys.prefix, ".complete").exists(), reason="needs the environment of ./dev")
def test_a_cage_that_does_not_run_here_is_made_again(tmp_path: Path) -> None:
    """A tree that was used on another kind of machine."""
    copy = tree.copy_to(tmp_path / "tree")
    program = copy / "reporters/xce-cage"
    program.write_bytes(b"\x7fELF of another machine")
    program.chmod(0o755)
    assert program.stat().st_mtime_ns > (copy / "reporters/cage.c").stat().st_mtime_ns
    environment = os.environ | {"XCE_VENV": sys.prefix}
    done = subprocess.run(
        ["./dev", "setup"], cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert subprocess.run([program], capture_output=True, check=False).returncode == 125


@pytest.mark.root
@pytest.mark.skipif(not Path(sys.prefix, ".complete").exists(), reason="needs the environment of ./dev")
def test_a_test_run_leaves_no_process_cgroup_or_mount_behind(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    test = tmp_path / "test_left.py"
    test.write_text(LEAVER.replace("{folder}", str(tmp_path)))
    done = dev("test", "-s", "-p", "no:cacheprovider", str(test))
    assert done.returncode == 0, done.stdout + done.stderr
    left = re.search(r"LEFT (\d+) (/\S+)", done.stdout)
    assert left
    pid, group = left.groups()
    process = Path("/proc", pid, "cmdline")  # of a zombie that nobody has reaped yet it is empty
    assert not process.exists() or process.read_bytes() == b""
    assert not Path(group).exists()
    assert not os.path.ismount(tmp_path / "mount")
