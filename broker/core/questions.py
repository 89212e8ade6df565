"""Questions: snapshots, watches, inventories, and the broker about itself. Nothing here changes the map."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from xce.broker.core import access
from xce.broker.core.claims import Claims
from xce.broker.core.effect import Backup, SendBytes
from xce.broker.core.location import Location, View, unpacked
from xce.broker.core.peer import Peer
from xce.broker.core.state import State
from xce.broker.core.supply import entry_of
from xce.model import message as m
from xce.model.instance import Inventory
from xce.model.supply import Source

BODIES_BYTES = 32 << 20
"""Of one answer with inventories."""
ROWS = 50_000
"""Claims and bindings in one answer."""
WATCHES = 64
"""Streams of one peer at a time."""
IDS = 128
"""Characters of a question's id."""
SNAPSHOTS = 16
"""Snapshots that are sent at a time; who asks for more is told to come again."""


class _Bodies(msgspec.Struct, kw_only=True, tag="inventory.bodies", tag_field="type"):
    """`InventoryBodies` with its bodies encoded already."""

    id: str
    bodies: dict[str, dict[str, msgspec.Raw]]


_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
_body = msgspec.msgpack.Decoder(Inventory).decode


class Questions:
    """Answers readers."""

    def __init__(self, state: State, claims: Claims, *, software: str, pid: int, started: float) -> None:
        self.state, self._claims = state, claims
        self.software, self.pid, self.started = software, pid, started
        self.trouble: dict[str, str] = {}
        """What needs an admin, in words, by what it is about; the daemon adds its own."""
        self.outside: Callable[[], dict[str, int]] = dict
        """Counters of the server."""
        self._asked: list[tuple[Peer, m.SnapshotRequest]] = []
        """Snapshots that begin at the end of this turn."""
        self._owed: dict[Peer, list[m.Lost]] = {}
        """What peers that did not read are told when they do."""

    def announce(self, public: str) -> None:
        """The key that the broker will have soon, '' for none; agents hear it with each welcome and pulse."""
        self.state.next_key = public
        for peer in self.state.peers:
            self.tell_key(peer)

    def tell_key(self, peer: Peer) -> None:
        """A reader hears once of the next key, before anything else."""
        public = self.state.next_key
        if public and peer.told_key != public and peer.key and peer.role in access.READERS:
            peer.told_key = public
            self.state.send(peer, m.NextKey(id="", public=public))

    def handlers(self) -> dict[type, Callable[[Peer, Any, float], None]]:
        """Message classes and who answers them."""
        handlers: dict[type, Callable[[Peer, Any, float], None]] = {
            m.SnapshotRequest: self._snapshot,
            m.InventoriesRequest: self._inventories,
            m.WatchRequest: self._watch,
            m.Credit: self._credit,
            m.Unwatch: self._unwatch,
            m.MineRequest: self._mine,
            m.StatusRequest: self._status,
            m.ClaimsRequest: self._claims_are,
            m.KeysRequest: self._keys,
            m.BackupRequest: self._backup,
        }
        return {kind: self._with_good_id(handler) for kind, handler in handlers.items()}

    def _with_good_id(
        self, handler: Callable[[Peer, Any, float], None]
    ) -> Callable[[Peer, Any, float], None]:
        """Serve only questions whose id can be kept and sent back as often as needed."""

        def checked(peer: Peer, request: Any, now: float) -> None:
            if 0 < len(request.id) <= IDS:
                handler(peer, request, now)
                return
            self.state.counts["refused.invalid"] += 1
            message = f"cannot answer without an id of at most {IDS} characters"
            self.state.send(peer, m.Failed(id=request.id[:IDS], code="invalid", message=message))

        return checked

    # --------------------------------------------------------------------------------------- snapshots

    def _snapshot(self, peer: Peer, request: m.SnapshotRequest, _now: float) -> None:
        if len(self.state.snapshots) + len(self._asked) >= SNAPSHOTS:
            message = f"the broker is sending {SNAPSHOTS} snapshots already; ask again in a second"
            self.state.send(peer, m.Failed(id=request.id, code="busy", message=message))
            return
        # Not before the turn is published: the snapshot's position must be that of what it shows.
        self._asked.append((peer, request))

    def turn(self, now: float) -> None:
        """Begin the snapshots that were asked for, and deliver parts and deltas."""
        if self._asked:
            asked, self._asked = self._asked, []
            for peer, request in asked:
                self._begin(peer, request, now)
        if len(self.state.snapshots):
            self.state.out += self.state.snapshots.deliver()
        if len(self.state.changes):
            self.state.out += self.state.changes.deliver()

    def _begin(self, peer: Peer, request: m.SnapshotRequest, now: float) -> None:
        state = self.state
        found = state.supply.locations
        places = (
            [found[key] for key in request.only if key in found] if request.only else list(found.values())
        )
        begin = m.SnapshotBegin(
            id=request.id,
            revision=state.changes.revision,
            position=state.changes.position(),
            broker_ms=int(now * 1000),
            taken_at=state.wall(),
            parts=0,
            quality=state.supply.quality(),
            types=state.types.list,
        )
        views = self._claims.views
        claims, bindings = ({}, {}) if request.only else (views.claims, views.bindings)
        if not request.detail:
            state.out.append(state.snapshots.begin(peer, begin, places, claims=claims, bindings=bindings))
            return
        json = peer.json

        def encode(place: Location) -> bytes:
            return entry_of(place.key, self._view(place, now), json=json)

        state.out.append(state.snapshots.begin(peer, begin, places, encode, claims=claims, bindings=bindings))

    def _view(self, place: Location, now: float) -> View:
        """A view with everything that is known of where it came from."""
        origins = dict.fromkeys(place.static, "hosts.yaml")
        ages: dict[str, int] = {}
        for feed in place.feeds.values():
            origins |= dict.fromkeys(feed.names, feed.reporter)
            if feed.run or feed.names:
                ages[feed.reporter] = max(0, int((now - feed.born) * 1000))
        return msgspec.structs.replace(place.view, origins=origins, ages_ms=ages)

    def _inventories(self, peer: Peer, request: m.InventoriesRequest, _now: float) -> None:
        found: dict[str, dict[str, bytes]] = {}
        size = 0
        for key, reporters in request.wanted.items():
            place = self.state.supply.locations.get(key)
            for reporter in reporters if place is not None else ():
                if place is None or (kept := place.bodies.get(reporter)) is None or size > BODIES_BYTES:
                    continue
                body = found.setdefault(key, {})[reporter] = unpacked(kept)
                size += len(body)
        if size > BODIES_BYTES:
            message = f"{size} bytes of inventories are more than {BODIES_BYTES} in one answer; ask for fewer"
            self.state.send(peer, m.Failed(id=request.id, code="invalid", message=message))
            return
        json = peer.json
        bodies = {
            key: {
                name: msgspec.Raw(_encode_json(_body(body)) if json else body) for name, body in some.items()
            }
            for key, some in found.items()
        }
        answer = _Bodies(id=request.id, bodies=bodies)
        data = _encode_json(answer) if peer.json else _encode(answer)
        self.state.out.append(SendBytes(peer, data))

    # ----------------------------------------------------------------------------------------- watches

    def _watch(self, peer: Peer, request: m.WatchRequest, _now: float) -> None:
        self.state.changes.unwatch(peer, request.id)
        if len(peer.watches) >= WATCHES:
            message = f"cannot follow more than {WATCHES} streams on one connection"
            self.state.send(peer, m.Failed(id=request.id, code="invalid", message=message))
            return
        self.state.out.append(self.state.changes.watch(peer, request.id, request.since, request.credit))

    def _credit(self, peer: Peer, request: m.Credit, _now: float) -> None:
        self.state.changes.credit(peer, request.id, request.more)

    def _unwatch(self, peer: Peer, request: m.Unwatch, _now: float) -> None:
        self.state.changes.unwatch(peer, request.id)

    def deaf(self, peer: Peer, document: object) -> None:
        """A peer's queue is full: what it follows ends here, and it is owed the news."""
        if isinstance(document, m.Lost):
            self._owed.setdefault(peer, []).append(document)
        if peer.watches:
            reason = "you did not read, and what was sent has filled the queue"
            self._owed.setdefault(peer, []).extend(
                m.Lost(id=watch_id, reason=reason) for watch_id in peer.watches
            )
            self.state.changes.cut += len(peer.watches)
            self.state.changes.gone(peer)
        self.state.snapshots.gone(peer)

    def second(self) -> None:
        """Try to tell those who were cut off; who still does not read comes back through `deaf`."""
        owed, self._owed = self._owed, {}
        for peer, lost in owed.items():
            if peer in self.state.peers:
                for document in lost:
                    self.state.send(peer, document)

    # ------------------------------------------------------------------------------------------ about

    def _mine(self, peer: Peer, request: m.MineRequest, now: float) -> None:
        revision = self.state.journal.ledger.revision
        if peer.host is not None:
            view = msgspec.convert(msgspec.to_builtins(self._view(peer.host, now)), m.LocationView)
        elif peer.identity is not None:
            external = peer.identity
            refused = self.state.externals.refusals(external)
            values = {
                name: value
                for table in external.tables.values()
                for name, value in table.items()
                if name not in refused
            }
            view = m.LocationView(
                source=Source.REPORTER,
                state="connected",
                values=values,
                reporters=dict(external.states),
                about={
                    "address": external.where,
                    **{f"refused {name}": why for name, why in refused.items()},
                },
            )
        else:
            message = "only agents and reporters have something of their own here"
            self.state.send(peer, m.Failed(id=request.id, code="not-found", message=message))
            return
        self.state.send(peer, m.Mine(id=request.id, revision=revision, location=view))

    def _status(self, peer: Peer, request: m.StatusRequest, now: float) -> None:
        state, position, views = self.state, self.state.changes.position(), self._claims.views
        self.state.send(
            peer,
            m.BrokerStatus(
                id=request.id,
                software=self.software,
                pid=self.pid,
                epoch=position.epoch,
                incarnation=position.incarnation,
                revision=state.journal.ledger.revision,
                sequence=position.sequence,
                uptime_s=now - self.started,
                quality=state.supply.quality(),
                roles=dict(Counter(one.role.value for one in state.peers if one.role)),
                peers=[_peer_view(one, now) for one in state.peers] if request.peers else [],
                watchers=len(state.changes),
                claims={name: count for name, count in views.claim_states.items() if count},
                bindings={name: count for name, count in views.binding_states.items() if count},
                quarantined=sum(map(len, state.journal.ledger.claims.quarantine.values())),
                counters=self.counters(),
                next_key=state.next_key,
                trouble=self.troubles(),
            ),
        )

    def counters(self) -> dict[str, int]:
        """Everything that is counted since the start."""
        state = self.state
        return {
            "reports": state.intake.reports,
            "values": state.intake.values,
            "syncs": state.hosts.syncs,
            "deltas": state.changes.sequence,
            "watchers_cut": state.changes.cut,
            "snapshots.left_out": state.snapshots.left_out,
            **state.counts,
            **{f"refused.value.{reason}": count for reason, count in state.intake.refused.items()},
            **self.outside(),
        }

    def troubles(self) -> list[str]:
        """What needs an admin, in words."""
        own = [self.state.journal.fault, *self.trouble.values(), *self._claims.strays.troubles()]
        return [words for words in own if words]

    def _claims_are(self, peer: Peer, request: m.ClaimsRequest, _now: float) -> None:
        views, ledger = self._claims.views, self.state.journal.ledger.claims
        bindings = self._claims.views.bindings
        if request.claim:
            bindings = {one: bindings[one] for one in views.of_claim.get(request.claim, ())}
        if request.host:
            bindings = {key: one for key, one in bindings.items() if one.binding.host == request.host}
        if request.gang:
            bindings = {key: one for key, one in bindings.items() if one.binding.gang == request.gang}
        claims = views.claims
        if request.claim:
            claims = {key: claims[key] for key in (request.claim,) if key in claims}
        elif request.host or request.gang:
            wanted = {one.binding.claim for one in bindings.values()}
            claims = {key: claims[key] for key in sorted(wanted) if key in claims}
        if len(claims) + len(bindings) > ROWS:
            message = f"{len(claims)} claims and {len(bindings)} bindings do not fit in one answer"
            hint = "name a claim, host or gang, or take a snapshot"
            self.state.send(peer, m.Failed(id=request.id, code="invalid", message=message, hint=hint))
            return
        quarantined = ledger.quarantine
        if request.host:
            quarantined = {key: quarantined[key] for key in (request.host,) if key in quarantined}
        revision = self.state.journal.ledger.revision
        self.state.send(
            peer,
            m.Claims(
                id=request.id, revision=revision, claims=claims, bindings=bindings, quarantined=quarantined
            ),
        )

    def _keys(self, peer: Peer, request: m.KeysRequest, _now: float) -> None:
        keys = [
            m.KeyView(
                name=record.name,
                role=record.role,
                public=public,
                hosts=record.hosts,
                revoked=record.revoked or "",
                grants=record.grants,
                until=record.until,
                admit=record.admit,
            )
            for public, record in self.state.journal.ledger.keys.items()
        ]
        keys.sort(key=lambda key: (key.name, key.public))
        self.state.send(peer, m.Keys(id=request.id, keys=keys))

    def _backup(self, peer: Peer, request: m.BackupRequest, _now: float) -> None:
        self.state.out.append(Backup(peer, request.id))


def _peer_view(peer: Peer, now: float) -> m.PeerView:
    return m.PeerView(
        name=peer.name,
        role=peer.role.value if peer.role else "",
        key=peer.key,
        address=peer.address,
        connected_s=max(0.0, now - peer.since),
    )
