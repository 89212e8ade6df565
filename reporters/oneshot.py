"""A run that prints what it has to say, and ends: its lines are kept until then, within bounds."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from xce.linux.loop import Loop
from xce.linux.reaper import Reaper
from xce.reporters.frame import Lines, TooLong, lines_of
from xce.reporters.output import remains
from xce.reporters.run import Run, RunOwner, Start

KEPT_BYTES, KEPT_LINES = 4 << 20, 10_000
"""Of the output; a run that prints more is ended."""
UNWATCHED = 0.1
"""Seconds for which output stays in its pipes and nobody looks at the clock: most runs are over by then."""


class OneShotOwner(RunOwner, Protocol):
    """What a one-shot run tells beside that."""

    def exceeded(self, reason: str) -> None:
        """The run lasts longer, or has printed more, than it may: it should be ended."""


class OneShot(Run):
    """See the module. `timeout` seconds after its start it should be over."""

    _owner: OneShotOwner
    _lines: Lines | None = None
    """Of what is read before the end."""
    _read_bytes = 0
    """Of its output, lines that were too long included: reading them takes our time, too."""
    said: bytes | None = None
    """All that it has printed, if that is little and was read at once at its end: mostly."""

    def __init__(
        self,
        loop: Loop,
        reaper: Reaper,
        owner: OneShotOwner,
        start: Start,
        fds: Mapping[int, int],
        *,
        timeout: float,
    ) -> None:
        self._timeout = timeout
        self._kept: list[bytes | TooLong] = []
        # Set before the start: after it all caches are cold.
        soon = UNWATCHED if timeout > UNWATCHED else timeout
        self._timer = loop.call_at(loop.now() + soon, self._attend)
        try:
            super().__init__(loop, reaper, owner, start, fds)
        except (OSError, ValueError):
            self._timer.cancel()
            raise

    def _attend(self) -> None:
        """It takes longer than most."""
        self._lines = Lines(self._start.line_bytes)
        self._watch()
        self._timer = self._loop.call_at(self.started_at + self._timeout, self._overdue)

    def _overdue(self) -> None:
        self._owner.exceeded(f"did not finish within {self._timeout:g} s")

    def _output(self, data: bytes) -> None:
        if self._ending is None and self._lines is not None:
            self._read_bytes += len(data)
            self._keep(self._lines.feed(data))

    def _read_all(self) -> None:
        if self._fds:  # mostly: it was so quick that nobody has watched
            (out, err), self._fds = self._fds, ()
            said, complained = remains(out), remains(err)
            if len(said) <= KEPT_LINES:  # then it has no more lines than that, either
                self.said = said
            elif self._ending is None:
                self._keep(lines_of(said, self._start.line_bytes))
            if complained:
                self.stderr.add(complained)
            return
        for pipe in self._pipes:
            pipe.drain()
        if self._lines is not None and self._ending is None and (rest := self._lines.end()):
            self._keep(rest)

    @property
    def kept(self) -> list[bytes | TooLong]:
        """Its lines."""
        return self._kept if self.said is None else lines_of(self.said, self._start.line_bytes)

    def _keep(self, lines: Sequence[bytes | TooLong]) -> None:
        self._kept += lines
        if self._read_bytes > KEPT_BYTES or len(self._kept) > KEPT_LINES:
            self._kept.clear()
            for pipe in self._pipes[:1]:
                pipe.close()
            self._owner.exceeded(f"printed more than {KEPT_BYTES >> 20} MiB or {KEPT_LINES} lines")
