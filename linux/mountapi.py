"""Mounts by descriptor: open_tree, move_mount, mount_setattr, fsopen and their like (Linux 5.12), and statx.

A tree is taken from one descriptor, gets its options while nobody can see it, and is put on another
descriptor: no path is looked up twice and there is no moment at which a read-only mount is writable.
Constants keep the kernel's names (linux/mount.h, linux/fcntl.h, linux/stat.h). Nothing here may be used on a
file system that can hang, except from a process that can be left behind.
"""

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from xce.linux import syscalls

# Their numbers are the same on every architecture.
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _MOUNT_SETATTR = 428, 429, 430, 431, 432, 442

AT_FDCWD, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x100, 0x1000, 0x8000
AT_STATX_DONT_SYNC = 0x4000
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH = 0x4, 0x40
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 0x1, 0x2, 0x4, 0x8
MS_PRIVATE, MS_SLAVE, MS_SHARED = 1 << 18, 1 << 19, 1 << 20
FSCONFIG_SET_FLAG, FSCONFIG_SET_STRING, FSCONFIG_CMD_CREATE = 0, 1, 6
STATX_MNT_ID, STATX_ATTR_MOUNT_ROOT = 0x1000, 0x2000
_STATX_BYTES = 256

_libc = ctypes.CDLL(None, use_errno=True)


class Place(NamedTuple):
    """Which mount something lies on, and whether it is the root of that mount."""

    mount: int
    root: bool


def clone(fd: int) -> int:
    """A detached bind mount of what `fd` stands for, without mounts below it. It goes with its descriptor."""
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC | AT_EMPTY_PATH
    return syscalls.call(_OPEN_TREE, ctypes.c_int(fd), ctypes.c_char_p(b""), ctypes.c_uint(flags))


@contextlib.contextmanager
def uncovered(directory: str) -> Iterator[str]:
    """A path at which a directory is seen without what is mounted in it: what mounts cover is there.

    It lies in a detached mount, so nothing in it leads to another file system, or can hang if it does not.
    """
    at = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        tree = clone(at)
    finally:
        os.close(at)
    try:
        yield f"/proc/self/fd/{tree}"
    finally:
        os.close(tree)


def set_attributes(tree: int, attributes: int, *, propagation: int = 0) -> None:
    """Set MOUNT_ATTR_* on a mount, and its propagation (MS_PRIVATE ...) unless 0."""
    what = ctypes.create_string_buffer(struct.pack("<QQQQ", attributes, 0, propagation, 0), 32)
    syscalls.call(
        _MOUNT_SETATTR,
        ctypes.c_int(tree),
        ctypes.c_char_p(b""),
        ctypes.c_uint(AT_EMPTY_PATH),
        ctypes.byref(what),
        ctypes.c_size_t(32),
    )


def attach(tree: int, target: int) -> None:
    """Put a detached mount on what `target` stands for."""
    syscalls.call(
        _MOVE_MOUNT,
        ctypes.c_int(tree),
        ctypes.c_char_p(b""),
        ctypes.c_int(target),
        ctypes.c_char_p(b""),
        ctypes.c_uint(MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH),
    )


def make(kind: str, options: Mapping[str, str | bool], *, attributes: int = 0) -> int:
    """A detached mount of a new file system: `make("tmpfs", {"size": "4m"})`. True stands for a bare flag."""
    context = syscalls.call(_FSOPEN, ctypes.c_char_p(kind.encode()), ctypes.c_uint(1))
    try:
        for key, value in options.items():
            if value is True:
                _configure(context, FSCONFIG_SET_FLAG, key, None)
            elif value is not False:
                _configure(context, FSCONFIG_SET_STRING, key, value)
        _configure(context, FSCONFIG_CMD_CREATE, None, None)
        return syscalls.call(_FSMOUNT, ctypes.c_int(context), ctypes.c_uint(1), ctypes.c_uint(attributes))
    except OSError as error:
        raise OSError(error.errno, f"cannot make {kind}: {_words(context) or error.strerror}") from error
    finally:
        os.close(context)


def _configure(context: int, command: int, key: str | None, value: str | None) -> None:
    syscalls.call(
        _FSCONFIG,
        ctypes.c_int(context),
        ctypes.c_uint(command),
        ctypes.c_char_p(None if key is None else key.encode()),
        ctypes.c_char_p(None if value is None else os.fsencode(value)),
        ctypes.c_int(0),
    )


def _words(context: int) -> str:
    """The kernel's messages about a context that did not work; they begin with `e ` (error)."""
    try:
        return os.read(context, 4096).decode(errors="replace").strip().removeprefix("e ")
    except OSError:
        return ""


def place(fd: int) -> Place:
    """Where what `fd` stands for lies; the file system itself is not asked."""
    return _statx(fd, b"", AT_EMPTY_PATH)


def place_at(directory: int, name: bytes) -> Place:
    """Where the entry `name` of a directory lies: a link is not followed, a mount on it is seen."""
    return _statx(directory, name, AT_SYMLINK_NOFOLLOW)


def _statx(fd: int, name: bytes, flags: int) -> Place:
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    result = _libc.statx(
        ctypes.c_int(fd),
        ctypes.c_char_p(name),
        ctypes.c_int(flags | AT_STATX_DONT_SYNC),
        ctypes.c_uint(STATX_MNT_ID),
        buffer,
    )
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name or None)
    mask, attributes = struct.unpack_from("<I4xQ", buffer.raw)
    if not mask & STATX_MNT_ID:
        raise OSError(
            errno.EOPNOTSUPP, "this kernel does not say which mount a file lies on (statx, Linux 5.8)"
        )
    (mount,) = struct.unpack_from("<Q", buffer.raw, 0x90)  # struct statx.stx_mnt_id
    return Place(mount, bool(attributes & STATX_ATTR_MOUNT_ROOT))


def unmount(path: str) -> None:
    """Take the topmost mount off `path`; EBUSY while somebody uses it. Never lazily: nothing is hidden."""
    syscalls.umount2(path, syscalls.UMOUNT_NOFOLLOW)
