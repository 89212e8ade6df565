"""The helper as a program: what it says by hand, what it needs, when its parent starts it."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.csi_node_helper.world import World, program, until
from tests.project import tree
from xce.csi_node_helper import main as helper
from xce.model import VERSION, csi
from xce.prepare.csi.helper import HelperClient


def by_hand(path: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [path, *arguments], capture_output=True, text=True, check=False, timeout=20, stdin=subprocess.DEVNULL
    )


def test_it_explains_itself_and_says_what_it_stands_on(tmp_path: Path) -> None:
    path = program(tmp_path)
    assert by_hand(path, "--help").stdout == f"{helper.HELP}\n"
    assert by_hand(path, "--version").stdout.startswith(f"xce-csi-node-helper {VERSION} (grpclib 0.")


@pytest.mark.parametrize("arguments", [[], ["--serve"]])
def test_started_by_hand_it_refuses_in_clear_words(tmp_path: Path, arguments: list[str]) -> None:
    done = by_hand(program(tmp_path), *arguments)
    assert done.returncode == 2
    assert "cannot run: xce-agent starts it and hands it a socket" in done.stderr


def test_a_file_as_descriptor_3_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = ["sh", "-c", f"exec {program(tmp_path)} 3<{tmp_path}/file"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, "cannot run" in done.stderr) == (2, True)


def test_a_library_that_is_missing_is_named(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['grpclib'] = None; from xce.csi_node_helper.main import main; "
    command = [sys.executable, "-c", f"{hidden} sys.exit(main(['--version']))"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=20, env={"PYTHONPATH": str(tree.ROOT)}
    )
    assert done.returncode == 1
    assert done.stderr.startswith("xce-csi-node-helper: cannot load a library: ")


@pytest.mark.root
def test_its_memory_goes_to_no_disk_and_it_stands_in_nobodys_way(world: World) -> None:
    world.seen()
    assert world.client.pid is not None
    mine = Path(f"/proc/{world.client.pid}")
    assert (mine / "comm").read_text() == f"{helper.NAME}\n"
    assert os.readlink(mine / "cwd") == "/"
    soft, _ = resource.prlimit(world.client.pid, resource.RLIMIT_DATA)
    assert soft == helper.MEMORY_BYTES, "a plugin may send without end"
    handle = os.pidfd_open(world.client.pid)
    resource.prlimit(world.client.pid, resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    os.kill(world.client.pid, signal.SIGABRT)
    ended = until("its end", lambda: os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOWAIT | os.WNOHANG))
    os.close(handle)
    assert ended.si_code == os.CLD_KILLED, "a core would have its secrets"


def client(folder: Path, **plugins: object) -> HelperClient:
    return HelperClient(csi.Plugins(**plugins), time.monotonic, program=program(folder))  # type: ignore[arg-type]


def test_a_node_without_plugins_starts_no_helper(tmp_path: Path) -> None:
    alone = client(tmp_path)
    assert alone.turn() is None
    assert (alone.pid, alone.problem) == (None, "")


def test_a_plugin_of_the_settings_is_seen_before_anybody_asks_for_it(world: World) -> None:
    until("the plugin", lambda: world.client.turn() and world.client._seen.get("fake"))


def test_a_registration_folder_starts_it_when_a_registrar_has_come(world: World) -> None:
    folder = Path(world.place("registry"))
    waiting = client(world.folder, registration=str(folder))
    try:
        assert waiting.turn() is not None
        assert waiting.pid is None, "nobody has registered: its memory is saved"
        world.plugin.control(registry=str(folder))
        world.plugin.stop()
        world.plugin.start()
        until("the plugin", lambda: waiting.turn() and waiting._seen)
        assert all(one.registered for one in waiting.plugins())
    finally:
        waiting.close()


SPEAKS = """#!{python}
import socket
ours = socket.socket(fileno=3)
asked = ours.makefile("rb")
for _ in range({lines}):
    asked.readline()
ours.sendall({said!r})
"""


def speaker(folder: Path, said: bytes, *, lines: int) -> HelperClient:
    """A helper that reads some lines, says something and ends."""
    path = folder / "speaker"
    path.write_text(SPEAKS.format(python=sys.executable, said=said, lines=lines))
    path.chmod(0o755)
    return HelperClient(csi.Plugins(), time.monotonic, program=str(path))


def test_what_a_helper_said_before_it_ended_counts_whoever_notices_the_end(tmp_path: Path) -> None:
    answer = csi.Told(id="a#1", outcome=csi.Outcome.REFUSED, code=5, message="no such volume")
    client = speaker(tmp_path, csi.frame(answer), lines=3)
    call, other = csi.Unstage(volume="v", staging="/s"), csi.Unstage(volume="w", staging="/s")
    assert client.ask("a", "p", call) is None
    assert client.ask("b", "p", other) is None
    handle = os.pidfd_open(client.pid or 0)
    until("its end", lambda: os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOWAIT | os.WNOHANG))
    os.close(handle)
    client.forget("b")  # which finds that nobody listens any more
    assert client.ask("a", "p", call) == answer


@pytest.mark.parametrize("said", [b"nonsense\n", b'{"frame":"told"}\n', b"x" * (csi.FRAME_BYTES + 1)])
def test_a_helper_that_says_what_is_no_frame_is_ended(tmp_path: Path, said: bytes) -> None:
    client = speaker(tmp_path, said, lines=2)
    call = csi.Unstage(volume="v", staging="/s")
    assert client.ask("a", "p", call) is None
    told = until("an answer", lambda: client.ask("a", "p", call))
    assert (told.outcome, "no frame" in told.message, client.pid) == (csi.Outcome.UNCERTAIN, True, None)
