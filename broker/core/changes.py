"""The change stream: one numbered delta for each turn that changed something, a ring of them, and who
follows.

A delta is encoded once, with the id of the first watcher, who mostly is the only one; others get a copy with
their own id in its place. A watcher has a cursor into the ring and a credit: without credit it waits, and
when the ring has moved past its cursor it is told `Lost` and is no more. So nobody can make the broker keep
more than the ring.

What cannot be encoded (a text with half a surrogate, say) is left out, as if its location had been removed,
and costs neither its neighbours nor the numbering.
"""

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import TypeVar

import msgspec

from xce.broker.core.effect import Effect, Send, SendBytes
from xce.broker.core.location import Readings
from xce.broker.core.peer import Peer
from xce.model.message import BindingView, ClaimView, Delta, LocationChange, Lost, Position, WatchBegin
from xce.model.resource import ResourceType

RING_BYTES = 64 << 20
DELTA_LOCATIONS = 1000
"""One delta has at most so many; a turn that changed more gives several. Shorter ones cost both ends more."""
CATCH_UP = 64
"""Deltas for one watcher in one turn, so that one that is far behind does not hold up the others."""
CREDIT = 1 << 20
"""More credit than this is not kept."""

UNENCODABLE = (msgspec.MsgspecError, ValueError, OverflowError, TypeError, RecursionError)
"""What encoding raises for what has no bytes."""

C = TypeVar("C")

_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
_decode = msgspec.msgpack.Decoder(Delta).decode


class _Delta(msgspec.Struct, kw_only=True, omit_defaults=True, tag="delta", tag_field="type"):
    """`message.Delta`, to be encoded. The same fields in the same order."""

    id: str
    position: Position
    revision: int
    broker_ms: int
    values: dict[str, Readings] = {}
    locations: dict[str, LocationChange] = {}
    removed: list[str] = []
    types: list[ResourceType] | None = None
    claims: dict[str, ClaimView | None] = {}
    bindings: dict[str, BindingView | None] = {}


class Entry:
    """One delta in the ring."""

    __slots__ = ("id", "json", "packed", "sequence")

    def __init__(self, sequence: int, watch_id: str, packed: bytes) -> None:
        self.sequence, self.id, self.packed = sequence, watch_id, packed
        """The message for the watcher of this id."""
        self.json: bytes | None = None
        """Made when the first watcher wants it."""

    def bytes_for(self, watch_id: str, *, json: bool) -> bytes:
        """The whole message for one watcher."""
        if not json:
            return self.packed if watch_id == self.id else with_id(self.packed, self.id, watch_id)
        if self.json is None:
            self.json = _encode_json(_decode(self.packed))
        return with_id_json(self.json, self.id, watch_id)


class Watch:
    """One stream of one peer."""

    __slots__ = ("credit", "id", "next", "peer")

    def __init__(self, peer: Peer, watch_id: str, following: int, credit: int) -> None:
        self.peer, self.id, self.next, self.credit = peer, watch_id, following, credit


