"""From a candidate to a run: open the checked file once more, make directory and control group, start it.

The look at the directory has checked the whole path and hashed the file. Here the file is opened and must be
the very one: same inode, size, owner, mode, and times of change, which nobody can set back. So what runs is
what was checked and what the shown hash is of, whoever has done what to the path since; and it runs from this
descriptor, whatever lies at the path by then. A script that lies where opening could hang runs from the copy
that the look made; one that has come to lie there since is looked at again first. Everything raises OSError
or ValueError, and then nothing runs.
"""

import contextlib
import errno
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from xce.linux import cgroup, mountinfo, paths, syscalls
from xce.linux.mountinfo import Mount
from xce.model.configuration import Mode
from xce.reporters import cage
from xce.reporters.common import Shared
from xce.reporters.directory import Candidate, signature_of
from xce.reporters.frame import LIMITS
from xce.reporters.oneshot import OneShot, OneShotOwner
from xce.reporters.run import Start
from xce.reporters.stream import Stream, StreamOwner

MODE = 0o700
"""Of a reporter's own directory."""
GROUP = "reporter-"
"""Before a reporter's name in that of its control group, where the kernel's files are (`pids.max`)."""


class ChangedError(OSError):
    """The file is not the one that was looked at any more."""


class Wanted(NamedTuple):
    """What a run is started from."""

    candidate: Candidate
    person: cage.Person
    interval: float
    timeout: float
    expected: Sequence[str]
    own_user: bool
    """Whether no other reporter runs as the same user."""


class Owner(OneShotOwner, StreamOwner, Protocol):
    """Of runs of both kinds."""


class Launcher:
    """Starts the runs of one reporter, one by one; what does not change between them is made once."""

    def __init__(self, shared: Shared, name: str) -> None:
        self._shared = shared
        self.directory = os.path.join(shared.state_directory, "reporters", name)
        """The reporter's own, which it may write to."""
        group = shared.group.child(GROUP + name) if shared.group else None
        self.group = cgroup.Inhabited(group, on_loss=self.forget) if group else None
        self._made_for: Wanted | None = None
        self._start = Start([], {}, None, "", 0)
        self._safe_among: Mapping[str, Mount] | None = None
        """The mounts among which opening the script cannot hang."""

    def launch(self, owner: Owner, wanted: Wanted) -> OneShot | Stream:
        """Start a run; see the module for what is raised."""
        if self._made_for is not wanted:
            self._make(wanted)
        script = self._open(wanted.candidate)
        try:
            loop, reaper, fds = self._shared.loop, self._shared.reaper, {cage.SCRIPT_FD: script}
            if wanted.candidate.settings.mode is Mode.ONE_SHOT:
                return OneShot(loop, reaper, owner, self._start, fds, timeout=wanted.timeout)
            return Stream(loop, reaper, owner, self._start, fds)
        finally:
            os.close(script)

    def forget(self) -> None:
        """Make directory, group and limits anew at the next start: somebody may have taken them away."""
        self._made_for = None

    def close(self) -> None:
        """Let go of what is held between runs."""
        if self.group is not None:
            self.group.close()

    def _open(self, candidate: Candidate) -> int:
        if candidate.copy:  # where it lies, opening it could hang
            return syscalls.sealed_file(candidate.name, candidate.copy)
        mounts = self._shared.mounts.tops()
        if mounts is not self._safe_among:
            if (mount := mountinfo.may_hang(os.path.dirname(candidate.path), mounts)) is not None:
                raise ChangedError(f"{candidate.path} lies on {mount.kind} from {mount.source} now")
            self._safe_among = mounts
        # O_NONBLOCK: a FIFO in its place must not hold us up.
        how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            script = os.open(candidate.path, how)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            raise ChangedError(error.errno, error.strerror, candidate.path) from error
        if signature_of(os.fstat(script)) != candidate.signature:
            os.close(script)
            raise ChangedError(f"{candidate.path} has just changed")
        return script

    def _make(self, wanted: Wanted) -> None:
        user = wanted.person.user
        self._make_directory(*((user.uid, user.gid) if user else (os.geteuid(), os.getegid())))
        group = self.group.group if self.group else None
        command = cage.command(
            wanted.person,
            self._limit(group, wanted),
            group=group.path if group else "",
            directory=self.directory,
            arguments=wanted.candidate.settings.arguments,
        )
        environment = cage.environment(
            wanted.candidate,
            wanted.person,
            self._shared.node,
            directory=self.directory,
            interval=wanted.interval,
            timeout=wanted.timeout,
            expected=wanted.expected,
        )
        elim = wanted.candidate.settings.mode is Mode.ELIM
        self._start = Start(
            command=[os.fsencode(word) for word in command],
            environment={  # what a loader obeys would be obeyed by the cage's own, as root: see cage.c
                b"+" + os.fsencode(name): os.fsencode(text) for name, text in environment.items()
            },
            group=self.group,
            mark=f"XCE_STATE_DIR={self.directory}",
            line_bytes=LIMITS.elim_bytes if elim else LIMITS.frame_bytes,
            patience=self._shared.patience,
        )
        self._made_for, self._safe_among = wanted, None

    def _make_directory(self, uid: int, gid: int) -> None:
        """The reporter's own, unless it is there; nobody waits for a disk that does not answer."""
        if (mount := mountinfo.may_hang(self.directory, self._shared.mounts.tops())) is not None:
            words = f"is on {mount.kind} from {mount.source} now, which may hang"
            raise OSError(errno.EIO, words, self.directory)
        if paths.is_directory_of(self.directory, uid, gid, MODE):
            return
        outcome: list[OSError | None] = []

        def make() -> None:
            try:
                if not os.path.isdir(above := os.path.dirname(self.directory)):
                    os.makedirs(above, 0o755, exist_ok=True)
                _set_aside(self.directory, uid)
                paths.make_directory(self.directory, uid, gid, MODE)
            except OSError as error:
                outcome.append(error)
            else:
                outcome.append(None)

        self._shared.write(self.directory, make)
        if not outcome:
            raise OSError(errno.EIO, "its disk does not answer (dmesg)", self.directory)
        if outcome[0] is not None:
            raise outcome[0]

    def _limit(self, group: cgroup.Cgroup | None, wanted: Wanted) -> dict[int, int]:
        limits = wanted.candidate.settings.limits
        if group is not None:
            group.create()
        return cage.bounds(
            limits,
            memory_held=bool(group and group.limit("memory.max", limits.memory_mb << 20)),
            processes_held=bool(group and group.limit("pids.max", limits.processes)),
            own_user=wanted.own_user,
        )


def _set_aside(directory: str, uid: int) -> None:
    """Move it away if it is of another user, who may have left links in it for the next to follow."""
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(directory)
        if found.st_uid not in (0, uid):
            above, name = os.path.split(directory)
            os.rename(directory, f"{above}/.{name}-of-uid-{found.st_uid}-{found.st_ino}")
