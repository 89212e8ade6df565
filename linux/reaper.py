"""The only place that waits for processes: every child that has ended is reaped, ours and orphans alike.

The process becomes a child subreaper, so that orphans of our children come to us and not to a PID 1 that may
not reap. In a program with a `Reaper`, nothing else may wait (`subprocess` would lose its exit statuses).
"""

import os
import signal
from collections.abc import Callable
from typing import NamedTuple

import prctl

from xce.linux import syscalls
from xce.linux.loop import Loop
from xce.linux.spawn import Child

_PER_TURN = 1000
"""A fork bomb's orphans must not keep the loop from everything else."""


class Exit(NamedTuple):
    """How a process ended: `status` 0 to 255, or, if `signal` is not 0, killed by it."""

    status: int = 0
    signal: int = 0

    def __str__(self) -> str:
        if not self.signal:
            return f"exit status {self.status}"
        try:
            return f"killed by {signal.Signals(self.signal).name}"
        except ValueError:
            return f"killed by signal {self.signal}"


WELL = Exit()


class Reaper:
    """Tells the end of watched children; reaps and counts all others (`orphans`).

    To be made before another thread is started: see `Loop.on_signal`.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.watched: dict[int, tuple[Child, Callable[[Exit], object]]] = {}
        """Whose end is told to whom."""
        self.orphans = 0
        prctl.set_child_subreaper(True)
        loop.on_signal(signal.SIGCHLD, self.reap)
        loop.call_later(0, self.reap)

    def __len__(self) -> int:
        return len(self.watched)

    def watch(self, child: Child, callback: Callable[[Exit], object]) -> None:
        """Call `callback(exit)` once `child` has ended and is reaped.

        To be called in the same turn as `spawn`: an unwatched child is an orphan like any other.
        """
        self.watched[child.pid] = (child, callback)

    def reap(self) -> None:
        """Reap whoever has ended; callbacks run here."""
        for _ in range(_PER_TURN):
            if not self.watched and syscalls.childless():  # mostly, after the one that it was about
                return
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                return
            if ended is None:
                return
            entry = self.watched.pop(ended.si_pid, None)
            if entry is None:
                self.orphans += 1
                continue
            child, callback = entry
            child.alive = False
            if ended.si_code != os.CLD_EXITED:
                how = Exit(signal=ended.si_status)
            else:
                how = Exit(status=ended.si_status) if ended.si_status else WELL
            try:
                callback(how)
            except Exception as error:  # noqa: BLE001 - the other ended children must be told too
                self._loop.on_error(error, callback)
        self._loop.call_later(0, self.reap)
