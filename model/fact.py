"""Facts: the durable, numbered changes of the broker's state.

Replaying every fact in order gives the durable state again, field by field. A fact says what changed, not
what was asked; `op_id` is the caller's key, so that the same key gets the same answer after a restart too.
The revision is the number of the last fact. New fields get defaults; a field is never given a new meaning.
"""

from typing import TypeAlias

import msgspec

from xce.model.claim import Binding, BindingState, Claim, Quarantine
from xce.model.resource import ResourceType
from xce.model.supply import Hold, PoolAmount, Source
from xce.model.value import Count


class _Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="change"):
    """Base of all changes; the tag names them in the store and in `export`."""


class EpochStarted(_Change, frozen=True, kw_only=True, tag="epoch.started"):
    """A broker began its reign."""

    epoch: int


class Checkpoint(_Change, frozen=True, kw_only=True, tag="checkpoint"):
    """All that the facts before it have come to: they are not needed any more, and are forgotten."""

    ledger: bytes
    """`broker.core.ledger.Ledger` in MessagePack."""


class HostAdded(_Change, frozen=True, kw_only=True, tag="host.added"):
    """A host should exist."""

    host: str
    source: Source
    groups: list[str] = []
    instance: str = ""
    """Provisioner's id of the machine."""
    template: str = ""
    join_within_s: float = 0
    """0: no deadline."""


class HostAdmitted(_Change, frozen=True, kw_only=True, tag="host.admitted"):
    """A host that nobody expected was let in."""

    host: str


class HostJoined(_Change, frozen=True, kw_only=True, tag="host.joined"):
    """A host proved itself for the first time, or with a new machine or key."""

    host: str
    key: str
    machine_id: str


class HostDrained(_Change, frozen=True, kw_only=True, tag="host.drained"):
    """An admin drains a host."""

    host: str
    owner: str
    reason: str


class HostUndrained(_Change, frozen=True, kw_only=True, tag="host.undrained"):
    """The drain is over."""

    host: str


class HostReleased(_Change, frozen=True, kw_only=True, tag="host.released"):
    """A host should no longer exist."""

    host: str
    reason: str


class HoldAdded(_Change, frozen=True, kw_only=True, tag="hold.added"):
    """A hold was placed on a location; one per owner."""

    location: str
    hold: Hold


class HoldReleased(_Change, frozen=True, kw_only=True, tag="hold.released"):
    """A hold was taken away."""

    location: str
    owner: str


class PoolSet(_Change, frozen=True, kw_only=True, tag="pool.set"):
    """A pool's amount of a resource was set."""

    pool: str
    resource: str
    amount: PoolAmount


class TypeAdmitted(_Change, frozen=True, kw_only=True, tag="type.admitted"):
    """A type that a reporter's NAME.yaml declares became the cluster's."""

    type: ResourceType
    origin: str
    """Host or identity and file that declared it."""


class KeyAdded(_Change, frozen=True, kw_only=True, tag="key.added"):
    """A peer's public key is known."""

    name: str
    role: str
    public: str
    """Z85, 40 characters."""
    hosts: list[str] = []
    """Shell-style patterns of host names that an agent's key may speak for."""
    grants: str = ""
    """Of a joiner: the role of the key that it may have accepted."""
    until: str = ""
    """Of a joiner: wall time, ISO 8601 in UTC, after which it is refused."""
    admit: bool = False
    """Of a joiner: the host that joins with it is admitted."""


class KeyRevoked(_Change, frozen=True, kw_only=True, tag="key.revoked"):
    """A peer's public key is no longer accepted."""

    public: str
    reason: str


class ClaimChange(_Change, frozen=True, kw_only=True):
    """Base of the changes that are about claims, bindings and quarantine: `broker.core.claim_ledger`'s."""


class ClaimCreated(ClaimChange, frozen=True, kw_only=True, tag="claim.created"):
    """A claim is wanted."""

    claim: Claim


class ClaimProvided(ClaimChange, frozen=True, kw_only=True, tag="claim.provided"):
    """A provider has said how far it is with what a claim needs from it."""

    claim: str
    state: BindingState
    reason: str = ""
    volume: dict[str, str] = {}
    """What nodes need to know of it; opaque here."""


class ClaimEnding(ClaimChange, frozen=True, kw_only=True, tag="claim.ending"):
    """A claim takes no more bindings, and is forgotten once the last of them has ended."""

    claim: str


class ClaimDeleted(ClaimChange, frozen=True, kw_only=True, tag="claim.deleted"):
    """A claim is forgotten, with its bindings, which have all ended."""

    claim: str


class BindingMade(ClaimChange, frozen=True, kw_only=True, tag="binding.made"):
    """A claim was bound to a host; its instances are taken from here on."""

    binding: Binding


class BindingMoved(ClaimChange, frozen=True, kw_only=True, tag="binding.moved"):
    """A binding is in another state."""

    binding: str
    state: BindingState
    reason: str = ""
    evidence: str = ""
    ports: dict[str, list[Count]] = {}
    forced: bool = False
    """Nobody knows what its node still has of it."""


class BindingGone(ClaimChange, frozen=True, kw_only=True, tag="binding.gone"):
    """The node has nothing any more of a binding whose release was forced."""

    host: str
    binding: str


class GangReady(ClaimChange, frozen=True, kw_only=True, tag="gang.ready"):
    """Every binding of a gang was verified: all of them are ready, at once."""

    gang: str
    members: list[BindingMoved]


class InstanceQuarantined(ClaimChange, frozen=True, kw_only=True, tag="instance.quarantined"):
    """An instance may not be used."""

    host: str
    quarantine: Quarantine


class QuarantineCleared(ClaimChange, frozen=True, kw_only=True, tag="quarantine.cleared"):
    """An instance may be used again."""

    host: str
    instance: str
    reason: str = ""


Change: TypeAlias = (
    EpochStarted
    | Checkpoint
    | HostAdded
    | HostAdmitted
    | HostJoined
    | HostDrained
    | HostUndrained
    | HostReleased
    | HoldAdded
    | HoldReleased
    | PoolSet
    | TypeAdmitted
    | KeyAdded
    | KeyRevoked
    | ClaimCreated
    | ClaimProvided
    | ClaimEnding
    | ClaimDeleted
    | BindingMade
    | BindingMoved
    | BindingGone
    | GangReady
    | InstanceQuarantined
    | QuarantineCleared
)


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One durable change."""

    revision: int
    change: Change
    by: str = ""
    """Name of the key that asked, '' for the broker itself."""
    op_id: str = ""
    at: str = ""
    """Wall time, ISO 8601, only for showing."""
