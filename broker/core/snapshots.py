"""Snapshots: everything at one instant, sent in parts over several turns.

A snapshot begins between two turns. Its locations are encoded as it goes on; one that changes before its part
was made is encoded just before (`keep`), so that what is sent is the instant of the begin, whatever happens
meanwhile.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

import msgspec

from xce.broker.core.changes import UNENCODABLE
from xce.broker.core.effect import Effect, Send, SendBytes
from xce.broker.core.location import Location
from xce.broker.core.peer import Peer
from xce.broker.core.supply import SupplyMap
from xce.model.message import BindingView, ClaimView, LocationView, SnapshotBegin, SnapshotEnd, SnapshotPart

PART = 500
"""Locations in a part, and the most that are encoded in one turn: about a millisecond."""
FIRST = 100
"""Locations in the first part. Each has twice as many as the one before, up to `PART`: whoever asked decodes
one while the next is on its way.
"""

_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


class Job:
    """One snapshot on its way, location by location as `supply.entry_of` encodes them."""

    def __init__(self, places: list[Location], encode: Callable[[Location], bytes], *, json: bool) -> None:
        self._encode, self.json = encode, json
        self._left = iter(places)
        self._kept: dict[Location, bytes | None] = {}
        self._waiting = set(places)

    def keep(self, place: Location) -> None:
        """A location is about to change."""
        if place in self._waiting and place not in self._kept:
            self._kept[place] = self._entry(place)

    def part(self, count: int) -> list[bytes | None]:
        """The next locations as they were at the begin; None for one that cannot be encoded."""
        places = list(islice(self._left, count))
        self._waiting.difference_update(places)
        kept, encode = self._kept, self._encode
        if not kept:
            try:
                return [encode(place) for place in places]
            except UNENCODABLE:
                pass  # which one?
        return [kept.pop(place) if place in kept else self._entry(place) for place in places]

    def _entry(self, place: Location) -> bytes | None:
        try:
            return self._encode(place)
        except UNENCODABLE:
            return None


class _Locations(msgspec.Struct, kw_only=True, tag="snapshot.part", tag_field="type"):
    """A `SnapshotPart` whose locations come last and are always there."""

    id: str
    part: int
    locations: dict[str, LocationView] = msgspec.field(default_factory=dict)


def sizes_of(count: int) -> list[int]:
    """How many locations each part of a snapshot has."""
    sizes: list[int] = []
    size = min(FIRST, PART)
    while count > 0:
        sizes.append(min(size, count))
        count -= size
        size = min(2 * size, PART)
    return sizes


def part_of(request_id: str, number: int, entries: list[bytes], *, json: bool) -> bytes:
    """A `SnapshotPart` of locations that are encoded already."""
    empty = _Locations(id=request_id, part=number)
    if json:
        head = _encode_json(empty).removesuffix(b"{}}")
        return b"%b{%b}}" % (head, b",".join(entries))
    # The one byte of an empty map makes room for a longer map's head (MessagePack specification, "map format
    # family").
    head = _encode(empty)[:-1]
    return b"".join((head, b"\xdf", len(entries).to_bytes(4, "big"), *entries))


class _Sending:
    """A job that goes to a peer, and the claims that come after it."""

    def __init__(
        self, peer: Peer, request_id: str, job: Job, sizes: Sequence[int], claims: Sequence[SnapshotPart]
    ) -> None:
        self.peer, self.id, self.job, self.sizes, self.claims = peer, request_id, job, sizes, list(claims)
        self.parts = len(sizes) + len(self.claims)
        self.sent = 0


class Snapshots:
    """All snapshots on their way."""

    def __init__(self, supply: SupplyMap) -> None:
        self._supply = supply
        self._jobs: list[Job] = []
        self._sending: list[_Sending] = []
        self.left_out = 0
        """Locations that could not be encoded, in all snapshots."""

    def __len__(self) -> int:
        """How many are being sent."""
        return len(self._sending)

    def _job(self, places: list[Location], encode: Callable[[Location], bytes] | None, *, json: bool) -> Job:
        job = Job(places, encode or (self._supply.text if json else self._supply.packed), json=json)
        self._jobs.append(job)
        self._supply.keep = self._keep
        return job

    def _done(self, job: Job) -> None:
        self._jobs.remove(job)
        if not self._jobs:
            self._supply.keep = None

    def begin(
        self,
        peer: Peer,
        begin: SnapshotBegin,
        places: list[Location],
        encode: Callable[[Location], bytes] | None = None,
        *,
        claims: Mapping[str, ClaimView] = MappingProxyType({}),
        bindings: Mapping[str, BindingView] = MappingProxyType({}),
    ) -> Effect:
        """Start sending; `begin.parts` is filled in. `encode` makes views that are not the usual ones."""
        of_claims = list(_claim_parts(begin.id, claims, bindings))
        job = self._job(places, encode, json=peer.json)
        sending = _Sending(peer, begin.id, job, sizes_of(len(places)), of_claims)
        self._sending.append(sending)
        return Send(peer, msgspec.structs.replace(begin, parts=sending.parts))

    def gone(self, peer: Peer) -> None:
        """A peer is gone: its snapshots end."""
        for sending in [one for one in self._sending if one.peer is peer]:
            self._end(sending)

    def deliver(self) -> Iterator[Effect]:
        """The next part of the first snapshot; at most one a turn, in turn."""
        if not self._sending:
            return
        sending = self._sending.pop(0)
        self._sending.append(sending)
        if sending.sent < sending.parts:
            yield SendBytes(sending.peer, self._part(sending))
            sending.sent += 1
        if sending.sent == sending.parts:
            self._end(sending)
            yield Send(sending.peer, SnapshotEnd(id=sending.id))

    def _part(self, sending: _Sending) -> bytes:
        """The next part: locations first, then claims and bindings."""
        json = sending.job.json
        if sending.sent >= len(sending.sizes):
            part = msgspec.structs.replace(sending.claims.pop(0), part=sending.sent)
            return _encode_json(part) if json else _encode(part)
        found = sending.job.part(sending.sizes[sending.sent])
        entries = [entry for entry in found if entry is not None]
        self.left_out += len(found) - len(entries)
        return part_of(sending.id, sending.sent, entries, json=json)

    def _end(self, sending: _Sending) -> None:
        self._sending.remove(sending)
        self._done(sending.job)

    def _keep(self, place: Location) -> None:
        for job in self._jobs:
            job.keep(place)


def _claim_parts(
    request_id: str, claims: Mapping[str, ClaimView], bindings: Mapping[str, BindingView]
) -> Iterator[SnapshotPart]:
    """Claims and bindings as they are now, which never change: a new one takes the place of an old one."""
    for begin in range(0, len(claims), PART):
        some = dict(islice(claims.items(), begin, begin + PART))
        yield SnapshotPart(id=request_id, part=0, claims=some)
    for begin in range(0, len(bindings), PART):
        some_bindings = dict(islice(bindings.items(), begin, begin + PART))
        yield SnapshotPart(id=request_id, part=0, bindings=some_bindings)
