"""Disks that fall ill while somebody uses them: they fail, they hang, and are well again."""

import contextlib
import mmap
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.linux.surroundings import need_device
from xce.linux import mountinfo, syscalls

SOURCE = Path(__file__).with_name("faultfs.c")


class SickFolder:
    """A directory behind `faultfs.c`, mounted on `point`; a context manager."""

    def __init__(self, point: Path, place: Path) -> None:
        self.point, self.behind = point, place / "behind"
        if not (shutil.which("cc") and shutil.which("pkg-config")):
            pytest.skip("needs a C compiler and pkg-config")
        if subprocess.run(["pkg-config", "fuse3"], check=False).returncode:
            pytest.skip("needs libfuse3")
        need_device("/dev/fuse")
        self.behind.mkdir(parents=True)
        point.mkdir(parents=True, exist_ok=True)
        flags = subprocess.run(
            ["pkg-config", "--cflags", "--libs", "fuse3"], check=True, capture_output=True, text=True
        ).stdout.split()
        program, control = place / "faultfs", place / "control"
        subprocess.run(["cc", "-O1", str(SOURCE), "-o", str(program), *flags], check=True)
        control.write_bytes(bytes(16))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), 16)
        self._process = subprocess.Popen([program, point, self.behind, control], stderr=subprocess.DEVNULL)
        while not any(mount.point == str(point) for mount in mountinfo.read()):
            assert self._process.poll() is None
            time.sleep(0.005)

    def ill(self, *, writes: int = 0, syncs: int = 0, reads: int = 0, hangs: int = 0) -> None:
        """From now on; without arguments it is well again."""
        struct.pack_into("4i", self._control, 0, writes, syncs, reads, hangs)

    def close(self) -> None:
        self.ill()
        syscalls.umount2(str(self.point), syscalls.MNT_DETACH)
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SickDisk(SickFolder):
    """An ext4 of its own, mounted on `root`, whose disk can fall ill."""

    def __init__(self, root: Path, place: Path, size: int = 16 << 20) -> None:
        need_device("/dev/loop-control")
        super().__init__(place / "disk", place)
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        image = self.point / "image"
        with image.open("wb") as file:
            file.truncate(size)
        subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", str(image)], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop,errors=continue", str(image), str(root)], check=True)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Whoever writes waits, as while a snapshot of a disk is taken."""
        subprocess.run(["fsfreeze", "-f", str(self.root)], check=True)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "-u", str(self.root)], check=True)

    def close(self) -> None:
        self.ill()
        syscalls.umount2(str(self.root), syscalls.MNT_DETACH)
        super().close()
