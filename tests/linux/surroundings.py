"""What tests change of the machine around them for themselves alone, and what they need of it."""

import ctypes
import os
import stat
import subprocess
from pathlib import Path

import pytest

CLONE_NEWNS = 0x00020000  # include/uapi/linux/sched.h


def own_mounts() -> None:
    """From here on this process and its children see mounts that nobody else sees; or the test is skipped."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        pytest.skip(f"cannot have a mount namespace of its own: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def read_only(place: Path) -> None:
    """It can be read and not written, as after an error of its disk; `mountapi.unmount` ends that."""
    subprocess.run(["mount", "--bind", place, place], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)


def need_device(path: str) -> None:
    """The test is skipped where a device cannot be opened."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        pytest.skip(f"needs {path}: {error.strerror}")


def tun(path: Path) -> str:
    """A file of a device that opens anywhere, of which nobody has need; or the test is skipped."""
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(10, 200))
    need_device(str(path))
    return str(path)
