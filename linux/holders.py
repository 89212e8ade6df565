"""Who uses a device or a mount: read from /proc of all processes, without touching any file system.

A process that ends while it is looked at is left out. Nothing here can hang: links below /proc/PID are read
as text and descriptors by their fdinfo; no path of a process is opened. Kernel threads and loop devices that
sit on a file show nowhere.
"""

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from xce.linux import mountinfo, proc

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


def devices_of(pids: Collection[int], *, proc_root: str = "/proc") -> list[tuple[Holder, int]]:
    """Every descriptor of a character device that these processes have open, with its number."""
    safe: dict[str, set[int]] = {}
    found = []
    for process in filter(None, (proc.process(pid, proc_root) for pid in pids)):
        for fd in _descriptors(process.pid, proc_root):
            rdev = _device(process.pid, fd, stat.S_IFCHR, safe, proc_root)
            if rdev >= 0:
                how = f"fd {fd} on {os.major(rdev)}:{os.minor(rdev)}"
                found.append((Holder(process.pid, process.name, process.started, how), rdev))
    return found


def of_device(
    devices: Collection[int], *, kind: int = stat.S_IFCHR, proc_root: str = "/proc"
) -> list[Holder]:
    """Processes with an open descriptor of a device whose number (`os.makedev`) is in `devices`."""
    safe: dict[str, set[int]] = {}
    found = []
    for process in proc.processes(proc_root):
        for fd in _descriptors(process.pid, proc_root):
            rdev = _device(process.pid, fd, kind, safe, proc_root)
            if rdev in devices:
                how = f"fd {fd} on {os.major(rdev)}:{os.minor(rdev)}"
                found.append(Holder(process.pid, process.name, process.started, how))
                break
    return found


def _device(pid: int, fd: str, kind: int, safe: dict[str, set[int]], proc_root: str) -> int:
    """The device number of a descriptor; -1 if it is none, or lies where asking could hang."""
    path = f"{proc_root}/{pid}/fd/{fd}"
    try:
        if not os.readlink(path).startswith("/") or _mount_of(pid, fd, proc_root) not in _safe_mounts(
            pid, safe, proc_root
        ):
            return -1
        found = os.stat(path)
    except OSError:
        return -1
    return found.st_rdev if stat.S_IFMT(found.st_mode) == kind else -1


def _safe_mounts(pid: int, safe: dict[str, set[int]], proc_root: str) -> set[int]:
    """Ids of the mounts in the namespace of `pid` whose file system answers without asking anybody."""
    namespace = _namespace(pid, proc_root)
    if namespace not in safe:
        mounts = mountinfo.read(proc_root, pid)
        safe[namespace] = {mount.id for mount in mounts if not mountinfo.can_hang(mount.kind)}
    return safe[namespace]


def _mount_of(pid: int, fd: str, proc_root: str) -> int:
    match = _MOUNT_ID.search(Path(proc_root, str(pid), "fdinfo", fd).read_bytes())
    return int(match.group(1)) if match else -1


def of_mount(mount: int, point: str, *, proc_root: str = "/proc") -> list[Holder]:
    """Processes of our mount namespace that keep the mount with that id, at `point`, busy."""
    return [
        Holder(process.pid, process.name, process.started, how)
        for process in proc.processes(proc_root)
        if (how := _uses(process.pid, mount, point, proc_root))
    ]


def _uses(pid: int, mount: int, point: str, proc_root: str) -> str:
    for fd in _descriptors(pid, proc_root):
        with contextlib.suppress(OSError):
            if _mount_of(pid, fd, proc_root) == mount:
                return f"fd {fd}"
    for link, how in (("cwd", "current directory"), ("root", "root directory"), ("exe", "program file")):
        with contextlib.suppress(OSError):
            if is_below(os.readlink(f"{proc_root}/{pid}/{link}"), point):
                return how
    with contextlib.suppress(OSError):
        maps = Path(proc_root, str(pid), "maps").read_text(encoding="utf-8", errors="surrogateescape")
        for line in maps.splitlines():
            if is_below(line[line.find("/") :], point) and "/" in line:
                return "mapped file"
    return ""


def of_copies(point: str, device: str, *, proc_root: str = "/proc") -> list[Holder]:
    """One process of each other mount namespace that has a mount of `device` at a path ending in `point`."""
    own = _namespace("self", proc_root)
    seen, found = {own, ""}, []
    for process in proc.processes(proc_root):
        namespace = _namespace(process.pid, proc_root)
        if namespace in seen:
            continue
        seen.add(namespace)
        with contextlib.suppress(OSError):
            mounts = mountinfo.read(proc_root, process.pid)
            if any(mount.device == device and mount.point.endswith(point) for mount in mounts):
                how = f"mount namespace {namespace}"
                found.append(Holder(process.pid, process.name, process.started, how))
    return found


def is_below(path: str, point: str) -> bool:
    """Whether a path, as text, is `point` or below it."""
    return path == point or path.startswith(point.rstrip("/") + "/")


def _namespace(pid: int | str, proc_root: str) -> str:
    try:
        return os.readlink(f"{proc_root}/{pid}/ns/mnt")
    except OSError:
        return ""


def _descriptors(pid: int, proc_root: str) -> Iterator[str]:
    try:
        yield from os.listdir(f"{proc_root}/{pid}/fd")
    except OSError:
        return
