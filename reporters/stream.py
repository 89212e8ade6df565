"""A run that goes on: its lines are told as they come, as many a second as a sane one can have."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from xce.linux.loop import Loop
from xce.linux.reaper import Reaper
from xce.reporters.ending import Stuck
from xce.reporters.frame import Lines, TooLong
from xce.reporters.run import Run, RunOwner, Start

STREAM_PER_S, FRAMES_PER_S, BUSY_PER_S = 8 << 20, 100, 0.1
"""Bytes, lines and seconds of our time that it has in a second; beyond that its full pipe slows it down."""


class StreamOwner(RunOwner, Protocol):
    """What a stream tells beside that."""

    def line(self, line: bytes | TooLong, number: int) -> None:
        """A line, as it comes; `number` from 1."""


class Silence:
    """Calls `told(why)` once nothing was heard for `limit()` seconds; looks only when that may be."""

    def __init__(self, loop: Loop, limit: Callable[[], float], told: Callable[[str], object]) -> None:
        self._loop, self._limit, self._told = loop, limit, told
        self.heard = loop.now()
        """When something was heard last."""
        self._timer = loop.call_at(self.heard + limit(), self._look)

    def _look(self) -> None:
        limit = self._limit()
        if self.heard + limit > self._loop.now():
            self._timer = self._loop.call_at(self.heard + limit, self._look)
        else:
            self._told(f"printed no frame for {limit:g} s")

    def end(self) -> None:
        """Look no more."""
        self._timer.cancel()


class Stream(Run):
    """See the module."""

    def __init__(
        self, loop: Loop, reaper: Reaper, owner: StreamOwner, start: Start, fds: Mapping[int, int]
    ) -> None:
        super().__init__(loop, reaper, owner, start, fds)
        self._line = owner.line
        self._lines = Lines(start.line_bytes)
        self.lines = 0
        self._incomplete = False
        self._waiting: deque[bytes | TooLong] = deque()
        self._second, self._told, self._spent = 0.0, 0, 0.0
        self._dropped = 0
        self._watch(STREAM_PER_S)

    def notes(self, left: Sequence[Stuck]) -> list[str]:
        """See `Run`."""
        notes = super().notes(left)
        if self.slowed:
            notes.append("slowed down: more output than a reporter may have")
        if self._dropped:
            notes.append(f"of what it printed at its end, {self._dropped} lines were dropped")
        if self._incomplete:
            notes.append("its last line was not complete and was dropped")
        return notes

    def _output(self, data: bytes) -> None:
        self._waiting.extend(self._lines.feed(data))
        self._deliver()

    def _deliver(self) -> None:
        now = self._loop.now()
        if now - self._second >= 1:
            self._second, self._told, self._spent = now, 0, 0.0
        while self._waiting and self._told < FRAMES_PER_S and self._spent < BUSY_PER_S:
            self._told += 1
            begun = self._loop.now()
            self._tell(self._waiting.popleft())
            self._spent += self._loop.now() - begun
        if self._waiting and self.child.alive:
            self.slowed = True
            self._pipes[0].pause(self._second + 1)
            if self._timer is None:
                self._timer = self._loop.call_at(self._second + 1, self._deliver_more)

    def _deliver_more(self) -> None:
        self._timer = None
        self._deliver()

    def _tell(self, line: bytes | TooLong) -> None:
        self.lines += 1
        self._line(line, self.lines)

    def _read_all(self) -> None:
        """Of what it wrote last the newest, as much as counts in one second."""
        for pipe in self._pipes:
            pipe.drain()
        self._incomplete = bool(self._lines.end())
        self._dropped = max(0, len(self._waiting) - FRAMES_PER_S)
        for _ in range(self._dropped):
            self._waiting.popleft()
        while self._waiting:
            self._tell(self._waiting.popleft())
