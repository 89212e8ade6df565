"""The mount table: proc_pid_mountinfo(5) as structs. Reading it does not touch the mounted file systems."""

import re
from pathlib import Path
from typing import NamedTuple

LOCAL = frozenset(
    re.findall(
        r"\w+",
        "bcachefs binfmt_misc bpf btrfs cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs erofs exfat "
        "ext2 ext3 ext4 f2fs fusectl hugetlbfs iso9660 mqueue nsfs overlay proc pstore ramfs rootfs "
        "securityfs selinuxfs squashfs sysfs tmpfs tracefs udf vfat xfs zfs",
    )
)
"""File systems that answer without asking another machine or process. Those not named here can hang."""

_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of mountinfo."""

    id: int
    parent: int
    device: str
    """`major:minor`."""
    root: str
    """Which directory of the file system is mounted."""
    point: str
    options: str
    kind: str
    """File system type: `ext4`, `nfs4`, `fuse.sshfs`."""
    source: str
    super_options: str


def read(proc_root: str = "/proc", pid: int | str = "self") -> list[Mount]:
    """All mounts that `pid` sees, in mount order."""
    path = Path(proc_root, str(pid), "mountinfo")
    return parse(path.read_text(encoding="utf-8", errors="surrogateescape"))


def can_hang(kind: str) -> bool:
    """Whether looking at a file of such a file system can wait for somebody: network, FUSE, unknown ones."""
    return kind not in LOCAL


def parse(text: str) -> list[Mount]:
    """The mounts of a mountinfo file; lines that are not of that form are left out."""
    return [mount for line in text.splitlines() if (mount := _parse_line(line)) is not None]


def _parse_line(line: str) -> Mount | None:
    before, dash, after = line.partition(" - ")
    fields, rest = before.split(" "), after.split(" ", 2)
    if not dash or len(fields) < 6 or len(rest) < 3 or not (fields[0].isdigit() and fields[1].isdigit()):
        return None
    return Mount(
        id=int(fields[0]),
        parent=int(fields[1]),
        device=fields[2],
        root=_unescape(fields[3]),
        point=_unescape(fields[4]),
        options=fields[5],
        kind=rest[0],
        source=_unescape(rest[1]),
        super_options=rest[2],
    )


def _unescape(field: str) -> str:
    r"""Blank, tab, newline, backslash and '#' are written as \ooo."""
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), field) if "\\" in field else field