class Changes:
    """The stream of one incarnation; sequences count from 1."""

    def __init__(self, epoch: int, incarnation: str, *, keep: int, keep_bytes: int = RING_BYTES) -> None:
        self.epoch, self.incarnation = epoch, incarnation
        self.sequence = 0
        self.revision = 0
        """The revision that followers know."""
        self.cut = 0
        """Watchers that were too slow."""
        self._ring: deque[Entry] = deque()
        self._keep, self._keep_bytes, self._bytes = keep, keep_bytes, 0
        self._watches: dict[tuple[Peer, str], Watch] = {}

    def __len__(self) -> int:
        """How many streams are open."""
        return len(self._watches)

    def position(self) -> Position:
        """The place of the newest delta."""
        return Position(epoch=self.epoch, incarnation=self.incarnation, sequence=self.sequence)

    # ---------------------------------------------------------------------------------------- writing

    def publish(
        self,
        values: dict[str, Readings],
        changes: dict[str, LocationChange],
        removed: list[str],
        types: list[ResourceType] | None,
        *,
        revision: int,
        broker_ms: int,
        claims: Mapping[str, ClaimView | None] = MappingProxyType({}),
        bindings: Mapping[str, BindingView | None] = MappingProxyType({}),
    ) -> list[str]:
        """Add what a turn changed to the ring; nothing, if it is nothing.

        Returns keys of locations that cannot be encoded: to followers they are removed.
        """
        lost: list[str] = []
        news = values or changes or removed or claims or bindings or types is not None
        if not news and revision == self.revision:
            return lost
        self.revision = revision
        watch_id = next((watch.id for watch in self._watches.values()), "")
        for some_values, some_changes in _parts(values, changes):
            delta = _Delta(
                id=watch_id,
                position=Position(epoch=self.epoch, incarnation=self.incarnation, sequence=self.sequence + 1),
                revision=revision,
                broker_ms=broker_ms,
                values=some_values,
                locations=some_changes,
                removed=removed,
                types=types,
                claims=dict(claims),
                bindings=dict(bindings),
            )
            try:
                packed = _encode(delta)
            except UNENCODABLE:
                packed, out = _without_lost(delta)
                lost += out
            self.sequence += 1
            self._add(Entry(self.sequence, watch_id, packed))
            removed, types, claims, bindings = [], None, {}, {}
        return lost

    def _add(self, entry: Entry) -> None:
        self._ring.append(entry)
        self._bytes += len(entry.packed)
        while len(self._ring) > self._keep or (self._bytes > self._keep_bytes and len(self._ring) > 1):
            self._bytes -= len(self._ring.popleft().packed)

    # -------------------------------------------------------------------------------------- following

    def watch(self, peer: Peer, watch_id: str, since: Position, credit: int) -> Effect:
        """Begin a stream after `since`, or say why not."""
        reason = self._gap(since)
        if reason:
            return Send(peer, Lost(id=watch_id, reason=reason))
        watch = Watch(peer, watch_id, since.sequence + 1, min(max(credit, 0), CREDIT))
        self._watches[peer, watch_id] = peer.watches[watch_id] = watch
        return Send(peer, WatchBegin(id=watch_id, since=since))

    def credit(self, peer: Peer, watch_id: str, more: int) -> None:
        """So many more deltas may go to a watcher; of an unknown one there is nothing to say."""
        watch = peer.watches.get(watch_id)
        if watch is not None:
            watch.credit = min(watch.credit + max(more, 0), CREDIT)

    def unwatch(self, peer: Peer, watch_id: str) -> None:
        """End a stream; nothing happens if there is none."""
        if peer.watches.pop(watch_id, None) is not None:
            del self._watches[peer, watch_id]

    def gone(self, peer: Peer) -> None:
        """End all streams of a peer."""
        for watch_id in list(peer.watches):
            self.unwatch(peer, watch_id)

    def deliver(self) -> Iterator[Effect]:
        """What watchers with credit get now, and the end of those that are out of the ring."""
        if not self._watches:
            return
        first = self._ring[0].sequence if self._ring else self.sequence + 1
        for watch in list(self._watches.values()):
            if watch.next > self.sequence:
                continue
            if watch.next < first:
                self.cut += 1
                self.unwatch(watch.peer, watch.id)
                reason = f"too slow: change {watch.next} is not kept any more, {first} is the oldest"
                yield Send(watch.peer, Lost(id=watch.id, reason=reason))
                continue
            count = min(watch.credit, self.sequence - watch.next + 1, CATCH_UP)
            for offset in range(watch.next - first, watch.next - first + count):
                data = self._ring[offset].bytes_for(watch.id, json=watch.peer.json)
                yield SendBytes(watch.peer, data)
            watch.next += count
            watch.credit -= count

    def behind(self) -> bool:
        """Whether somebody with credit has not got everything yet."""
        return any(watch.credit and watch.next <= self.sequence for watch in self._watches.values())

    def _gap(self, since: Position) -> str:
        """Why the stream cannot go on after `since`; '' if it can."""
        here = self.position()
        if (since.epoch, since.incarnation) != (here.epoch, here.incarnation):
            return "that position is of another run of the broker"
        if since.sequence > self.sequence or since.sequence < 0:
            return f"there is no change {since.sequence} yet"
        oldest = self._ring[0].sequence if self._ring else self.sequence + 1
        if since.sequence + 1 < oldest:
            return f"change {since.sequence + 1} is not kept any more, {oldest} is the oldest"
        return ""


def _parts(
    values: dict[str, Readings], changes: dict[str, LocationChange]
) -> Iterator[tuple[dict[str, Readings], dict[str, LocationChange]]]:
    """Both in parts of at most `DELTA_LOCATIONS`; one, if they are empty."""
    if len(values) + len(changes) <= DELTA_LOCATIONS:
        yield values, changes
        return
    for some in _pieces(changes):
        yield {}, some
    for some_values in _pieces(values):
        yield some_values, {}


def _pieces(of: dict[str, C]) -> Iterator[dict[str, C]]:
    items = iter(of.items())
    while piece := dict(islice(items, DELTA_LOCATIONS)):
        yield piece


def _without_lost(delta: _Delta) -> tuple[bytes, list[str]]:
    """A delta that cannot be encoded whole, without what cannot be; and the keys that this costs."""
    values, changes = _encodable(delta.values), _encodable(delta.locations)
    lost = [*(delta.values.keys() - values.keys()), *(delta.locations.keys() - changes.keys())]
    removed = [key for key in (*delta.removed, *lost) if is_encodable(key)]
    return _encode(msgspec.structs.replace(delta, values=values, locations=changes, removed=removed)), lost


def _encodable(of: dict[str, C]) -> dict[str, C]:
    """Those entries that have bytes."""
    good: dict[str, C] = {}
    for key, change in of.items():
        with contextlib.suppress(*UNENCODABLE):
            _encode({key: change})
            good[key] = change
    return good


def is_encodable(text: str) -> bool:
    """Whether a text has bytes: half a surrogate has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def with_id(packed: bytes, old: str, new: str) -> bytes:
    """An answer's MessagePack bytes with another id.

    The tag comes first and the id second, as msgspec encodes fields in their order.
    """
    place = packed.index(b"\xa2id") + 3
    rest = place + len(_encode(old))
    return b"".join((packed[:place], _encode(new), memoryview(packed)[rest:]))


def with_id_json(text: bytes, old: str, new: str) -> bytes:
    """The same for JSON."""
    place = text.index(b'"id":') + 5
    rest = place + len(_encode_json(old))
    return b"".join((text[:place], _encode_json(new), memoryview(text)[rest:]))
