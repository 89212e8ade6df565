"""The mount table: proc_pid_mountinfo(5) as structs. Reading it does not touch the mounted file systems."""

import os
import re
import select
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from xce.linux import proc

LOCAL = frozenset(
    re.findall(
        r"\w+",
        "bcachefs binfmt_misc bpf btrfs cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs erofs exfat "
        "ext2 ext3 ext4 f2fs fusectl hugetlbfs iso9660 mqueue nsfs overlay proc pstore ramfs rootfs "
        "securityfs selinuxfs squashfs sysfs tmpfs tracefs udf vfat xfs zfs",
    )
)
"""File systems that answer without asking another machine or process. Those not named here can hang."""

DISKLESS = frozenset(
    re.findall(r"\w+", "bpf cgroup cgroup2 debugfs devpts devtmpfs mqueue proc pstore ramfs sysfs tmpfs")
)
"""File systems that wait for no disk either, when they are mounted or taken off."""
_LINKS = 40
"""Followed on one path; ELOOP comes sooner."""
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


def _text(proc_root: str, pid: int | str = "self") -> str:
    return proc.content(f"{proc_root}/{pid}/mountinfo").decode(errors="surrogateescape")


def read(
    proc_root: str = "/proc", pid: int | str = "self", devices: AbstractSet[str] | None = None
) -> list[Mount]:
    """All mounts that `pid` sees, in mount order; of these devices alone if they are given."""
    lines = _text(proc_root, pid).split("\n")
    if devices is not None:
        lines = [line for line in lines if not devices.isdisjoint(line.split(" ", 3)[2:3])]
    return _parsed(lines)


class Table:
    """The mounts that a process sees, read anew only when the kernel says that they have changed.

    The descriptor is its own: whoever else polled it would take the news away.
    """

    def __init__(self, proc_root: str = "/proc", pid: int | str = "self") -> None:
        self._fd = os.open(f"{proc_root}/{pid}/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLPRI)
        self._held: list[Mount] | None = None
        self._points: dict[str, list[Mount]] = {}
        self._tops: dict[str, Mount] | None = None
        self._lines: dict[str, Mount | None] = {}
        """What was read last: most lines are the same the next time."""

    def __call__(self) -> list[Mount]:
        """All mounts now, in mount order."""
        if self._poll.poll(0) or self._held is None:
            return self._read()
        return self._held

    def _read(self) -> list[Mount]:
        os.lseek(self._fd, 0, os.SEEK_SET)
        text = b""
        while more := os.read(self._fd, 1 << 16):
            text += more
        known, lines = self._lines, text.decode(errors="surrogateescape").split("\n")
        self._lines = {line: known[line] if line in known else _parse_line(line) for line in lines}
        self._held = [mount for mount in self._lines.values() if mount is not None]
        self._points, self._tops = {}, None
        for mount in self._held:
            self._points.setdefault(mount.point, []).append(mount)
        return self._held

    def at(self, point: str) -> list[Mount]:
        """What is mounted on a path now, the lowest first."""
        self()
        return self._points.get(point, [])

    def tops(self) -> Mapping[str, Mount]:
        """The topmost mount of each point now; the same object as long as nothing has changed."""
        if self._poll.poll(0) or self._tops is None:
            self._tops = tops(self._read())
        return self._tops

    def close(self) -> None:
        """Let go of the descriptor; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def one(number: int, proc_root: str = "/proc") -> Mount | None:
    """The mount with that id, if we see it."""
    _, found, rest = f"\n{_text(proc_root)}".partition(f"\n{number} ")
    return _parse_line(f"{number} {rest.partition(chr(10))[0]}") if found else None


def can_hang(kind: str) -> bool:
    """Whether looking at a file of such a file system can wait for somebody: network, FUSE, unknown ones."""
    return kind not in LOCAL


def waits(kind: str) -> bool:
    """Whether to mount such a file system, or to take off its last mount, can wait for a disk or for
    somebody: what was written last goes there then.
    """
    return kind not in DISKLESS


def tops(mounts: Iterable[Mount]) -> dict[str, Mount]:
    """The topmost mount of each point: the last one."""
    return {mount.point: mount for mount in sorted(mounts)}


def covering(path: str, mounts: Mapping[str, Mount]) -> Mount | None:
    """The mount that an absolute path without links is on, without touching it; None if that cannot be seen.

    `mounts` are the topmost ones (`tops`).
    """
    while path.strip("/"):
        if (mount := mounts.get(path)) is not None:
            return mount
        path = os.path.dirname(path)
    return mounts.get("/")


def may_hang(
    path: str, mounts: Mapping[str, Mount] | None = None, readlink: Callable[[str], str] = os.readlink
) -> Mount | None:
    """The first mount on the way along `path` that can hang, and so may never answer; None if none can.

    Only what is on local file systems is touched, to follow links. Raises OSError if mounts cannot be read.
    `mounts` are the topmost ones (`tops`).
    """
    mounts = tops(read()) if mounts is None else mounts
    rest, at, links = os.path.normpath(os.path.abspath(path)).split("/")[1:], "", 0
    while rest:
        name = rest.pop(0)
        at = os.path.dirname(at) if name == ".." else f"{at.rstrip('/')}/{name}"
        mount = covering(at or "/", mounts)
        if mount is not None and can_hang(mount.kind):
            return mount
        try:
            target = readlink(at)
        except OSError:
            continue  # no link, or not there
        links += 1
        if links > _LINKS:
            return None  # nobody gets further on that path
        at = "/" if target.startswith("/") else os.path.dirname(at)
        rest = [part for part in target.split("/") if part not in ("", ".")] + rest
    return None


def parse(text: str) -> list[Mount]:
    """The mounts of a mountinfo file; lines that are not of that form are left out."""
    return _parsed(text.split("\n"))


def _parsed(lines: Iterable[str]) -> list[Mount]:
    return [mount for line in lines if (mount := _parse_line(line)) is not None]


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
