"""Files as block devices: loop(4). A device that was attached here goes when its last user does (a mount).

Constants keep the kernel's names (linux/loop.h). LOOP_CONFIGURE needs Linux 5.8.
"""

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

LOOP_CTL_GET_FREE, LOOP_CONFIGURE = 0x4C82, 0x4C0A
LO_FLAGS_AUTOCLEAR = 4
_CONFIG = struct.Struct("<II 40x 4I 160x 16x 64x")
"""struct loop_config: descriptor, block size, then loop_info64, of which lo_flags is the last number set."""
_TRIES = 16
_GONE = " (deleted)"


def attach(file: int) -> tuple[str, int]:
    """A free loop device on top of the descriptor `file`: its path, and a descriptor that keeps it."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            path = f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}"
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, LOOP_CONFIGURE, _CONFIG.pack(file, 0, 0, 0, 0, LO_FLAGS_AUTOCLEAR))
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:  # somebody else was faster
                    raise OSError(error.errno, error.strerror, path) from error
                continue
            return path, device
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no free loop device", "/dev/loop-control")


def having(path: str, sys_root: str = "/sys") -> str:
    """The loop device that has a file, by its path; it may still write though nothing is mounted."""
    return next((f"/dev/{name}" for name, file in attached(sys_root) if file.removesuffix(_GONE) == path), "")


def attached(sys_root: str = "/sys") -> Iterator[tuple[str, str]]:
    """All loop devices (`loop0`) that have a file, and its path."""
    for place in sorted(Path(sys_root, "block").glob("loop*")):
        if file := _file(place):
            yield place.name, file


def backing(number: str, sys_root: str = "/sys") -> str:
    """The file below the block device `major:minor`; '' if it is no loop device."""
    return _file(Path(sys_root, "dev/block", number))


def _file(place: Path) -> str:
    try:
        return os.fsdecode((place / "loop/backing_file").read_bytes()).rstrip("\n")
    except OSError:
        return ""
