"""Quotas of projects: how much the files of one project may take together, on file systems that count that.

A file belongs to a project by a number in its inode; a directory hands its number to what is made in it. Both
are of XFS, and are ext4's and f2fs' too where they were made and mounted for it. Asked by descriptors:
quotactl_fd(2), Linux 5.14, in the form that all of these understand, and ioctl_xfs_fsgetxattr(2). Constants
keep the kernel's names (linux/dqblk_xfs.h, linux/fs.h).
"""

import ctypes
import errno
import fcntl
import struct
from typing import NamedTuple

from xce.linux import syscalls

_QUOTACTL_FD = 443
PRJQUOTA = 2
Q_XGETQUOTA, Q_XSETQLIM, Q_XGETQSTATV = 0x5803, 0x5804, 0x5808
FS_DQUOT_VERSION, FS_QSTATV_VERSION1 = 1, 1
FS_PROJ_QUOTA = 2
FS_DQ_BSOFT, FS_DQ_BHARD = 1 << 2, 1 << 3
FS_QUOTA_PDQ_ACCT, FS_QUOTA_PDQ_ENFD = 1 << 4, 1 << 5
FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR = 0x801C581F, 0x401C5820
FS_XFLAG_PROJINHERIT = 0x200

_BLOCK = 512
"""What limits and usage are counted in, whatever the file system's own blocks are."""
_STATE = struct.Struct("<bxH 4x 152x")
_QUOTA = struct.Struct("<bbHI QQQQQQ 56x")
"""struct fs_disk_quota: version, flags, field mask, id; limits of blocks and inodes; the use of both."""
_ATTRIBUTES = struct.Struct("<IIIII8x")
"""struct fsxattr: flags, extent size, extents, project, copy-on-write extent size."""


class Account(NamedTuple):
    """What is counted of one project, in bytes and inodes."""

    limit: int
    """0: none."""
    used: int
    inodes: int

    @property
    def free(self) -> bool:
        """Whether nothing is known of this project: no file belongs to it, and no limit was set."""
        return self == (0, 0, 0)


class Project(NamedTuple):
    """Which project a directory belongs to, and whether what is made in it does too."""

    id: int
    inherit: bool


def enforced(fd: int) -> bool:
    """Whether the file system of `fd` counts projects and keeps to their limits now."""
    buffer = ctypes.create_string_buffer(_STATE.pack(FS_QSTATV_VERSION1, 0), _STATE.size)
    try:
        _control(fd, Q_XGETQSTATV, 0, buffer)
    except OSError:  # ENOSYS, EINVAL, ESRCH, ENOTTY: each file system has its own word for no
        return False
    both = FS_QUOTA_PDQ_ACCT | FS_QUOTA_PDQ_ENFD
    return bool(_STATE.unpack(buffer.raw)[1] & both == both)


def account(fd: int, project: int) -> Account:
    """What the file system of `fd` has counted of a project."""
    buffer = ctypes.create_string_buffer(_QUOTA.size)
    try:
        _control(fd, Q_XGETQUOTA, project, buffer)
    except OSError as error:
        if error.errno == errno.ENOENT:  # XFS has never heard of it
            return Account(0, 0, 0)
        raise
    _, _, _, _, hard, _, _, _, used, inodes = _QUOTA.unpack(buffer.raw)
    return Account(hard * _BLOCK, used * _BLOCK, inodes)


def limit(fd: int, project: int, size: int) -> None:
    """Set how many bytes a project may have; 0: as many as it likes."""
    blocks = -(-size // _BLOCK)
    fields = FS_DQ_BHARD | FS_DQ_BSOFT
    record = _QUOTA.pack(FS_DQUOT_VERSION, FS_PROJ_QUOTA, fields, project, blocks, 0, 0, 0, 0, 0)
    _control(fd, Q_XSETQLIM, project, ctypes.create_string_buffer(record, _QUOTA.size))


def _control(fd: int, command: int, project: int, buffer: "ctypes.Array[ctypes.c_char]") -> None:
    syscalls.call(
        _QUOTACTL_FD,
        ctypes.c_int(fd),
        ctypes.c_uint(command << 8 | PRJQUOTA),
        ctypes.c_uint(project),
        ctypes.byref(buffer),
    )


def project(directory: int) -> Project:
    """The project of an open directory."""
    flags, _, _, number, _ = _ATTRIBUTES.unpack(_attributes(directory))
    return Project(number, bool(flags & FS_XFLAG_PROJINHERIT))


def assign(directory: int, number: int) -> None:
    """Let a directory, and all that will be made in it, belong to a project; 0: to none."""
    flags, extent, extents, _, copied = _ATTRIBUTES.unpack(_attributes(directory))
    flags = flags | FS_XFLAG_PROJINHERIT if number else flags & ~FS_XFLAG_PROJINHERIT
    fcntl.ioctl(directory, FS_IOC_FSSETXATTR, _ATTRIBUTES.pack(flags, extent, extents, number, copied))


def _attributes(directory: int) -> bytes:
    return fcntl.ioctl(directory, FS_IOC_FSGETXATTR, bytes(_ATTRIBUTES.size))
