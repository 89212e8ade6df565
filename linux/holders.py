"""Who uses a device or a mount: read from /proc of all processes, without touching any file system.

A process that ends while it is looked at is left out. One whose first thread has ended shows nothing in its
own folder while it lives on: another thread's is looked at. Nothing here can hang: links below /proc/PID are
read as text and descriptors by their fdinfo; no path of a process is opened. Kernel threads and loop devices
that sit on a file show nowhere; what uses a block device in the kernel is `blockdevice`'s.
"""

import contextlib
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from xce.linux import mappings, mountinfo, openfiles, proc
from xce.linux.mappings import Mappings
from xce.linux.mountinfo import Mount
from xce.linux.openfiles import DeviceNumber, OpenFile, OpenFiles

_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)


class Holder(NamedTuple):
    """A process and how it uses the thing: `fd 7`, `current directory`, `mapped file`, `mount namespace`."""

    pid: int
    name: str
    started: int
    """Clock ticks after boot: with the pid it is an identity."""
    how: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name}): {self.how}"


def devices_of(pids: Iterable[int], *, proc_root: str = "/proc") -> list[tuple[Holder, DeviceNumber]]:
    """Every descriptor of a device that these processes have open."""
    look = _Devices(proc_root)
    return [
        (holder, device)
        for pid in pids
        for fd, device in look.of(pid)
        for holder in _on(pid, fd, device, proc_root)
    ]


def of_device(devices: Collection[DeviceNumber], *, proc_root: str = "/proc") -> list[Holder]:
    """Processes with an open descriptor of one of these devices."""
    look = _Devices(proc_root)
    found = []
    for pid in _pids(proc_root):
        first = next((one for one in look.of(pid) if one[1] in devices), None)
        if first is not None:
            found += _on(pid, *first, proc_root)
    return found


class Devices:
    """Who has devices open, anywhere: as the kernel lists it, or else by looking through /proc.

    What it takes to ask the kernel is made when it is first wanted.
    """

    def __init__(self) -> None:
        self._files: OpenFiles | None = None
        self._maps: Mappings | None = None
        self._asked: set[str] = set()

    def __call__(self, devices: Collection[DeviceNumber]) -> list[Holder]:
        """Processes with an open descriptor of one of these devices."""
        if "files" not in self._asked:
            self._asked.add("files")
            self._files = openfiles.find()
        if self._files is None:
            return of_device(devices)
        first: dict[int, OpenFile] = {}
        for one in self._files(devices):
            first.setdefault(one.pid, one)
        return [holder for one in first.values() for holder in _on(one.pid, str(one.fd), one.device, "/proc")]

    def mapped(self, devices: Collection[DeviceNumber]) -> tuple[list[Holder], list[Holder]]:
        """Processes that have one of these devices mapped, and those of which that could not be seen now.

        Nobody, where the kernel does not tell.
        """
        if "maps" not in self._asked:
            self._maps = mappings.find()
            self._asked.add("maps")
        if self._maps is None:
            return [], []
        seen = self._maps(devices)
        mapped = [one for pid, device in seen.mapped.items() for one in _one(pid, f"mapping of {device}")]
        return mapped, [one for pid in seen.busy for one in _one(pid, "mappings that are being changed")]

    def close(self) -> None:
        """Let go of what was made; may be called twice."""
        for made in (self._files, self._maps):
            if made is not None:
                made.close()


def _on(pid: int, fd: str, device: DeviceNumber, proc_root: str) -> list[Holder]:
    return _one(pid, f"fd {fd} on {device}", proc_root)


def _one(pid: int, how: str, proc_root: str = "/proc") -> list[Holder]:
    """The holder, unless it is gone."""
    process = proc.process(pid, proc_root)
    return [Holder(pid, process.name, process.started, how)] if process else []


class _Devices:
    """Devices that are open. Written for speed: a busy host has ten thousands of descriptors."""

    def __init__(self, proc_root: str) -> None:
        self._root = proc_root
        self._safe: dict[str, set[int]] = {}

    def of(self, pid: int) -> Iterator[tuple[str, DeviceNumber]]:
        """Descriptors of devices that a process has open; not those that lie where asking could hang."""
        safe: set[int] | None = None
        task = _task(pid, self._root)
        for fd in _descriptors(task, self._root):
            path = f"{self._root}/{task}/fd/{fd}"
            try:
                if not os.readlink(path).startswith("/"):
                    continue  # a pipe, a socket, ...
                if safe is None:
                    safe = self._safe_mounts(task)
                if _mount_of(task, fd, self._root) not in safe:
                    continue
                found = os.stat(path)
            except OSError:
                continue
            if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
                yield fd, DeviceNumber("c" if stat.S_ISCHR(found.st_mode) else "b", found.st_rdev)

    def _safe_mounts(self, task: str) -> set[int]:
        """Ids of the mounts in its namespace whose file system answers without asking anybody."""
        namespace = _namespace(task, self._root)
        if namespace not in self._safe:
            mounts = mountinfo.read(self._root, task)
            self._safe[namespace] = {mount.id for mount in mounts if not mountinfo.can_hang(mount.kind)}
        return self._safe[namespace]


