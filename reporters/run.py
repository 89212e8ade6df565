"""One run of one reporter: a process started, its output read within bounds, its end and its leftovers.

Exit and end of output are two things: a child that the script left behind may hold the pipe for ever, so what
was written until the exit is what counts, and what is left in the group is ended. Memory is bounded whatever
is printed. What lines mean, and when to start or end a run, is its owner's business (`RunOwner`); nothing is
retried.
"""

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from xce.linux.loop import Loop, Timer
from xce.linux.reaper import Exit, Reaper
from xce.linux.session import Session
from xce.linux.spawn import Child, spawn
from xce.reporters.ending import PATIENCE, Ending, Group, Stuck, describe
from xce.reporters.frame import Lines, TooLong

CHUNK = 1 << 16
LARGEST_PIPE = 1 << 20
"""What a pipe can hold at most, unless root has changed that (/proc/sys/fs/pipe-max-size)."""
KEPT_BYTES, KEPT_LINES = 4 << 20, 10_000
"""Of a one-shot run's output, kept until its end; a run that prints more is ended."""
STDERR_BYTES = 8 << 10
FIRST_LINE_BYTES = 512
UNWATCHED = 0.1
"""Seconds for which a one-shot run's output stays in its pipes: most runs are over by then."""
STDERR_PER_S = 1 << 20
STREAM_PER_S, FRAMES_PER_S, BUSY_PER_S = 8 << 20, 100, 0.1
"""Bytes, lines and seconds of our time that a persistent reporter has in a second; beyond that it is slowed
down by its full pipe."""


class RunOwner(Protocol):
    """What a run tells: lines, then `exited` and `over`; `capped` and `stuck` before them, if at all."""

    def line(self, line: bytes | TooLong, number: int) -> None:
        """A line of a streaming run, as it comes; `number` from 1."""

    def capped(self, reason: str) -> None:
        """The run printed more than is kept; it is being ended."""

    def exited(self, how: Exit, left: list[Stuck]) -> None:
        """The main process has ended. `left`: others of its group, which are being ended now."""

    def stuck(self, processes: list[Stuck]) -> None:
        """These cannot be killed."""

    def over(self) -> None:
        """Nothing of the run is left. The last call."""


class Tail:
    """The first line and the last 8 KiB of standard error."""

    def __init__(self) -> None:
        self._first = bytearray()
        self._first_done = False
        self._ring = b""

    def add(self, data: bytes) -> None:
        """More output."""
        self._ring = (self._ring + data)[-STDERR_BYTES:]
        if not self._first_done:
            self._first += data[: FIRST_LINE_BYTES + 1]
            stripped = self._first.lstrip()
            self._first_done = b"\n" in stripped or len(stripped) > FIRST_LINE_BYTES
            self._first = stripped[:FIRST_LINE_BYTES]

    @property
    def first_line(self) -> str:
        """The first line that is not blank."""
        if not self._first:
            return ""
        return self._first.split(b"\n")[0].decode(errors="backslashreplace").rstrip()

    @property
    def text(self) -> str:
        """The last of it."""
        return self._ring.decode(errors="backslashreplace")


