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


@pytest.fixture(scope="session")
def repository(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Repositories for dnf: `now/`, with what the distribution would give us, and `next/`."""
    folder = tmp_path_factory.mktemp("repository")
    for name, source in (("now", packages), ("next", packages / "next")):
        (folder / name).mkdir()
        for path in source.glob("*.rpm"):
            shutil.copy(path, folder / name)
    _distribution(sorted((folder / "now").glob("*.rpm")), folder / "now")
    for name in ("now", "next"):
        try:
            done = subprocess.run(
                ["createrepo_c", "-q", str(folder / name)], capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            pytest.skip("needs createrepo_c: apt-get install createrepo-c")
        assert done.returncode == 0, done.stderr
    return folder


def _distribution(packages: list[Path], into: Path) -> None:
    """An empty package that provides whatever ours require and do not provide themselves: the rest of EL."""
    wanted = _asked("-qRp", packages) - _asked("-qp", packages, "--provides")
    names = sorted(name for name in wanted if not name.startswith(("rpmlib(", "config(", "xce-")))
    spec = into.parent / "distribution.spec"
    lines = [
        "Name: distribution",
        "Version: 9",
        "Release: 1",
        "Summary: stub",
        "License: MIT",
        "BuildArch: noarch",
    ]
    spec.write_text(
        "\n".join([*lines, *(f"Provides: {name}" for name in names), "%description", ".", "%files", ""])
    )
    command = [
        "rpmbuild",
        "--quiet",
        "-bb",
        "--define",
        f"_topdir {into.parent}",
        "--define",
        f"_rpmdir {into}",
    ]
    done = subprocess.run([*command, str(spec)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def _asked(what: str, packages: list[Path], *more: str) -> set[str]:
    """First words of what rpm says of package files."""
    command = ["rpm", what, *more, *map(str, packages)]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return {line.split()[0] for line in text.splitlines() if line.strip()}
