"""Control groups, version 2: make, look into, signal, kill, limit and remove them. No call waits.

`kill` and `remove` start something that the kernel finishes when it can: look again later. A group that is
gone reads as empty. See the kernel's admin-guide/cgroup-v2.
"""

import errno
import fcntl
import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from xce.linux import mountinfo, proc

_EVENTS = 512
"""Bytes that are read of cgroup.events, which has two short lines."""
_HELD = 32
"""Processes that are held at a time: there may be more of them than we may have descriptors."""


class Cgroup(NamedTuple):
    """The control group at `path`, a directory of a cgroup2 file system. It need not exist yet."""

    path: str

    def child(self, name: str) -> "Cgroup":
        """The group `name` below this one."""
        return Cgroup(f"{self.path}/{name}")

    def parent(self) -> "Cgroup":
        """The group above."""
        return Cgroup(os.path.dirname(self.path))

    def create(self) -> bool:
        """Make the group unless it is there (False); its parent must exist."""
        try:
            os.mkdir(self.path, 0o755)
        except FileExistsError:
            return False
        return True

    def genuine(self) -> bool:
        """Whether the directory is one of a cgroup2 file system: those of version 1 lack this file."""
        return os.path.exists(f"{self.path}/cgroup.controllers")

    def exists(self) -> bool:
        """Whether it is there."""
        return os.path.isdir(self.path)

    def children(self) -> list["Cgroup"]:
        """Groups directly below."""
        try:
            with os.scandir(self.path) as entries:
                return [Cgroup(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    @property
    def name(self) -> str:
        """Last element of the path."""
        return os.path.basename(self.path)

    def pids(self) -> list[int]:
        """All processes in it and below it, zombies left out."""
        found = self.own_pids()
        for child in self.children():
            found += child.pids()
        return found

    def ids(self) -> set[int]:
        """The kernel's numbers of it and of those below it; {} if it is gone."""
        try:
            found = {os.stat(self.path).st_ino}
        except FileNotFoundError:
            return set()
        return found.union(*(child.ids() for child in self.children()))

    def own_pids(self) -> list[int]:
        """Processes in it, without those in groups below."""
        return [int(pid) for pid in self._read("cgroup.procs").split()]

    def populated(self) -> bool:
        """Whether a live process is in it or below it."""
        return "populated 1" in self._read("cgroup.events")

    def signal(self, number: int) -> int:
        """Send a signal to every process in it and below it; says how many got it.

        A pid read from the list may end and be given to a stranger: each is held by a pidfd, and only those
        that are still listed after that get the signal.
        """
        pids = self.pids()
        return sum(
            self._signal_some(pids[begin : begin + _HELD], number) for begin in range(0, len(pids), _HELD)
        )

    def _signal_some(self, pids: list[int], number: int) -> int:
        held: dict[int, int] = {}
        sent = 0
        try:
            for pid in pids:
                try:
                    held[pid] = os.pidfd_open(pid)
                except OSError:
                    continue
            for pid in set(self.pids()) & set(held):
                try:
                    signal.pidfd_send_signal(held[pid], number)
                    sent += 1
                except OSError:
                    continue
        finally:
            for fd in held.values():
                os.close(fd)
        return sent

    def kill(self) -> None:
        """SIGKILL to all in it and below it, those being forked included (cgroup.kill, Linux 5.14)."""
        try:
            self._write("cgroup.kill", "1")
        except FileNotFoundError:
            if self.exists():  # an older kernel: as often as the caller looks again
                self.signal(signal.SIGKILL)

    def remove(self) -> bool:
        """Remove it and the groups below; False if a process is still in it (call again later)."""
        if self._removed():
            return True
        emptied = [child.remove() for child in self.children()]  # most of the time there are none
        return bool(emptied) and all(emptied) and self._removed()

    def _removed(self) -> bool:
        try:
            os.rmdir(self.path)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
                return False
            raise
        return True

    def controllers(self) -> set[str]:
        """Controllers that limits can be set with in this group."""
        return set(self._read("cgroup.controllers").split())

    def enable(self, controllers: set[str]) -> set[str]:
        """Hand controllers on to the groups below; those that work there now."""
        for name in sorted(controllers & self.controllers()):
            try:
                self._write("cgroup.subtree_control", f"+{name}")
            except OSError:
                continue  # processes of its own, or not ours to give
        return controllers & set(self._read("cgroup.subtree_control").split())

    def limit(self, file: str, value: int | str) -> bool:
        """Set a limit such as `pids.max`; False if its controller is not there, or not ours."""
        try:
            self._write(file, str(value))
        except (FileNotFoundError, PermissionError):
            return False
        return True

    def claim(self) -> int:
        """A descriptor that says that the group is ours until it is closed.

        Raises `BlockingIOError` if it is somebody else's. Binds only those who ask; ends with the process.
        Whoever may open the directory could lock it and keep us out: others may pass through it and no more.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fchmod(fd, 0o711)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd

    def enter(self) -> None:
        """Move the calling process into it."""
        self._write("cgroup.procs", "0")

    def writable(self) -> bool:
        """Whether we may make groups below it."""
        return os.access(self.path, os.W_OK)

    def _read(self, file: str) -> str:
        try:
            return proc.content(f"{self.path}/{file}").decode("ascii")
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
                return ""  # gone, just going, or a threaded group
            raise

    def _write(self, file: str, text: str) -> None:
        fd = os.open(f"{self.path}/{file}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)


class Inhabited:
    """The group `group` for somebody who asks often whether it is populated: one read, and no look-up.

    Otherwise the same as `Cgroup`. Holds a descriptor until `close`. `on_loss()` is called when the group is
    not the one that was asked about before: somebody has removed it, and perhaps made it anew without limits.
    """

    def __init__(self, group: Cgroup, on_loss: Callable[[], object] = lambda: None) -> None:
        self.group, self._on_loss = group, on_loss
        self.pids, self.signal, self.kill = group.pids, group.signal, group.kill
        self._events = -1

    def populated(self) -> bool:
        """Whether a live process is in it or below it."""
        try:
            if self._events < 0:
                self._events = os.open(f"{self.group.path}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
            return b"populated 1" in os.pread(self._events, _EVENTS, 0)
        except OSError:
            self.close()
            self._on_loss()
            return self.group.populated()

    def close(self) -> None:
        """Let go of the descriptor; may be called twice."""
        if self._events >= 0:
            os.close(self._events)
            self._events = -1


def own(proc_root: str = "/proc", pid: int | str = "self") -> Cgroup | None:
    """The version 2 group that a process (the caller) is in; None if there is none that we can see."""
    lines = proc.content(f"{proc_root}/{pid}/cgroup").decode().splitlines()
    inside = next((line[3:] for line in lines if line.startswith("0::")), None)
    if inside is None:
        return None
    for mount in mountinfo.read(proc_root):
        if mount.kind == "cgroup2" and (
            inside == mount.root or inside.startswith(mount.root.rstrip("/") + "/")
        ):
            return Cgroup((mount.point + inside[len(mount.root.rstrip("/")) :]).rstrip("/"))
    return None
