"""One process of the probe: started, told what to do, and ended in peace.

It leaves at the end of its control pipe; who does not go within the grace gets TERM, and KILL after as long
again. Orders are answered by the process, or by its end: what is not there holds no handle.
"""

import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

import xce.agent
from xce.agent.probe.frame import CONTROL_FD, FRAME_BYTES, Launch, Line, Order
from xce.linux import proc
from xce.linux.cgroup import Cgroup
from xce.linux.loop import Loop, Timer
from xce.linux.reaper import Reaper
from xce.reporters.run import Start
from xce.reporters.stream import Stream, StreamOwner

PROCESSES = 64
COMMAND = (sys.executable, "-P", "-m", "xce.agent.probe.main")
MARK = f"XCE_PROBE={secrets.token_hex(8)}"
"""In the environment of this agent's probes, and of no other agent's on this machine."""

Done = Callable[[str], object]


class Child:
    """A started probe. Raises OSError or ValueError from the constructor if it cannot be started."""

    def __init__(
        self,
        loop: Loop,
        reaper: Reaper,
        owner: StreamOwner,
        launch: Launch,
        *,
        command: Sequence[str],
        group: Cgroup | None,
        patience: float,
    ) -> None:
        self._loop, self._grace = loop, launch.settings.grace
        self._orders: dict[int, Done] = {}
        self._number = 0
        self._leaving: Timer | None = None
        theirs, self._control = os.pipe()
        os.set_blocking(self._control, False)
        try:
            if group is not None:
                _limit(group, launch.settings.recycle_memory_mb)
            start = Start(
                command=[*(command or COMMAND), msgspec.json.encode(launch).decode()],
                environment=_environment(launch.settings.environment),
                group=group,
                mark=MARK,
                line_bytes=FRAME_BYTES,
                patience=patience,
            )
            self.run = Stream(loop, reaper, owner, start, {CONTROL_FD: theirs})
        except (OSError, ValueError):
            self._close_control()
            raise
        finally:
            os.close(theirs)

    @property
    def pid(self) -> int | None:
        """Of its process; None if that has ended."""
        return self.run.child.pid if self.run.child.alive else None

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return proc.resident_bytes(self.pid) if self.pid else 0

    def tell(self, do: str, done: Done | None = None) -> None:
        """Give an order. `done('')` when it was carried out, `done(reason)` if that cannot be."""
        self._number += 1
        if done is not None:
            self._orders[self._number] = done
            self._loop.call_later(self._grace, self._unanswered, self._number)
        line = msgspec.json.encode(Order(do=do, number=self._number)) + b"\n"
        try:
            os.write(self._control, line)
        except OSError:  # it reads no orders: it is leaving, or hangs
            self._unanswered(self._number)

    def answered(self, line: Line) -> None:
        """It has carried out an order, or says why not."""
        if done := self._orders.pop(line.number, None):
            if line.error:
                self._enforce(done)
            else:
                done("")

    def leave(self) -> None:
        """Let it go in peace."""
        self._close_control()
        if self._leaving is None:
            self._leaving = self._loop.call_later(self._grace, self.run.end, self._grace)

    def end(self) -> None:
        """TERM now, KILL after the grace."""
        self._close_control()
        self.run.end(self._grace)

    def gone(self, why: str = "") -> None:
        """Nothing of it is left; or, with `why`, nothing more can be done about it."""
        self._close_control()
        if self._leaving is not None:
            self._leaving.cancel()
        orders, self._orders = self._orders, {}
        for done in orders.values():
            done(why)

    def _unanswered(self, number: int) -> None:
        if done := self._orders.pop(number, None):
            self._enforce(done)

    def _enforce(self, done: Done) -> None:
        """It did not do it: its end does."""
        self._number += 1
        self._orders[self._number] = done
        self.end()

    def _close_control(self) -> None:
        if self._control >= 0:
            os.close(self._control)
            self._control = -1


def _limit(group: Cgroup, memory_mb: int) -> None:
    """Bounds that only a probe gone wild reaches."""
    group.create()
    group.limit("memory.max", 2 * memory_mb << 20)
    group.limit("pids.max", PROCESSES)


def _environment(more: Mapping[str, str]) -> Mapping[str, str]:
    """The same whatever the agent was started with, but for where its modules and libraries are."""
    root = str(Path(xce.agent.__file__).parents[2])
    fixed = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "PYTHONPATH": root}
    name, _, value = MARK.partition("=")
    library = os.environ.get("LD_LIBRARY_PATH")
    return {**fixed, **({"LD_LIBRARY_PATH": library} if library else {}), **more, name: value}
