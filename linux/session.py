"""The processes of a session and those that left it, where there is no control group to hold them.

A makeshift for runs without root: it finds processes by their session or by an environment entry that they
were started with, so one that changes both is missed, and one that forks fast enough outruns it. Same methods
as `Cgroup`.
"""

import os
import signal
from typing import NamedTuple

from xce.linux import proc


class Session(NamedTuple):
    """The session that `leader` began; `mark` is a NAME=VALUE that all its processes inherited."""

    leader: int
    mark: str
    proc_root: str = "/proc"

    def pids(self) -> list[int]:
        """Live processes; zombies left out."""
        return [found.pid for found in self._members()]

    def populated(self) -> bool:
        """Whether a live process is left."""
        return bool(self._members())

    def signal(self, number: int) -> int:
        """Send a signal to every process; says how many got it.

        A pid is held by a pidfd and looked at again before the signal, since it may have gone to a stranger.
        """
        sent = 0
        for member in self._members():
            try:
                fd = os.pidfd_open(member.pid)
            except OSError:
                continue
            try:
                now = proc.process(member.pid, self.proc_root)
                if now is not None and now.started == member.started:
                    signal.pidfd_send_signal(fd, number)
                    sent += 1
            except OSError:
                continue
            finally:
                os.close(fd)
        return sent

    def kill(self) -> None:
        """SIGKILL to all that are there now; to be repeated until none is left."""
        self.signal(signal.SIGKILL)

    def _members(self) -> list[proc.Process]:
        return [
            found
            for found in proc.processes(self.proc_root)
            if found.state not in ("Z", "X")
            and (found.session == self.leader or proc.has_environment(found.pid, self.mark, self.proc_root))
        ]