class _Pipe:
    """The reading end of a child's output; no more than `per_s` bytes a second are taken from it."""

    def __init__(self, loop: Loop, take: Callable[[bytes], object], per_s: int = 0) -> None:
        self._loop, self._take, self._per_s = loop, take, per_s
        self._fd, self.child_end = os.pipe()
        os.set_blocking(self._fd, False)
        self._watched = False
        self._window, self._taken = 0.0, 0
        self._timer: Timer | None = None

    def watch(self) -> None:
        """Take what comes as it comes."""
        if self._fd >= 0 and not self._watched:
            self._watched = True
            self._loop.add_reader(self._fd, self._ready)

    def _ready(self) -> None:
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        if self._per_s:
            self._count(len(data))
        self._take(data)

    def _count(self, taken: int) -> None:
        now = self._loop.now()
        if now - self._window >= 1:
            self._window, self._taken = now, 0
        self._taken += taken
        if self._taken >= self._per_s:
            self.pause(self._window + 1)

    def pause(self, until: float) -> None:
        """Take nothing before `until`: the child waits once its pipe is full."""
        if self._fd >= 0 and self._timer is None:
            self._watched = False
            self._loop.remove_reader(self._fd)
            self._timer = self._loop.call_at(until, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self.watch()

    def close_child_end(self) -> None:
        if self.child_end >= 0:
            os.close(self.child_end)
            self.child_end = -1

    def drain(self) -> None:
        """Take what is in the pipe now, and little more, however much is being written; then close."""
        left = LARGEST_PIPE
        while left > 0 and self._fd >= 0:
            try:
                data = os.read(self._fd, CHUNK)
            except BlockingIOError:
                break
            left -= len(data)
            if data:
                self._take(data)
            if len(data) < CHUNK:
                break  # that was all, or the end
        self.close()

    def close(self) -> None:
        if self._fd < 0:
            return
        if self.child_end >= 0:
            self.close_child_end()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watched:
            self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1


class Run:
    """A run from `start` to `over`. Raises OSError from the constructor if it cannot be started.

    `group` is the control group that the command joins, or None where there is none: then the run is held by
    its session and `mark`, an entry of `environment`. `fds`: its descriptors beside 0, 1 and 2, as ours.
    `streaming`: lines are told as they come instead of kept.
    """

    def __init__(
        self,
        loop: Loop,
        reaper: Reaper,
        owner: RunOwner,
        *,
        command: Sequence[str],
        environment: Mapping[str, str] | Mapping[bytes, bytes],
        fds: Mapping[int, int],
        group: Group | None,
        mark: str,
        line_bytes: int,
        streaming: bool,
        patience: float = PATIENCE,
    ) -> None:
        self._loop, self._owner, self._streaming, self._patience = loop, owner, streaming, patience
        self.started_at = loop.now()
        self.kept: list[bytes | TooLong] = []
        self._kept_bytes = 0
        self.lines = 0
        self._incomplete = self._slowed = False
        self.stderr = Tail()
        self._lines = Lines(line_bytes)
        self._waiting: deque[bytes | TooLong] = deque()
        self._second, self._told, self._spent = 0.0, 0, 0.0
        self._dropped = 0
        self._timer: Timer | None = None
        """Streaming: when more lines may be told; else when the output is watched from."""
        self._ending: Ending | None = None
        self._exited = False
        self._out = _Pipe(loop, self._output, STREAM_PER_S if streaming else 0)
        try:
            self._err = _Pipe(loop, self.stderr.add, STDERR_PER_S)
        except OSError:
            self._out.close()
            raise
        try:
            output = {1: self._out.child_end, 2: self._err.child_end}
            self.child: Child = spawn(command, environment, fds={**output, **fds})
        except (OSError, ValueError):
            self._close()
            raise
        self._out.close_child_end()
        self._err.close_child_end()
        self.group: Group = group or Session(self.child.pid, mark)
        reaper.watch(self.child, self._ended)
        if streaming:
            self._watch()
        else:
            self._timer = loop.call_later(UNWATCHED, self._watch)

    def notes(self, left: Sequence[Stuck]) -> list[str]:
        """What people should know about the run although it may be good. `left`: what it left behind."""
        notes = []
        if left:
            notes.append(f"left {len(left)} processes behind, which were ended: {left[0]}")
        if self._slowed:
            notes.append("slowed down: more output than a reporter may have")
        if self._dropped:
            notes.append(f"of what it printed at its end, {self._dropped} lines were dropped")
        if self._incomplete:
            notes.append("its last line was not complete and was dropped")
        return notes

    def end(self, grace: float) -> None:
        """TERM now, KILL after `grace` seconds (0: KILL now) to all of the run; `over` will come."""
        if self._ending is None:
            self._ending = Ending(
                self._loop,
                self.group,
                grace=grace,
                on_end=self._over,
                on_stuck=self._stuck,
                also=self.child.signal,
                patience=self._patience,
            )
        elif grace == 0:
            self._ending.kill()

    @property
    def ending(self) -> bool:
        """Whether it has been told to end."""
        return self._ending is not None

    # ------------------------------------------------------------------------------------------ output

    def _watch(self) -> None:
        self._timer = None
        self._out.watch()
        self._err.watch()

    def _output(self, data: bytes) -> None:
        lines = self._lines.feed(data)
        if self._streaming:
            self._waiting.extend(lines)
            self._deliver()
        elif lines and not self.ending:
            self._keep(lines)

    def _keep(self, lines: Sequence[bytes | TooLong]) -> None:
        self.kept += lines
        for line in lines:
            if isinstance(line, bytes):
                self._kept_bytes += len(line)
        if self._kept_bytes > KEPT_BYTES or len(self.kept) > KEPT_LINES:
            self.kept.clear()
            self._out.close()
            self._owner.capped(f"printed more than {KEPT_BYTES >> 20} MiB or {KEPT_LINES} lines")

    def _deliver(self) -> None:
        """Lines of a streaming run, as many a second as a sane one can have."""
        now = self._loop.now()
        if now - self._second >= 1:
            self._second, self._told, self._spent = now, 0, 0.0
        while self._waiting and self._told < FRAMES_PER_S and self._spent < BUSY_PER_S:
            self._told += 1
            begun = self._loop.now()
            self._tell(self._waiting.popleft())
            self._spent += self._loop.now() - begun
        if self._waiting and not self._exited:
            self._slowed = True
            self._out.pause(self._second + 1)
            if self._timer is None:
                self._timer = self._loop.call_at(self._second + 1, self._deliver_more)

    def _deliver_more(self) -> None:
        self._timer = None
        self._deliver()

    def _tell(self, line: bytes | TooLong) -> None:
        self.lines += 1
        self._owner.line(line, self.lines)

    # --------------------------------------------------------------------------------------------- end

    def _ended(self, how: Exit) -> None:
        self._exited = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._out.drain()
        self._err.drain()
        rest = self._lines.end()
        if not self._streaming and rest and not self.ending:
            self._keep(rest)
        self._incomplete = self._streaming and bool(rest)
        left_behind = not self.ending and self.group.populated()
        try:
            if self._waiting:
                self._tell_rest()
            self._owner.exited(how, describe(self.group.pids()) if left_behind else [])
        finally:  # whatever is wrong with what it said: the run must be over some time
            self._close()
            self._after_exit(left_behind=left_behind)

    def _tell_rest(self) -> None:
        """What a streaming run wrote last: the newest of it, as much as counts in one second."""
        self._dropped = max(0, len(self._waiting) - FRAMES_PER_S)
        for _ in range(self._dropped):
            self._waiting.popleft()
        while self._waiting:
            self._tell(self._waiting.popleft())

    def _after_exit(self, *, left_behind: bool) -> None:
        if self._ending is not None:
            self._ending.look()
        elif left_behind:
            self.end(0)
        else:
            self._over()

    def _stuck(self, processes: list[Stuck]) -> None:
        self._close()
        self._owner.stuck(processes)

    def _over(self) -> None:
        self._close()
        self._owner.over()

    def _close(self) -> None:
        self._out.close()
        self._err.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
