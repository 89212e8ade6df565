"""The one process starter of the tree: posix_spawn, never fork.

A child gets its own session, default signals, an empty signal mask, and only the descriptors given; 0, 1 and
2 are /dev/null unless given. What a child may do beyond that (user, limits, cgroup) is its command line's
business: see `xce.reporters.cage`. Whoever spawns hands the child to the `Reaper`; nobody waits.
"""

import fcntl
import os
import signal
from collections.abc import Mapping, Sequence

from xce.linux import syscalls

_ALL_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


class Child:
    """A started process. Its pid is its own until the reaper has told its end; `pidfd` is safe for ever."""

    __slots__ = ("pid", "pidfd")

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid, self.pidfd = pid, pidfd

    def signal(self, number: int) -> bool:
        """Send a signal to this one process; False if it has ended."""
        if self.pidfd < 0:
            return False
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        """Let go of the pidfd; may be called twice. The reaper does it after the child's end."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def spawn(argv: Sequence[str | bytes], env: Mapping[str, str], *, fds: Mapping[int, int]) -> Child:
    """Start `argv[0]` (a path) and return at once.

    `fds` maps the child's descriptor numbers to ours. Raises OSError with the reason of the failed exec
    (ENOENT, EACCES, ENOEXEC, ETXTBSY, EAGAIN, ...); then there is no child.
    """
    syscalls.close_on_exec_from(3)
    wanted, lifted = _lift(fds)
    try:
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2) if fd not in wanted
        ]
        actions += [(os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in wanted.items()]
        pid = os.posix_spawn(
            argv[0], list(argv), env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_ALL_SIGNALS
        )
    finally:
        for fd in lifted:
            os.close(fd)
    try:
        return Child(pid, os.pidfd_open(pid))
    except OSError:
        os.kill(pid, signal.SIGKILL)  # it is our unreaped child, so the number is still its own
        raise


def _lift(fds: Mapping[int, int]) -> tuple[dict[int, int], list[int]]:
    """Copies of those of our descriptors whose numbers the child will overwrite, moved out of the way."""
    above = max(fds, default=2) + 1
    wanted, lifted = dict(fds), []
    for theirs, ours in fds.items():
        if ours != theirs and (ours in fds or ours <= 2):
            wanted[theirs] = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, max(above, 3))
            lifted.append(wanted[theirs])
    return wanted, lifted
