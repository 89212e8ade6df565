"""What is in the tree is in the package: nothing is dropped behind the links."""

import os
import re
import stat
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.project import tree

CAGE = "xce/reporters/xce-cage"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from a copy of the tree, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = tree.copy_to(folder / "tree")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "-w",
        str(folder),
        ".",
    ]
    environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_a_wheel_holds_exactly_the_files_of_the_rooms(wheel: zipfile.ZipFile) -> None:
    wanted = {f"xce/{path}" for path in tree.tracked(*tree.ROOMS)} | {CAGE}
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == wanted


def test_programs_stay_executable_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    programs = [path for path in tree.tracked(*tree.ROOMS) if os.access(tree.ROOT / path, os.X_OK)]
    modes = {path: wheel.getinfo(f"xce/{path}").external_attr >> 16 for path in programs}
    assert [str(path) for path, mode in modes.items() if not mode & stat.S_IXUSR] == []


def test_a_wheel_brings_the_cage_compiled_and_says_that_it_is_for_one_kind_of_machine(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    program = tmp_path / "xce-cage"
    program.write_bytes(wheel.read(CAGE))
    program.chmod(wheel.getinfo(CAGE).external_attr >> 16)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr[:9]) == (125, "xce-cage:")
    assert str(wheel.filename).endswith(f"-py3-none-linux_{os.uname().machine}.whl")


def test_the_pinned_versions_satisfy_the_declared_dependencies() -> None:
    text = "".join(
        Path(tree.ROOT / name).read_text() for name in ("requirements.txt", "requirements-dev.txt")
    )
    pins = dict(line.split("==") for line in text.splitlines() if "==" in line)
    project = tree.pyproject()["project"]
    for dependency in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        name, _, least = dependency.partition(">=")
        assert name in pins, f"{name} is not pinned in requirements*.txt"
        assert _version(pins[name]) >= _version(least or "0")


def test_the_libraries_of_the_csi_helpers_package_are_those_that_nothing_else_needs() -> None:
    spec = (tree.ROOT / "packaging/rpm/xce.spec").read_text()
    (line,) = (one for one in spec.splitlines() if one.startswith("%global csi_libraries "))
    helper, others = {"grpclib", "protobuf"}, set()
    for dependency in tree.pyproject()["project"]["dependencies"]:
        name = dependency.partition(">=")[0]
        if name not in helper:
            others |= _closure(name)
    alone = _closure("grpclib") | _closure("protobuf")
    assert alone - others == alone, "a library that others need too stays in xce-libs"
    assert set(line.split()[2:]) == alone | {"google"}, "protobuf's folder is called google"


def _closure(name: str) -> set[str]:
    found: set[str] = set()
    todo = {name}
    while todo:
        one = todo.pop()
        found.add(one)
        for wanted in metadata.requires(one) or []:
            if ";" not in wanted:  # of other systems and versions of Python, or optional
                todo |= {re.split(r"[^A-Za-z0-9_.-]", wanted)[0].lower()} - found
    return found


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
