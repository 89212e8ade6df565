"""Disks with quotas, each in a file: those that this kernel has. In tests/vm it has all."""

import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from xce.linux import btrfs, quota, syscalls
from xce.prepare import projects

Q_XGETNEXTQUOTA = 0x5809


class Kind(NamedTuple):
    """How a file system is made and mounted, and what is said of a limit on it."""

    make: str
    options: str
    way: str
    words: str


KINDS = {
    "xfs": Kind("mkfs.xfs -q", "loop,prjquota", "project", "project quota of xfs"),
    "ext4": Kind(
        "mkfs.ext4 -q -O quota,project -E quotatype=prjquota",
        "loop,prjquota",
        "project",
        "project quota of ext4",
    ),
    "btrfs": Kind("mkfs.btrfs -q", "loop", "qgroup", "qgroup of btrfs"),
}
SIZE = 320 << 20


class Disk:
    """One of them, mounted on `root`."""

    def __init__(self, name: str, root: Path) -> None:
        self.name, self.kind, self.root = name, KINDS[name], root

    def limits(self) -> dict[int, tuple[int, int]]:
        """Limit and use of every project or subvolume that has either and could be ours."""
        fd = os.open(self.root, os.O_RDONLY)
        try:
            return self._projects(fd) if self.kind.way == "project" else self._subvolumes(fd)
        finally:
            os.close(fd)

    def set_limit(self, number: int, size: int) -> None:
        """As the admin could."""
        fd = os.open(self.root, os.O_RDONLY)
        try:
            (quota if self.kind.way == "project" else btrfs).limit(fd, number, size)
        finally:
            os.close(fd)

    def _projects(self, fd: int) -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        following = projects.SCRATCH.start
        while True:
            record = ctypes.create_string_buffer(112)
            try:
                quota._control(fd, Q_XGETNEXTQUOTA, following, record)
            except OSError:  # ENOENT, ESRCH: that was the last
                return found
            number = struct.unpack_from("<I", record.raw, 4)[0]
            seen, following = quota.account(fd, number), number + 1
            if number < projects.SHARED.stop and not seen.free:
                found[number] = (seen.limit, seen.used)

    def _subvolumes(self, fd: int) -> dict[int, tuple[int, int]]:
        names = [path.name for path in btrfs._groups(fd, "/sys").glob("0_*")]
        numbers = [int(name.removeprefix("0_")) for name in names]
        return {number: btrfs.account(fd, number) for number in numbers if number >= 256}


def mounted(name: str, place: Path) -> Iterator[Disk]:
    """Body of a fixture: a new disk on `place/quota`, whose file lies beside it."""
    kind, image, root = KINDS[name], place / f"{name}.img", place / "quota"
    if shutil.which(kind.make.split()[0]) is None:
        pytest.skip(f"no {kind.make.split()[0]}")
    with image.open("wb") as file:
        file.truncate(SIZE)
    subprocess.run([*kind.make.split(), str(image)], check=True, capture_output=True)
    root.mkdir()
    command = ["mount", "-o", kind.options, str(image), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this kernel has no quotas of {name}: see tests/vm")
    if kind.way == "qgroup":
        subprocess.run(["btrfs", "quota", "enable", str(root)], check=True)
        # Until the first count is over its quotas do not add up, and are not used.
        subprocess.run(["btrfs", "quota", "rescan", "-w", str(root)], check=False, capture_output=True)
    yield Disk(name, root)
    syscalls.umount2(str(root), syscalls.MNT_DETACH)
    image.unlink()
