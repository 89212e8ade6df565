"""What uses a block device beside descriptors: mounts, other devices on it, swap. Nothing is opened.

What is used in another mount namespace is not seen here, nor a file system over several devices; whoever
opens the device for himself alone (O_EXCL) is told of those.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from xce.linux import loopdevice
from xce.linux.mountinfo import Mount


def uses(number: int, mounts: Iterable[Mount], *, sys: str = "/sys", proc: str = "/proc") -> list[str]:
    """How the kernel uses the device with that number (`os.makedev`) or a partition of it, in words."""
    place = Path(sys, "dev/block", f"{os.major(number)}:{os.minor(number)}")
    parts = [_read(path / "dev").strip() for path in _below(place) if (path / "partition").exists()]
    own = {place.name, *parts}
    found = [f"mounted on {mount.point}" for mount in mounts if mount.device in own]
    found += [
        f"{path.name} is on it" for one in sorted(own) for path in _below(place.parent / one / "holders")
    ]
    found += [f"{name} is on it" for name, file in loopdevice.attached(sys) if _number(file) in own]
    swaps = (line.split()[0] for line in _read(Path(proc, "swaps")).splitlines()[1:] if line.split())
    return found + ["used as swap" for path in swaps if _number(path) in own]


def _number(path: str) -> str:
    """Of the block device file with that path; '' if it is none. Below /dev nothing hangs."""
    if not path.startswith("/dev/"):
        return ""
    try:
        about = os.stat(path)
    except OSError:
        return ""
    return f"{os.major(about.st_rdev)}:{os.minor(about.st_rdev)}" if stat.S_ISBLK(about.st_mode) else ""


def _below(directory: Path) -> Iterator[Path]:
    try:
        yield from sorted(directory.iterdir())
    except OSError:
        return


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