def _mount_of(task: str, fd: str, proc_root: str) -> int:
    info = os.open(f"{proc_root}/{task}/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        match = _MOUNT_ID.search(os.read(info, 4096))
    finally:
        os.close(info)
    return int(match.group(1)) if match else -1


def of_sockets(inodes: Collection[int], *, proc_root: str = "/proc") -> dict[int, list[Holder]]:
    """By inode: processes with a descriptor of that socket. One look for all of them."""
    links = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, list[Holder]] = {}
    for pid in _pids(proc_root) if links else []:
        task, having = _task(pid, proc_root), dict[int, str]()
        for fd in _descriptors(task, proc_root):
            with contextlib.suppress(OSError):
                inode = links.get(os.readlink(f"{proc_root}/{task}/fd/{fd}"))
                if inode is not None:
                    having.setdefault(inode, fd)
        process = proc.process(pid, proc_root) if having else None
        for inode, fd in having.items() if process else ():
            assert process is not None
            found.setdefault(inode, []).append(Holder(pid, process.name, process.started, f"fd {fd}"))
    return found


def of_mount(mount: int, point: str, *, proc_root: str = "/proc") -> list[Holder]:
    """Processes of our mount namespace that keep the mount with that id, at `point`, busy."""
    found = []
    for pid in _pids(proc_root):
        how = _uses(_task(pid, proc_root), mount, point, proc_root)
        process = proc.process(pid, proc_root) if how else None
        if process is not None:
            found.append(Holder(process.pid, process.name, process.started, how))
    return found


def _uses(task: str, mount: int, point: str, proc_root: str) -> str:
    for fd in _descriptors(task, proc_root):
        with contextlib.suppress(OSError):
            if _mount_of(task, fd, proc_root) == mount:
                return f"fd {fd}"
    for link, how in (("cwd", "current directory"), ("root", "root directory"), ("exe", "program file")):
        with contextlib.suppress(OSError):
            if is_below(os.readlink(f"{proc_root}/{task}/{link}"), point):
                return how
    with contextlib.suppress(OSError):
        maps = Path(proc_root, task, "maps").read_text(encoding="utf-8", errors="surrogateescape")
        for line in maps.split("\n"):
            if is_below(line[line.find("/") :], point) and "/" in line:
                return "mapped file"
    return ""


class Sought(NamedTuple):
    """A mount of ours that was taken off: what its copies look like in other mount namespaces."""

    point: str
    device: str
    is_it: Callable[[Mount], bool] = lambda _: False
    """Whether a mount of that device is one, wherever it lies: the number may be another device's by now."""
    mark: str = ""
    """`NAME=VALUE` of the variables of who has it, where others may have such a mount too."""


def of_copies(sought: Collection[Sought], *, proc_root: str = "/proc") -> dict[str, list[Holder]]:
    """By point: one process of each other mount namespace that has a copy, as a container has it elsewhere.

    In one look for all of them, since that goes by every process.
    """
    done, devices = {_namespace("self", proc_root), ""}, {one.device for one in sought}
    ours = {(mount.point, mount.device) for mount in mountinfo.read(proc_root, devices=devices)}
    doubtful: dict[str, set[Sought]] = {}
    found: dict[str, list[Holder]] = {}
    for pid in _pids(proc_root) if sought else []:
        task = _task(pid, proc_root)
        namespace = _namespace(task, proc_root)
        if namespace in done:
            continue
        with contextlib.suppress(OSError):
            copied: set[Sought] = set()
            if namespace not in doubtful:
                mounts = mountinfo.read(proc_root, task, devices)
                judged = {one: _has_copy(one, mounts, ours) for one in sought}
                copied = {one for one, has in judged.items() if has}
                doubtful[namespace] = {one for one, has in judged.items() if has is None}
            told = partial(proc.has_environment, task, proc_root=proc_root)
            said = {one for one in doubtful[namespace] if told(one.mark)}
            doubtful[namespace] -= said
            if not doubtful[namespace]:
                done.add(namespace)
            process = proc.process(pid, proc_root) if copied or said else None
            for one in copied | said if process else ():
                assert process is not None
                holder = Holder(process.pid, process.name, process.started, f"mount namespace {namespace}")
                found.setdefault(one.point, []).append(holder)
    return found


def _has_copy(sought: Sought, mounts: Iterable[Mount], ours: Collection[tuple[str, str]]) -> bool | None:
    """Whether it is among the mounts of a namespace; None: one like it is."""
    like = False
    for mount in mounts:
        if mount.device == sought.device:
            if mount.point.endswith(sought.point):
                return True
            like |= sought.is_it(mount) and (mount.point, mount.device) not in ours
    return None if like and sought.mark else like


def is_below(path: str, point: str) -> bool:
    """Whether a path, as text, is `point` or below it."""
    return path == point or path.startswith(point.rstrip("/") + "/")


def _pids(proc_root: str) -> list[int]:
    return [int(name) for name in os.listdir(proc_root) if name.isdecimal()]


def _task(pid: int, proc_root: str) -> str:
    """The folder below /proc that tells of a process: its own, or that of a thread that has not ended."""
    if not _namespace(pid, proc_root):
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"{proc_root}/{pid}/task"):
                if _namespace(task := f"{pid}/task/{thread}", proc_root):
                    return task
    return str(pid)


def _namespace(pid: int | str, proc_root: str) -> str:
    try:
        return os.readlink(f"{proc_root}/{pid}/ns/mnt")
    except OSError:
        return ""


def _descriptors(task: str, proc_root: str) -> Iterator[str]:
    try:
        yield from os.listdir(f"{proc_root}/{task}/fd")
    except OSError:
        return
