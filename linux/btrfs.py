"""Subvolumes of btrfs with a limit: made, measured and removed by descriptors and numbers, never by a path.

Each subvolume has a quota group of its own, `0/NUMBER`, once quotas are enabled on the file system, which is
its admin's to decide. What the kernel has counted is read from /sys/fs/btrfs, Linux 5.9. Constants keep the
kernel's names (linux/btrfs.h, linux/btrfs_tree.h). Needs CAP_SYS_ADMIN.
"""

import errno
import fcntl
import os
import struct
import uuid
from pathlib import Path
from typing import NamedTuple

BTRFS_IOC_SUBVOL_CREATE, BTRFS_IOC_SNAP_DESTROY_V2 = 0x5000940E, 0x5000943F
BTRFS_IOC_TREE_SEARCH, BTRFS_IOC_INO_LOOKUP, BTRFS_IOC_FS_INFO = 0xD0009411, 0xD0009412, 0x8400941F
BTRFS_IOC_QGROUP_CREATE, BTRFS_IOC_QGROUP_LIMIT = 0x4010942A, 0x8030942B
BTRFS_IOC_START_SYNC = 0x80089418
BTRFS_SUBVOL_SPEC_BY_ID = 1 << 4
BTRFS_QGROUP_LIMIT_MAX_RFER = 1 << 0
BTRFS_FIRST_FREE_OBJECTID = 256
"""Inode of the top directory of every subvolume."""
BTRFS_ROOT_TREE_OBJECTID, BTRFS_ROOT_REF_KEY = 1, 156

_BYTES = 4096
_MOST = (1 << 64) - 1
_NAMED = struct.Struct("<q4088s")
"""struct btrfs_ioctl_vol_args."""
_NUMBERED = struct.Struct("<qQQ32xQ")
"""struct btrfs_ioctl_vol_args_v2: descriptor, transaction, flags; subvolume."""
_KEY = struct.Struct("<7Q4I32x")
"""struct btrfs_ioctl_search_key: tree; object, offset, transaction, type, each from and to; items."""
_HEADER = struct.Struct("<QQQII")
"""struct btrfs_ioctl_search_header: transaction, object, offset, type, length."""
_ITEMS_AT, _ITEM_COUNT_AT = 104, 64


class Account(NamedTuple):
    """What is counted of one subvolume, in bytes."""

    limit: int
    """0: none."""
    used: int


def trouble(fd: int, sys_root: str = "/sys") -> str:
    """Why subvolumes of the file system of `fd` cannot have limits that hold; '' if they can."""
    place = _groups(fd, sys_root)
    try:
        enabled = place.exists() and _read(place / "enabled") == 1
        if enabled and _read(place / "inconsistent") == 0:
            return ""
    except (OSError, ValueError) as error:
        return f"cannot read its quotas: {error}"
    return "its quotas do not add up (btrfs quota rescan)" if enabled else "its quotas are not enabled"


def create(parent: int, name: str) -> None:
    """Make an empty subvolume `name` in an open directory."""
    _ioctl(parent, BTRFS_IOC_SUBVOL_CREATE, _NAMED.pack(0, os.fsencode(name)))


def number(directory: int) -> int:
    """Of the subvolume whose top an open directory is; 0 if it is none, or on another file system."""
    if os.fstat(directory).st_ino != BTRFS_FIRST_FREE_OBJECTID:
        return 0
    try:
        answer = _ioctl(directory, BTRFS_IOC_INO_LOOKUP, struct.pack("<QQ", 0, BTRFS_FIRST_FREE_OBJECTID))
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EINVAL):
            return 0
        raise
    return int.from_bytes(answer[:8], "little")


def within(fd: int, subvolume: int) -> list[int]:
    """Numbers of the subvolumes that lie in one, at any depth; those further down come first."""
    found: list[int] = []
    for child in _children(fd, subvolume):
        found += [*within(fd, child), child]
    return found


def _children(fd: int, subvolume: int) -> list[int]:
    found: list[int] = []
    while True:
        after = found[-1] + 1 if found else 0
        key = _KEY.pack(
            BTRFS_ROOT_TREE_OBJECTID,
            *(subvolume, subvolume, after, _MOST, 0, _MOST),
            *(BTRFS_ROOT_REF_KEY, BTRFS_ROOT_REF_KEY, 1 << 16, 0),
        )
        answer = _ioctl(fd, BTRFS_IOC_TREE_SEARCH, key)
        (count,) = struct.unpack_from("<I", answer, _ITEM_COUNT_AT)
        if not count:
            return found
        at = _ITEMS_AT
        for _ in range(count):
            _, _, child, _, length = _HEADER.unpack_from(answer, at)
            found.append(child)
            at += _HEADER.size + length


def destroy(fd: int, subvolume: int) -> None:
    """Take a subvolume away with all its files; their space comes back by and by. None may lie within it."""
    _ioctl(fd, BTRFS_IOC_SNAP_DESTROY_V2, _NUMBERED.pack(0, 0, BTRFS_SUBVOL_SPEC_BY_ID, subvolume))


def account(fd: int, subvolume: int, sys_root: str = "/sys") -> Account:
    """What is counted of a subvolume. Raises OSError: ENOENT if nothing is."""
    place = _groups(fd, sys_root) / f"0_{subvolume}"
    limited = _read(place / "limit_flags") & BTRFS_QGROUP_LIMIT_MAX_RFER
    return Account(_read(place / "max_referenced") if limited else 0, _read(place / "referenced"))


def limit(fd: int, subvolume: int, size: int) -> None:
    """Set how many bytes a subvolume may have; 0: as many as it likes."""
    record = struct.pack("<6Q", subvolume, BTRFS_QGROUP_LIMIT_MAX_RFER, size or _MOST, 0, 0, 0)
    fcntl.ioctl(fd, BTRFS_IOC_QGROUP_LIMIT, record)


def forget(fd: int, subvolume: int, sys_root: str = "/sys") -> bool:
    """Remove the quota group of a subvolume that was destroyed; False while its space is being freed.

    From Linux 6.11 on the kernel does that itself, with the last of its files.
    """
    if not (_groups(fd, sys_root) / f"0_{subvolume}").exists():
        return True
    try:
        fcntl.ioctl(fd, BTRFS_IOC_QGROUP_CREATE, struct.pack("<QQ", 0, subvolume))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        if error.errno != errno.ENOENT:
            raise
    return True


def begin_freeing(fd: int) -> None:
    """Let the kernel free now what was destroyed, and not at its next commit; nothing is waited for."""
    fcntl.ioctl(fd, BTRFS_IOC_START_SYNC, bytes(8))


def _groups(fd: int, sys_root: str) -> Path:
    answer = bytearray(1024)
    fcntl.ioctl(fd, BTRFS_IOC_FS_INFO, answer, True)
    return Path(sys_root, "fs/btrfs", str(uuid.UUID(bytes=bytes(answer[16:32]))), "qgroups")


def _read(path: Path) -> int:
    return int(path.read_text("ascii"))


def _ioctl(fd: int, request: int, argument: bytes) -> bytearray:
    buffer = bytearray(argument.ljust(_BYTES, b"\0"))
    fcntl.ioctl(fd, request, buffer, True)
    return buffer
