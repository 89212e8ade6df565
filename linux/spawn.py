"""The one process starter of the tree: posix_spawn, never fork.

A child gets its own session, default signals, an empty signal mask, and only the descriptors given; 0, 1 and
2 are /dev/null unless given. What a child may do beyond that (user, limits, cgroup) is its command line's
business: see `xce.reporters.cage`. Whoever spawns hands the child to the `Reaper`; nobody waits.
"""

import errno
import fcntl
import os
import signal
from collections.abc import Mapping

from xce.linux import syscalls

_NULL = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
_IGNORED = [int(number) for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
"""Signals that the interpreter, or who started it, ignores; we never do. All others are a child's defaults
without a word: a list of all would be gone through at each start."""


class Child:
    """A started process.

    Its number cannot go to a stranger before we have reaped it, and only the reaper does that: a pidfd would
    say nothing more. After its end no signal is sent to that number. Who works in another thread than the
    reaper's has no such order of things, and goes by a pidfd (`prepare/child.py`).
    """

    __slots__ = ("alive", "pid")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.alive = True
        """Until the reaper has told its end."""

    def signal(self, number: int) -> bool:
        """Send a signal to this one process; False if it has been reaped."""
        if self.alive:
            os.kill(self.pid, number)
        return self.alive


def spawn(
    argv: list[str] | list[bytes], env: Mapping[str, str] | Mapping[bytes, bytes], *, fds: Mapping[int, int]
) -> Child:
    """Start `argv[0]` (a path) and return at once.

    `fds` maps the child's descriptor numbers to ours. Raises OSError with the reason of the failed exec
    (ENOENT, EACCES, ENOEXEC, ETXTBSY, EAGAIN, ...); then there is no child.
    """
    syscalls.close_on_exec_from(3)
    lifted: list[int] = []
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = []
    try:
        for theirs, ours in fds.items():
            if ours <= 2 or (ours in fds and ours != theirs):  # the child's own will be there by then
                ours = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, max(*fds, 2) + 1)  # noqa: PLW2901
                lifted.append(ours)
            actions.append((os.POSIX_SPAWN_DUP2, ours, theirs))
        for null in _NULL:
            if null[1] not in fds:
                actions.append(null)  # noqa: PERF401 - a comprehension is one call more
        pid = os.posix_spawn(
            argv[0], argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_IGNORED
        )
        return Child(pid)
    finally:
        for fd in lifted:
            os.close(fd)


def handle(child: Child) -> int:
    """A pidfd of a child that was just started, for whoever is in another thread than the reaper's.

    Raises ChildProcessError if the reaper was faster: its number may be a stranger's by then, and only who
    can be waited for is ours.
    """
    try:
        fd = os.pidfd_open(child.pid)
    except ProcessLookupError as error:
        raise ChildProcessError(errno.ECHILD, "the child that was started has died") from error
    try:
        os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError as error:
        os.close(fd)
        raise ChildProcessError(errno.ECHILD, "the child that was started has died") from error
    return fd
