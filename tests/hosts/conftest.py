"""Packages of this tree, and hosts to install them on."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import box
from tests.hosts.box import Host
from tests.project import tree
from xce.model import VERSION

NOW, NEXT = VERSION, "0.2.1"
OLDER = "0.1.9"
"""Of the layout before 0.2.0, with no package for the CSI helper."""


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of this tree, and in `next/` a later version with another default.

    XCE_PACKAGES names such a folder that was made before, for whoever works on these tests.
    """
    if made := os.environ.get("XCE_PACKAGES"):
        return Path(made)
    folder = tmp_path_factory.mktemp("packages")
    copy = tree.copy_to(tmp_path_factory.mktemp("next") / "tree")
    build(tree.ROOT, folder)
    default = copy / "etc/agent.yaml"
    default.write_text(default.read_text() + "\n# New in this version.\n#novelty: true\n")
    build(copy, folder / "next", version=NEXT)
    return folder


def build(source: Path, into: Path, *, version: str = "") -> None:
    """Run the tree's own build, with the wheels of an earlier one, whoever made it."""
    environment = {"XCE_RPM_CACHE": "/var/tmp/xce-rpm"} | os.environ
    environment |= {"XCE_RPM_VERSION": version} if version else {}
    script = source / "packaging/rpm/build"
    done = subprocess.run(
        [str(script), str(into)], env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode != 0 and "rpmbuild: command not found" in done.stderr:
        pytest.skip("needs rpmbuild: apt-get install rpm")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def older(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages of the layout before 0.2.0: the same files, the CSI helper's in the two that had them."""
    folder = packages / "older"
    if folder.is_dir():
        return folder
    copy = tree.copy_to(tmp_path_factory.mktemp("older") / "tree")
    spec = copy / "packaging/rpm/xce.spec"
    text = spec.read_text()
    for now in ("Recommends:", "Obsoletes:", " -f libs.files", "%files csi-node-helper -f csi.files\n"):
        assert now in text, now
        text = text.replace(now, "# " if now.endswith(":") else "")
    for begin, end in (("%package csi-node-helper", "%prep"), ("%preun csi-node-helper", "%pre broker")):
        text = text[: text.index(begin)] + text[text.index(end) :]
    spec.write_text(text)
    build(copy, folder, version=OLDER)
    return folder


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
def repository(packages: Path, older: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Repositories for dnf: `now/`, with what the distribution would give us, `next/`, `older/`, and a later
    distribution in `python/`, with the next minor version of Python.
    """
    folder = tmp_path_factory.mktemp("repository")
    for name, source in (("now", packages), ("next", packages / "next"), ("older", older)):
        (folder / name).mkdir()
        for path in source.glob("*.rpm"):
            shutil.copy(path, folder / name)
    _distribution(sorted((folder / "now").glob("*.rpm")), folder / "now")
    for path in folder.glob("now/**/distribution*.rpm"):
        shutil.copy(path, folder / "older")
    (folder / "python").mkdir()
    ours = [path for path in (folder / "now").glob("*.rpm") if not path.name.startswith("distribution")]
    _distribution(ours, folder / "python", version="10", python="python3.12")
    for name in ("now", "next", "older", "python"):
        try:
            done = subprocess.run(
                ["createrepo_c", "-q", str(folder / name)], capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            pytest.skip("needs createrepo_c: apt-get install createrepo-c")
        assert done.returncode == 0, done.stderr
    return folder


def _distribution(packages: list[Path], into: Path, *, version: str = "9", python: str = "") -> None:
    """An empty package that provides whatever ours require and do not provide themselves: the rest of EL.

    With `python`, that instead of the one that they require.
    """
    wanted = _asked("-qRp", packages) - _asked("-qp", packages, "--provides")
    names = sorted(name for name in wanted if not name.startswith(("rpmlib(", "config(", "xce-")))
    if python:
        names = [python if re.fullmatch(r"python3\.\d+", name) else name for name in names]
    spec = into.parent / "distribution.spec"
    lines = [
        "Name: distribution",
        f"Version: {version}",
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
