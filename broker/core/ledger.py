"""The durable state: what replaying all facts gives. Nothing else may change it, and it knows no clock.

Records are frozen and replaced whole, so a copy of the ledger is cheap and the two never share anything that
changes. `apply` trusts a fact: orders are checked before they become facts (`orders.py`), and a fact that was
once written is true. A fact that does not follow is `OutOfOrder`.
"""

import msgspec

from xce.broker.core.claim_ledger import ClaimLedger
from xce.model import fact as facts
from xce.model.fact import Fact
from xce.model.resource import ResourceType
from xce.model.supply import Hold, PoolAmount, Source


class OutOfOrder(Exception):
    """A fact's revision does not follow the ledger's."""


class Drain(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who drains a host, and why."""

    owner: str
    reason: str


class HostRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is durably known of a host. `source` is None for one that only turned up."""

    source: Source | None = None
    groups: list[str] = []
    instance: str = ""
    template: str = ""
    join_within_s: float = 0
    admitted: bool = False
    key: str = ""
    """Public key that it joined with last; '' until it has joined."""
    machine_id: str = ""
    drain: Drain | None = None
    released: str | None = None
    """Why it should no longer exist."""


class AdmittedType(msgspec.Struct, frozen=True, omit_defaults=True):
    """A type that a reporter's NAME.yaml declared first."""

    type: ResourceType
    origin: str


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A peer's public key."""

    name: str
    role: str
    hosts: list[str] = []
    revoked: str | None = None
    grants: str = ""
    until: str = ""
    admit: bool = False


class Answered(msgspec.Struct, frozen=True):
    """An order that was carried out: the same order by the same peer is answered the same."""

    key: str
    """`ROLE:NAME` of the peer and its op_id: two peers may choose the same."""
    request: str
    """Digest of the request."""
    revision: int
    made: list[str] = []
    """Ids of what it made, in the answer."""


class Ledger(msgspec.Struct, kw_only=True):
    """The state after `revision` facts."""

    revision: int = 0
    epoch: int = 0
    hosts: dict[str, HostRecord] = {}
    holds: dict[str, dict[str, Hold]] = {}
    """Location key to owner to hold."""
    pools: dict[str, dict[str, PoolAmount]] = {}
    types: dict[str, AdmittedType] = {}
    keys: dict[str, KeyRecord] = {}
    """By public key."""
    claims: ClaimLedger = msgspec.field(default_factory=ClaimLedger)
    checkpoint: int = 0
    """Revision of the last checkpoint; 0: none yet."""

    def apply(self, fact: Fact) -> None:
        """Take the next fact; raises `OutOfOrder` for any other. An empty ledger may take a checkpoint."""
        change, revision = fact.change, fact.revision
        first = self.revision == 0 and isinstance(change, facts.Checkpoint)
        if revision != self.revision + 1 and not first:
            raise OutOfOrder(f"fact {revision} came after revision {self.revision}")
        if isinstance(change, facts.ClaimChange):
            self.claims.take(change, by=fact.by, revision=revision)
        elif isinstance(change, facts.Checkpoint):
            if first:
                self._adopt(_decode(change.ledger))
            self.checkpoint = revision  # otherwise what it says is what is here already
        else:
            self._take(change)
        self.revision = revision

    def encoded(self) -> bytes:
        """All of it, for a checkpoint, but for what can be worked out."""
        bare = self.copy()
        bare.claims = bare.claims.bare()
        return _encode(bare)

    def _adopt(self, other: "Ledger") -> None:
        for field in self.__struct_fields__:
            setattr(self, field, getattr(other, field))
        self.claims.work_out()

    def copy(self) -> "Ledger":
        """An equal ledger that shares only frozen records."""
        return Ledger(
            revision=self.revision,
            epoch=self.epoch,
            hosts=dict(self.hosts),
            holds={key: dict(holds) for key, holds in self.holds.items()},
            pools={name: dict(amounts) for name, amounts in self.pools.items()},
            types=dict(self.types),
            keys=dict(self.keys),
            claims=self.claims.copy(),
            checkpoint=self.checkpoint,
        )

    def good_key(self, public: str) -> KeyRecord | None:
        """The record of a key that is known and not revoked."""
        record = self.keys.get(public)
        return record if record is not None and record.revoked is None else None

    def _take(self, change: facts.Change) -> None:  # noqa: C901, PLR0912 - one short arm for each kind of fact
        match change:
            case facts.EpochStarted():
                self.epoch = change.epoch
            case facts.HostAdded():
                before = self.hosts.get(change.host, HostRecord())
                self.hosts[change.host] = HostRecord(
                    source=change.source,
                    groups=change.groups,
                    instance=change.instance,
                    template=change.template,
                    join_within_s=change.join_within_s,
                    key="" if before.released is not None else before.key,
                    machine_id="" if before.released is not None else before.machine_id,
                    drain=before.drain,
                )
            case facts.HostAdmitted():
                self._host(change.host, admitted=True)
            case facts.HostJoined():
                self._host(change.host, key=change.key, machine_id=change.machine_id)
            case facts.HostDrained():
                self._host(change.host, drain=Drain(change.owner, change.reason))
            case facts.HostUndrained():
                self._host(change.host, drain=None)
            case facts.HostReleased():
                self._host(change.host, released=change.reason, drain=None, admitted=False)
            case facts.HoldAdded():
                self.holds.setdefault(change.location, {})[change.hold.owner] = change.hold
            case facts.HoldReleased():
                held = self.holds.get(change.location, {})
                held.pop(change.owner, None)
                if not held:
                    self.holds.pop(change.location, None)
            case facts.PoolSet():
                self.pools.setdefault(change.pool, {})[change.resource] = change.amount
            case facts.TypeAdmitted():
                self.types[change.type.name] = AdmittedType(change.type, change.origin)
            case facts.KeyAdded():
                self.keys[change.public] = KeyRecord(
                    name=change.name,
                    role=change.role,
                    hosts=change.hosts,
                    grants=change.grants,
                    until=change.until,
                    admit=change.admit,
                )
            case facts.KeyRevoked():
                if (key := self.keys.get(change.public)) is not None:
                    self.keys[change.public] = msgspec.structs.replace(key, revoked=change.reason)

    def _host(self, host: str, **changes: object) -> None:
        self.hosts[host] = msgspec.structs.replace(self.hosts.get(host, HostRecord()), **changes)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Ledger).decode
