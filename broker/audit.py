"""The audit log: one JSON line for each call that changes something, and for each one that was refused; of
what a key may not order at all there are some (`core.state.REFUSALS`), and the rest is counted.

Lines go to a file, or to standard error (the journal, under systemd) when none is named. They are written by
the background thread, so that a hung disk holds up nobody. The file is opened for each write: it may be
rotated by renaming at any time, and no signal is needed. While writing fails, lines wait; those that find no
room are counted, and the log itself says how many are missing.

An answer leaves before its line is written. What a broker that was killed could not write any more, the next
one makes up of the facts: a file of the state directory (`head`) says up to which revision there are lines.
"""

import os
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from pathlib import Path

import msgspec

from xce.broker.background import Background
from xce.broker.core.effect import Audit
from xce.broker.store import files
from xce.model.fact import Fact

ROOM = 10_000
CHARACTERS = 4096
"""Of a target, which holds a reason, and of an id; a good one is shorter."""

_encode = msgspec.json.Encoder().encode


class AuditLog:
    """Where the lines go: `path`, or standard error when it is ''."""

    def __init__(
        self,
        path: str,
        background: Background,
        *,
        head: Path | None = None,
        wall: Callable[[], float] = time.time,
        room: int = ROOM,
        every_s: float = 0,
    ) -> None:
        """Lines are written at most each `every_s`: a thread that is woken for each costs more than it."""
        self._path, self._background, self._wall, self._room = path, background, wall, room
        self._calls: deque[tuple[float, Audit]] = deque()
        """With the wall time of each."""
        self._scheduled = False
        self._every_s, self._due = every_s, 0.0
        self._rest = b""  # the thread's: what a failed write left over
        self._head, self._reached, self._headed = head, 0, 0
        self._told = 0
        self.dropped = 0
        """Lines that found no room because writing failed or hung for so long."""

    def record(self, call: Audit) -> None:
        """Add a line; never blocks and never fails."""
        if len(call.target) > CHARACTERS or len(call.op_id) > CHARACTERS:  # whatever somebody has sent
            call = msgspec.structs.replace(call, target=_cut(call.target), op_id=_cut(call.op_id))
        self._add(self._wall(), call)
        now = time.monotonic()
        if now >= self._due:
            self._due = now + self._every_s
            self.flush()

    def _add(self, wall: float, call: Audit) -> None:
        if len(self._calls) >= self._room:
            self.dropped += 1
        else:
            self._calls.append((wall, call))  # the thread makes a line of it

    def recover(self, facts: Sequence[Fact]) -> None:
        """Add lines of the orders that made these facts, the last ones of all, and have none yet.

        To be called once, before any `record`. Where it is not known which lines there are, none is added.
        """
        assert self._head is not None, "internal error: an audit log without a head"
        before = files.read_head(self._head)
        first = bisect_right(facts, before, key=_revision) if before > 0 else len(facts)
        new = [fact for fact in facts[first:] if fact.op_id]
        for _, [*_, last] in groupby(new, key=lambda fact: (fact.by, fact.op_id)):
            role, _, who = last.by.partition(":")
            call = Audit(
                who=who,
                role=role,
                operation=str(last.change.__struct_config__.tag),
                op_id=last.op_id,
                result="recovered",
                revision=last.revision,
            )
            self._add(datetime.fromisoformat(last.at).timestamp(), call)
        self._reached = facts[-1].revision if facts else 0
        self._schedule()

    def flush(self) -> None:
        """Have what waits written; the loop calls it about once a second, to try again after a fault."""
        if self._calls or self._rest or self.dropped > self._told:
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True  # before the thread can set it back
            if not self._background.submit("audit log", self._write):
                self._scheduled = False

    def _write(self) -> None:
        """In the thread: everything that waits in one piece; raises OSError and keeps what is not written."""
        self._scheduled = False
        descriptor = 2
        if self._path:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o640)
        try:
            self._pour(descriptor)  # what was left over, so that no line is cut in two
            calls = [self._calls.popleft() for _ in range(len(self._calls))]
            self._reached = max([self._reached, *(call.revision for _, call in calls)])
            lines = [_line(wall, call) for wall, call in calls]
            dropped = self.dropped
            if dropped > self._told:
                lines.append(self._gap(dropped - self._told))
                self._told = dropped
            self._rest = b"".join(lines)
            self._pour(descriptor)
        finally:
            if self._path:
                os.close(descriptor)
        if self._head is not None and self._reached != self._headed:
            files.write_head(self._head, self._reached)
            self._headed = self._reached

    def _pour(self, descriptor: int) -> None:
        while self._rest:
            self._rest = self._rest[os.write(descriptor, self._rest) :]

    def _gap(self, missing: int) -> bytes:
        words = f"{missing} lines are missing before this one"
        return _line(self._wall(), Audit(who="", role="", operation="audit", result=words))


def _revision(fact: Fact) -> int:
    return fact.revision


def _cut(text: str) -> str:
    return text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}…"


def _line(wall: float, call: Audit) -> bytes:
    """The call, with its time before it."""
    return _begin(int(wall * 1000)) + _encode(call)[1:] + b"\n"


@lru_cache(maxsize=1)
def _begin(ms: int) -> bytes:
    """Of each line of this millisecond: wall time, ISO 8601, UTC."""
    at = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f'{{"at":"{at}.{ms % 1000:03d}Z",'.encode()
