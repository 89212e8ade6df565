"""Snapshots: everything at one instant, sent in parts over several turns.

A snapshot begins between two turns. Its locations are encoded as it goes on; one that changes before its part
was made is encoded just before (`keep`), so that what is sent is the instant of the begin, whatever happens
meanwhile.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

import msgspec

from xce.broker.core.changes import with_id, with_id_json
from xce.broker.core.effect import Effect, Send, SendBytes
from xce.broker.core.location import Location
from xce.broker.core.peer import Peer
from xce.broker.core.supply import SupplyMap
from xce.model.message import BindingView, ClaimView, SnapshotBegin, SnapshotEnd

PART = 500
"""Locations in a part, and the most that are encoded in one turn: about a millisecond."""


class _Part(msgspec.Struct, kw_only=True, tag="snapshot.part", tag_field="type"):
    """`SnapshotPart` with its views encoded already."""

    id: str
    part: int
    locations: dict[str, msgspec.Raw] = {}
    claims: dict[str, ClaimView] = {}
    bindings: dict[str, BindingView] = {}


_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


class Job:
    """One snapshot on its way. Iterating gives its parts."""

    def __init__(self, places: list[Location], encode: Callable[[Location], bytes], *, json: bool) -> None:
        self._encode, self.json = encode, json
        self._left = iter(places)
        self._kept: dict[str, bytes] = {}
        self._waiting = {place.key for place in places}

    def keep(self, place: Location) -> None:
        """A location is about to change."""
        if place.key in self._waiting and place.key not in self._kept:
            self._kept[place.key] = self._encode(place)

    def part(self, count: int = PART) -> dict[str, msgspec.Raw]:
        """The next locations as they were at the begin; empty after the last."""
        part: dict[str, msgspec.Raw] = {}
        for place in islice(self._left, count):
            data = self._kept.pop(place.key, None)
            if data is None:
                data = self._encode(place)
            self._waiting.discard(place.key)
            part[place.key] = msgspec.Raw(data)
        return part


class _Sending:
    """A job that goes to a peer."""

    def __init__(self, peer: Peer, request_id: str, job: Job, parts: int, claims: Sequence[_Part]) -> None:
        self.peer, self.id, self.job, self.parts, self.claims = peer, request_id, job, parts, list(claims)
        self.sent = 0

    def following(self) -> _Part:
        """The next part: locations first, then claims and bindings."""
        if self.parts - self.sent > len(self.claims):
            return _Part(id="", part=self.sent, locations=self.job.part())
        return msgspec.structs.replace(self.claims.pop(0), part=self.sent)


class Snapshots:
    """All snapshots on their way."""

    def __init__(self, supply: SupplyMap) -> None:
        self._supply = supply
        self._jobs: list[Job] = []
        self._sending: list[_Sending] = []

    def __len__(self) -> int:
        """How many are being sent."""
        return len(self._sending)

    def _job(self, places: list[Location], encode: Callable[[Location], bytes] | None, *, json: bool) -> Job:
        def cached(place: Location) -> bytes:
            return self._supply.encoded(place, json=json)

        job = Job(places, encode or cached, json=json)
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
        of_claims = list(_claim_parts(claims, bindings))
        parts = (len(places) + PART - 1) // PART + len(of_claims)
        job = self._job(places, encode, json=peer.json)
        self._sending.append(_Sending(peer, begin.id, job, parts, of_claims))
        return Send(peer, msgspec.structs.replace(begin, parts=parts))

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
            part = sending.following()
            if sending.job.json:
                yield SendBytes(sending.peer, with_id_json(_encode_json(part), sending.id))
            else:
                yield SendBytes(sending.peer, with_id(_encode(part), sending.id))
            sending.sent += 1
        if sending.sent == sending.parts:
            self._end(sending)
            yield Send(sending.peer, SnapshotEnd(id=sending.id))

    def _end(self, sending: _Sending) -> None:
        self._sending.remove(sending)
        self._done(sending.job)

    def _keep(self, place: Location) -> None:
        for job in self._jobs:
            job.keep(place)


def _claim_parts(claims: Mapping[str, ClaimView], bindings: Mapping[str, BindingView]) -> Iterator[_Part]:
    """Claims and bindings as they are now, which never change: a new one takes the place of an old one."""
    for begin in range(0, len(claims), PART):
        yield _Part(id="", part=0, claims=dict(islice(claims.items(), begin, begin + PART)))
    for begin in range(0, len(bindings), PART):
        yield _Part(id="", part=0, bindings=dict(islice(bindings.items(), begin, begin + PART)))
