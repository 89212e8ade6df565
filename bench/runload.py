"""A child that is an agent whose clock leaves out the time in which no reporter runs.

    python -m bench.runload DIRECTORY

All of an agent but a broker to talk to; the reporters of DIRECTORY/reporters.d run one after the other, as
fast as they can. Prints a line when they have warmed up, and one for each SIGUSR1, after `SPAN_S` seconds of
its clock: how many runs there were, and what the span cost this process. It stands still until it is asked.
"""

import heapq
import operator
import signal
import sys
import time
from collections.abc import Sized
from functools import partial
from pathlib import Path

from bench.children import say
from xce.agent.daemon import Daemon
from xce.agent.log import Log
from xce.linux.loop import Loop
from xce.model.configuration import AgentFile, AgentReporters
from xce.model.role import Role

SPAN_S = 20.0
WARM_S = 30.0


class HurriedLoop(Loop):
    """Waits for nothing but `children`.

    What is done here at each turn is measured with the agent, and is no part of it: hence few calls.
    """

    def __init__(self) -> None:
        self.ahead = 0.0
        # What `monotonic() + self.ahead` gives, without a Python function that the agent's own clock is not.
        ahead = iter(partial(getattr, self, "ahead"), None)
        super().__init__(clock=map(operator.add, iter(time.monotonic, None), ahead).__next__)
        self.children: Sized = ()

    def leap(self, now: float) -> None:
        """After a turn: if there is no child to wait for, it is the time of the next timer already."""
        if not self.children:
            timers = self._timers
            while timers[0][2].callback is None:  # cancelled: `turn` would pass over it, too
                heapq.heappop(timers)
                self.cancelled -= 1
            if timers[0][0] > now:
                self.ahead += timers[0][0] - now


class Meter:
    """Stands still until it is asked, then measures one span."""

    def __init__(self, daemon: Daemon, loop: HurriedLoop) -> None:
        self._daemon, self._loop = daemon, loop
        self._runs, self._cpu_s = 0, 0.0

    def next(self) -> None:
        """Tell of the span that is over, and wait to be asked for the next one."""
        spent, runs = time.process_time() - self._cpu_s, self._count()
        say(runs=runs - self._runs, us=spent * 1e6)
        asleep = time.monotonic()
        if signal.sigwait({signal.SIGUSR1, signal.SIGTERM}) == signal.SIGTERM:
            self._daemon.stop()
            return
        self._loop.ahead -= time.monotonic() - asleep
        self._runs = runs
        self._loop.call_later(SPAN_S, self.next)
        self._cpu_s = time.process_time()

    def _count(self) -> int:
        return sum(one["runs"] for one in self._daemon.status()["reporters"])


def main(directory: Path) -> None:
    """Run until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    settings = AgentFile(
        name="hurried",
        run_directory=str(directory / "run"),
        state_directory=str(directory / "state"),
        reporters=AgentReporters(
            directory=str(directory / "reporters.d"),
            user="nobody",
            load_indices=False,
            interval=1,
            timeout=30,
        ),
    )
    loop = HurriedLoop()
    daemon = Daemon(lambda: settings, "agent.yaml", role=Role.AGENT, logger=Log(), loop=loop)
    loop.children = daemon.reaper.watched
    loop.after_turn(loop.leap)
    loop.call_later(WARM_S, Meter(daemon, loop).next)
    daemon.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
