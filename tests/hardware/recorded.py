"""The recorded machines of this folder: unpack one, read it, and what a correct discovery finds there."""

import json
import tarfile
from pathlib import Path
from typing import Any

from xce.agent.probe import sysfs
from xce.agent.probe.facts import Machine

HERE = Path(__file__).parent
MACHINES = HERE / "machines"
ALL = sorted(folder.name for folder in MACHINES.iterdir())
TREES = [name for name in ALL if (MACHINES / name / "tree.tar.xz").exists()]


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MACHINES / name / "expected.json").read_text())
    return found


def admin(name: str) -> bytes:
    return (MACHINES / name / "admin-topology.json").read_bytes()


def unpack(name: str, folder: Path) -> Path:
    """The tree of a machine, with its `sys` and `proc`, in an empty folder."""
    with tarfile.open(MACHINES / name / "tree.tar.xz") as archive:
        archive.extraction_filter = lambda member, _: member  # links that end in nothing are meant
        archive.extractall(folder)
    return folder


def machine(name: str, folder: Path) -> Machine:
    return sysfs.read(unpack(name, folder))
