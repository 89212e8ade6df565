"""Following the supply map: the conversation that never ends.

Snapshot, stream, credit, a stream that was lost, a broker that was restarted, inventories: all of it is
decided here, without sockets or clocks. What the user sees is one event after the other and a mirror.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from xce.broker.mirror import Mirror, OutOfStep
from xce.broker.session import Bodies, BrokerRefused, Changed, Event, Fresh, LinkNews, Request, Taking, op_id
from xce.model.message import (
    Answer,
    Credit,
    Delta,
    Failed,
    InventoriesRequest,
    InventoryBodies,
    Lost,
    Position,
    Unwatch,
    WatchBegin,
    WatchRequest,
)

CREDIT = 64
"""Deltas that may wait here before the broker holds the rest for us."""
BODIES_AT_ONCE = 2000
"""Instances asked for in one `InventoriesRequest`; the answer must fit in one message."""
PATIENCE_S = 30.0
"""A broker that is linked and owes us something for so long is asked again."""
BUSY_S = 1.0


@dataclass
class _Stream:
    """The stream that is open or being opened."""

    id: str
    position: Position
    """Of the last delta that was received."""
    begun: bool = False


@dataclass
class _Fetch:
    """Inventories: what is to be asked for, and the one request that is out."""

    id: str = ""
    out: list[tuple[str, str]] = field(default_factory=list)
    queue: deque[tuple[str, str]] = field(default_factory=deque)


class Follow:
    """The map and all that happens to it: a snapshot, then deltas; a new snapshot when they cannot go on.

    `next` gives one event at a time and applies it to `mirror`, so the mirror is always as new as the last
    event that was given. Credit is returned as events are taken: a slow user is cut off by the broker, takes
    what came before, and then gets `Fresh` with the reason.
    """

    def __init__(self, *, credit: int = CREDIT, inventories: bool = False) -> None:
        self.mirror: Mirror | None = None
        self.to_send: list[Request] = []
        self._failed: Failed | None = None
        self._credit, self._spent = max(1, credit), 0
        self._wants_bodies = inventories
        self._taking: Taking | None = Taking(to_send=self.to_send)
        self._reason = ""
        """Why the snapshot that is being taken, or will be once all events are taken, is needed."""
        self._stream: _Stream | None = None
        self._fetch = _Fetch()
        self._events: deque[Event] = deque()
        self._up = self._was_up = False
        self._owed_since: float | None = None
        self._busy = False

    def waits_for(self) -> Collection[str]:
        """Ids of the snapshot, the stream and the inventories that are under way."""
        ids = set(self._taking.waits_for()) if self._taking else set()
        if self._stream:
            ids.add(self._stream.id)
        if self._fetch.id:
            ids.add(self._fetch.id)
        return ids

    def next(self) -> Event | None:
        """The next event, applied to `mirror`; None while there is none. Raises `BrokerRefused`."""
        while self._events:
            event = self._events.popleft()
            match event:
                case Fresh():
                    self.mirror = event.mirror
                    self._want_bodies(None)
                case Changed() if not self._apply(event.delta):
                    continue
                case Bodies() if self.mirror is not None:
                    self.mirror.keep(event.bodies)
            return event
        if self._failed is not None:
            raise BrokerRefused(self._failed.code, self._failed.message, self._failed.hint)
        if self._stream is None and self._taking is None:
            self._taking = Taking(older=self.mirror, to_send=self.to_send)
            if self._up:
                self._taking.ask()
        return None

    def leave(self) -> list[Request]:
        """What to send when nobody follows any longer."""
        stream, self._stream = self._stream, None
        return [Unwatch(id=stream.id)] if stream else []

    def take(self, answer: Answer) -> None:
        """One answer of the broker."""
        self._owed_since = None
        match answer:
            case Delta() if self._stream:  # first: nearly all are
                self._delta(self._stream, answer)
            case Failed(code="busy"):
                self._busy = True
            case Failed():
                self._failed, self._taking, self._stream = answer, None, None
            case InventoryBodies():
                self._fetch.id, self._fetch.out = "", []
                self._events.append(Bodies(answer.bodies))
                self._fetch_more()
            case WatchBegin() if self._stream:
                self._stream.begun = True
            case Lost():
                self._lose(answer.reason)
            case _ if self._taking:
                self._taking.take(answer)
                if self._taking.done and self._taking.mirror is not None:
                    self._events.append(Fresh(self._taking.mirror, self._reason))
                    self._open(self._taking.mirror.position)
                    self._taking = None

    def link(self, news: LinkNews) -> None:
        """On a new link go on after the last delta that was received."""
        if self._events and isinstance(self._events[-1], LinkNews):
            self._events.pop()  # nobody looked; only the newest counts
        self._was_up = self._was_up or news.up
        if self._was_up:
            self._events.append(news)
        self._up, self._owed_since, self._busy = news.up, None, False
        self.to_send.clear()
        if self._stream:
            self._stream.begun = False
        if news.up:
            self._ask_again()

    def tick(self, now: float) -> None:
        """Ask again what the broker has owed us for too long, or was too busy for."""
        begun = self._stream is None or self._stream.begun
        if not self._up or self._failed or (begun and not self._taking and not self._fetch.id):
            self._owed_since = None
        elif self._owed_since is None:
            self._owed_since = now
        elif now - self._owed_since > (BUSY_S if self._busy else PATIENCE_S):
            self._owed_since, self._busy = now, False
            if self._stream and not begun:
                self.to_send.append(Unwatch(id=self._stream.id))
            self._ask_again()

    def _ask_again(self) -> None:
        if self._taking is not None:
            self._taking.ask()
        elif self._stream is not None and not self._stream.begun:
            self._open(self._stream.position)
        self._fetch.queue.extendleft(reversed(self._fetch.out))
        self._fetch.id, self._fetch.out = "", []
        self._fetch_more()

    # --------------------------------------------------------------------------------------- stream

    def _open(self, since: Position) -> None:
        self._stream, self._spent = _Stream(op_id(), since), 0
        waiting = sum(isinstance(event, Changed) for event in self._events)
        credit = max(1, self._credit - waiting)
        self.to_send.append(WatchRequest(id=self._stream.id, since=since, credit=credit))

    def _delta(self, stream: _Stream, delta: Delta) -> None:
        here, there = stream.position, delta.position
        if there != msgspec.structs.replace(here, sequence=here.sequence + 1):
            self.to_send.append(Unwatch(id=stream.id))
            self._lose(f"the broker sent change {there.sequence} after {here.sequence}")
            return
        stream.position = there
        self._events.append(Changed(delta))

    def _lose(self, reason: str) -> None:
        """The stream cannot go on. What came before is good; `next` takes a snapshot when it is used up."""
        self._stream, self._reason = None, reason

    def _apply(self, delta: Delta) -> bool:
        """Apply a delta that the user takes now; False if it does not fit, and the map is taken anew."""
        assert self.mirror is not None, "internal error: a delta before the snapshot"
        try:
            self.mirror.apply(delta)
        except OutOfStep as error:
            if self._stream is not None:
                self.to_send.append(Unwatch(id=self._stream.id))
            self._events.clear()
            self._taking = None
            self._lose(str(error))
            return False
        self._spent += 1
        if self._stream is not None and self._spent * 2 >= self._credit:
            self.to_send.append(Credit(id=self._stream.id, more=self._spent))
            self._spent = 0
        if any(change.inventories for change in delta.locations.values()):
            self._want_bodies(delta.locations)
        return True

    # ---------------------------------------------------------------------------------- inventories

    def _want_bodies(self, keys: Collection[str] | None) -> None:
        if self._wants_bodies and self.mirror is not None:
            queued = {*self._fetch.queue}
            for key, reporters in self.mirror.wanted(keys).items():
                self._fetch.queue.extend((key, name) for name in reporters if (key, name) not in queued)
            self._fetch_more()

    def _fetch_more(self) -> None:
        """Ask for as many of the queued bodies as fit in one answer, one request at a time."""
        if self._fetch.id or not self._up or self.mirror is None:
            return
        instances = 0
        wanted: dict[str, list[str]] = {}
        while self._fetch.queue and instances < BODIES_AT_ONCE:
            key, reporter = self._fetch.queue.popleft()
            view = self.mirror.locations.get(key)
            if view and (ref := view.inventories.get(reporter)):
                instances += max(1, ref.count)
                wanted.setdefault(key, []).append(reporter)
                self._fetch.out.append((key, reporter))
        if wanted:
            self._fetch.id = op_id()
            self.to_send.append(InventoriesRequest(id=self._fetch.id, wanted=wanted))
