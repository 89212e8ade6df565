"""Bringing a group of processes to its end: TERM, grace, KILL, and looking until nothing is left.

Nothing here waits, and what cannot be done now, because descriptors are used up, is done at the next look. A
process that the kernel cannot kill (state D: a dead file server, a stuck driver) is reported once as stuck,
with where in the kernel it sleeps, and looked for now and then until it is gone after all.
"""

import contextlib
import signal
from collections.abc import Callable
from typing import Protocol

import msgspec

from xce.linux import proc
from xce.linux.loop import Loop, Timer

FIRST_LOOK, LONGEST_LOOK, STUCK_LOOK = 0.005, 0.2, 1.0
"""Seconds between looks: doubling from the first, and once it is stuck."""
PATIENCE = 5.0
"""Seconds after KILL before a process counts as unkillable."""
NAMED = 16
"""Stuck processes that are told one by one."""


class Group(Protocol):
    """Processes that belong together: `linux.cgroup.Cgroup`, or `linux.session.Session` without one."""

    def pids(self) -> list[int]:
        """Live processes."""

    def populated(self) -> bool:
        """Whether there are any."""

    def signal(self, number: int) -> int:
        """Send a signal to all; says how many got it."""

    def kill(self) -> None:
        """SIGKILL to all."""


class Stuck(msgspec.Struct, frozen=True, kw_only=True):
    """A process that outlived SIGKILL."""

    pid: int
    name: str
    state: str
    """As in ps(1): D means that it waits in the kernel and cannot be interrupted."""
    wait_channel: str
    """Kernel function in which it waits; '' if that cannot be seen."""

    def __str__(self) -> str:
        where = f" in {self.wait_channel}" if self.wait_channel else ""
        return f"pid {self.pid} ({self.name}, state {self.state}{where})"


class Ending:
    """Ends a group. Calls `on_end()` once when it is empty, `on_stuck(list)` at most once before that.

    `also` says whether something outside the group must end, too, and sends it a signal: the child that may
    not have joined yet. `grace` seconds pass between TERM and KILL; 0: KILL at once.
    """

    def __init__(
        self,
        loop: Loop,
        group: Group,
        *,
        grace: float,
        on_end: Callable[[], object],
        on_stuck: Callable[[list[Stuck]], object],
        also: Callable[[int], bool] = lambda _: False,
        patience: float = PATIENCE,
    ) -> None:
        self._loop, self._group, self._also = loop, group, also
        self._on_end, self._on_stuck = on_end, on_stuck
        self._patience = patience
        self._pause = FIRST_LOOK
        self._killed_at: float | None = None
        self.stuck = False
        """Whether it was told that something cannot be killed."""
        self.named: list[Stuck] = []
        """What that was."""
        self._kill_timer: Timer | None = None
        self._timer: Timer | None = loop.call_later(0, self._look)
        if grace > 0:
            self._kill_timer = loop.call_later(grace, self.kill)
            with contextlib.suppress(OSError):
                if not self._group.signal(signal.SIGTERM):
                    self._also(signal.SIGTERM)
        else:
            self.kill()

    def kill(self) -> None:
        """KILL now."""
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        if self._killed_at is None:
            self._killed_at = self._loop.now()
            self._pause = FIRST_LOOK
        with contextlib.suppress(OSError):  # each look does it again
            self._group.kill()
            self._also(signal.SIGKILL)

    def look(self) -> None:
        """Look at once: something has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._look()

    def _look(self) -> None:
        if self._empty():
            self._timer = None
            if self._kill_timer is not None:
                self._kill_timer.cancel()
            self._on_end()
            return
        self._pause = STUCK_LOOK if self.stuck else min(self._pause * 2, LONGEST_LOOK)
        self._timer = self._loop.call_later(self._pause, self._look)
        if self._killed_at is not None:
            # Once more: a fork may have been under way, and old kernels have no cgroup.kill.
            self.kill()
            if not self.stuck and self._loop.now() - self._killed_at >= self._patience:
                self._tell_stuck()

    def _tell_stuck(self) -> None:
        try:
            self.named = describe(self._group.pids())
        except OSError:
            return  # told at the next look
        self.stuck = True
        self._on_stuck(self.named)

    def _empty(self) -> bool:
        try:
            return not self._also(0) and not self._group.populated()
        except OSError:
            return False


def describe(pids: list[int], proc_root: str = "/proc") -> list[Stuck]:
    """What is known of processes that are still there."""
    found = (proc.process(pid, proc_root) for pid in pids[:NAMED])
    return [
        Stuck(pid=one.pid, name=one.name, state=one.state, wait_channel=proc.wait_channel(one.pid, proc_root))
        for one in found
        if one is not None
    ]
