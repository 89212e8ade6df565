"""What the broker answers to questions and orders, and tells who follows the changes."""

import msgspec

from xce.model.claim import Quarantine
from xce.model.instance import Inventory
from xce.model.message.base import Reply
from xce.model.message.view import BindingView, ClaimView, LocationChange, LocationView, Position, Quality
from xce.model.resource import ResourceType
from xce.model.value import Reading


class Done(Reply, frozen=True, kw_only=True, tag="done"):
    """An order was carried out and is durable."""

    revision: int
    made: list[str] = []
    """Ids of what it made: a claim, or bindings in the order in which they were asked for."""


class Failed(Reply, frozen=True, kw_only=True, tag="failed"):
    """A request was refused. Nothing has changed."""

    code: str
    """`forbidden`, `not-found`, `conflict`, `invalid`, `busy`, `not-durable`."""
    message: str
    hint: str = ""


class SnapshotBegin(Reply, frozen=True, kw_only=True, tag="snapshot.begin"):
    """Head of a snapshot."""

    revision: int
    position: Position
    broker_ms: int
    """The broker's monotonic clock, for `Absent.since_ms`."""
    taken_at: str
    parts: int
    quality: Quality
    types: list[ResourceType]


class SnapshotPart(Reply, frozen=True, kw_only=True, tag="snapshot.part"):
    """At most 500 locations, or claims and bindings, of a snapshot."""

    part: int
    locations: dict[str, LocationView] = {}
    claims: dict[str, ClaimView] = {}
    bindings: dict[str, BindingView] = {}


class SnapshotEnd(Reply, frozen=True, kw_only=True, tag="snapshot.end"):
    """All parts have been sent."""


class InventoryBodies(Reply, frozen=True, kw_only=True, tag="inventory.bodies"):
    """Bodies that were asked for; what is gone meanwhile is left out."""

    bodies: dict[str, dict[str, Inventory]]


class WatchBegin(Reply, frozen=True, kw_only=True, tag="watch.begin"):
    """The stream starts; the first delta follows `since` without a gap."""

    since: Position


class Delta(Reply, frozen=True, kw_only=True, tag="delta"):
    """All changes of one turn of the broker."""

    position: Position
    revision: int
    broker_ms: int
    values: dict[str, dict[str, Reading]] = {}
    """Readings that changed, by location, where nothing else did and none was withdrawn."""
    locations: dict[str, LocationChange] = {}
    """What changed at the other locations."""
    removed: list[str] = []
    types: list[ResourceType] | None = None
    claims: dict[str, ClaimView | None] = {}
    """Claims that changed, whole; null: it is gone. One turn's claims and bindings are in one delta."""
    bindings: dict[str, BindingView | None] = {}
    """Bindings that changed, whole; null: it is gone, it had ended."""

    def changes(self) -> dict[str, LocationChange]:
        """What changed at each location, be it in `values` or in `locations`."""
        plain = {key: LocationChange(values={**values}) for key, values in self.values.items()}
        return {**plain, **self.locations}


class NextKey(Reply, frozen=True, kw_only=True, tag="key.next"):
    """Unasked, `id` is empty: the broker will have another key (`Welcome` and `Pulse` tell agents)."""

    public: str
    """Z85. To be kept beside the present one, and tried when that does not match any more."""


class Lost(Reply, frozen=True, kw_only=True, tag="lost"):
    """The stream ends: take a snapshot and watch again."""

    reason: str


class Mine(Reply, frozen=True, kw_only=True, tag="mine.is"):
    """What the broker holds of the asking agent's location."""

    revision: int
    location: LocationView


class PeerView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One connected peer."""

    name: str
    role: str
    key: str
    address: str = ""
    connected_s: float = 0


class BrokerStatus(Reply, frozen=True, kw_only=True, tag="status.is"):
    """The broker about itself."""

    software: str
    pid: int
    epoch: int
    incarnation: str
    revision: int
    sequence: int
    uptime_s: float
    quality: Quality
    roles: dict[str, int] = {}
    """How many peers are connected, by role."""
    peers: list[PeerView] = []
    """Only when asked for."""
    watchers: int = 0
    claims: dict[str, int] = {}
    """How many claims are in each state."""
    bindings: dict[str, int] = {}
    """The same of bindings; those that have ended and are remembered too."""
    quarantined: int = 0
    """Instances that may not be used."""
    counters: dict[str, int] = {}
    """`refused.REASON`, `reports`, `values`, `deltas`, `watchers_cut`, `rubbish`, ... since the start."""
    next_key: str = ""
    """Public key that is announced as the broker's next one, while it is being changed."""
    trouble: list[str] = []
    """What needs an admin, in words."""


class Claims(Reply, frozen=True, kw_only=True, tag="claims.are"):
    """Claims and bindings, by id."""

    revision: int
    claims: dict[str, ClaimView] = {}
    bindings: dict[str, BindingView] = {}
    quarantined: dict[str, dict[str, Quarantine]] = {}
    """Host to instance; only of the host that was asked for, if one was."""


class KeyView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One known key."""

    name: str
    role: str
    public: str
    hosts: list[str] = []
    revoked: str = ""
    """Reason, '' while it is good."""
    grants: str = ""
    until: str = ""
    admit: bool = False


class Keys(Reply, frozen=True, kw_only=True, tag="keys.are"):
    """All known keys."""

    keys: list[KeyView]
