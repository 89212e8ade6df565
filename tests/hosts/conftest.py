"""Packages of this tree, and hosts to install them on."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import box
from tests.hosts.box import Host
from tests.project import tree

NEXT = "0.1.1"


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of this tree, and in `next/` a later version with another default.

    XCE_PACKAGES names such a folder that was made before, for whoever works on these tests.
    """
    if made := os.environ.get("XCE_PACKAGES"):
        return Path(made)
    folder = tmp_path_factory.mktemp("packages")
    copy = tree.copy_to(tmp_path_factory.mktemp("next") / "tree")
    wheels = os.environ.get("XCE_RPM_CACHE", "/var/tmp/xce-rpm")
    build(tree.ROOT, Path(wheels), folder)
    default = copy / "etc/agent.yaml"
    default.write_text(default.read_text() + "\n# New in this version.\n#novelty: true\n")
    build(copy, Path(wheels), folder / "next", version=NEXT)
    return folder


def build(source: Path, cache: Path, into: Path, *, version: str = "") -> None:
    """Run the tree's own build, with the wheels of an earlier one; the packages alone land in `into`."""
    environment = os.environ | ({"XCE_RPM_VERSION": version} if version else {})
    script = source / "packaging/rpm/build"
    done = subprocess.run(
        [str(script), str(cache)], env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode != 0 and "rpmbuild: command not found" in done.stderr:
        pytest.skip("needs rpmbuild: apt-get install rpm")
    assert done.returncode == 0, done.stdout + done.stderr
    into.mkdir(exist_ok=True)
    for line in done.stdout.splitlines():
        if line.endswith(".rpm"):
            shutil.move(line, into / Path(line).name)


@pytest.fixture(scope="session")
def base() -> Path:
    """The tree that hosts are booted from."""
    return box.base()


@pytest.fixture
def host(base: Path, packages: Path, tmp_path: Path) -> Iterator[Host]:
    """One host with the packages at /packages, and nothing installed."""
    with Host("h1", tmp_path, binds=(f"{packages}:/packages",)) as running:
        yield running
