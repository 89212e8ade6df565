"""Everything that is said on the wire between programs.

Two forms. *Documents* are maps with a `type`, in MessagePack or JSON: all of the controllers' and admins'
protocol, and the rare messages of agents. *Ticks* are positional MessagePack arrays, agent to broker only:
what an agent sends all day. The first byte tells them apart (`{` JSON, array head: tick, else document).

Unknown fields are ignored, so that a newer peer can add some. Every field that can be left out has a default.
`PROTOCOL` rises only when an old reader would misunderstand.

`gc=False` stands where there are ten thousand of a kind: plain data has no cycles, and the collector need not
look.
"""

from typing import TypeAlias

import msgspec

from xce.model.claim import Binding, BindingState, Chosen, Claim, Consumer, Quarantine
from xce.model.instance import Inventory, InventoryRef
from xce.model.resource import ResourceType
from xce.model.supply import Hold, PoolAmount, Source
from xce.model.value import Count, Reading

PROTOCOL = 1
TICK_BYTES = 1 << 20
DOCUMENT_BYTES = 4 << 20
"""Limits on one message; a longer one is refused and counted."""


# ---------------------------------------------------------------------------------------------- ticks


class FeedTick(msgspec.Struct, frozen=True, array_like=True):
    """What one reporter has new."""

    reporter: str
    run: Count
    age_ms: Count
    """Age of its last good frame."""
    values: dict[str, Reading | None] = {}
    """Only what changed; None: withdrawn."""


class Report(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """Changed readings of one tick, all reporters in one message."""

    sequence: Count
    """Counts the ticks of one connection from 1; a gap makes the broker ask for everything."""
    feeds: list[FeedTick]
    full: bool = False
    """The whole table: whatever is not in it is withdrawn."""


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    """Alive; answered with `Pulse`. Shares the sequence of `Report`."""

    sequence: Count
    ages_ms: dict[str, Count]
    """Reporter to age of its last good frame; ageing alone makes no delta."""
    digest: str = ""
    """`model.value.digest` of the whole table, now and then; '' when left out."""


Tick: TypeAlias = Report | Heartbeat


# ------------------------------------------------------------------------------ documents, agent's link


class _Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of all documents."""


class ReporterState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The health of one reporter at one location: first-class on the node, in the broker, in metrics."""

    state: str
    """`model.reporter.ReporterState` as text."""
    cause: str = ""
    """What is wrong, in words; '' when all is well."""
    note: str = ""
    """What people should know about it although nothing is wrong."""
    path: str = ""
    script: str = ""
    """First 16 hex digits of the SHA-256 of what runs."""
    mode: str = ""
    interval_ms: Count = 0
    """Effective, after the governor's stretch."""
    ttl_ms: Count = 0
    runs: Count = 0
    failures: Count = 0
    overruns: Count = 0
    refused: Count = 0
    """Values refused in the last run."""
    abandoned: Count = 0
    """Children that cannot be killed."""
    conditions: list["ReportedCondition"] = []


class ReportedCondition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Something a reporter wants people to know; with `hold` it also holds its location."""

    name: str
    reason: str = ""
    hold: bool = False


class Hello(_Document, frozen=True, kw_only=True, tag="hello"):
    """First message on every connection that is not a pure request: who I am and what I hold."""

    protocol: int
    role: str
    """`agent` or `reporter`; must be one that the key allows."""
    name: str
    """Host name of an agent, identity of an external reporter."""
    software: str = ""
    machine_id: str = ""
    boot_id: str = ""
    nonce: str = ""
    """Random per process: tells a restart from a second agent."""
    address: str = ""
    """Host name, pid: what the other of two duplicates is told."""
    digest: str = ""
    types: str = ""
    """Digest of the types that it works by (`value.digest_of`)."""
    inventories: dict[str, InventoryRef] = {}
    bindings: str | None = None
    """Of an agent: `claim.holdings_digest` of the bindings that it has; null: it knows nothing of claims."""


class ReporterNews(_Document, frozen=True, kw_only=True, tag="reporters"):
    """States that changed; None: the reporter is gone, and its values with it."""

    reporters: dict[str, ReporterState | None]
    full: bool = False


class InventoryNews(_Document, frozen=True, kw_only=True, tag="inventory"):
    """A reporter's new inventory, whole."""

    inventory: Inventory


class InventoryGone(_Document, frozen=True, kw_only=True, tag="inventory.gone"):
    """The reporter of an inventory was removed."""

    reporter: str


class Declare(_Document, frozen=True, kw_only=True, tag="declare"):
    """Types that NAME.yaml files of this node declare, by origin (`FILE`)."""

    types: dict[str, list[ResourceType]]


class BindingReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node says of one binding; a later one replaces it whole."""

    state: BindingState
    epoch: Count = 0
    """Of the last order about it that the node has taken."""
    reason: str = ""
    """Why it is in this state, in words."""
    evidence: str = ""
    """Digest of what was read back from the kernel; of a binding that is ready."""
    ports: dict[str, list[Count]] = {}
    """Picked ports, by the name that the claim gives them; of a binding that is ready."""
    conditions: list[str] = []
    """`claim.Condition`: degraded, undoing, blocked, uncertain."""
    note: str = ""
    """What the conditions are about, in words: `pid 4711 holds /dev/nvidia3`."""
    instances: list[Chosen] = []
    """What it has, in a full report."""
    quarantine: dict[str, str] = {}
    """Of a binding that has ended: instances that may not be used again, and why."""
    wants_words: bool = False
    """The order is to be given again: what the claim's provider says is kept in no journal, and is needed."""


class BindingNews(_Document, frozen=True, kw_only=True, tag="bindings"):
    """Bindings of this node that changed; repeated until `BindingStanding` says the same."""

    reports: dict[str, BindingReport]
    """By the id of the binding."""
    full: bool = False
    """All that it has: the broker settles what only one of the two knows of."""


class Goodbye(_Document, frozen=True, kw_only=True, tag="goodbye"):
    """A planned stop; with `expected_s` the agent means to be back."""

    expected_s: float = 0


class Welcome(_Document, frozen=True, kw_only=True, tag="welcome"):
    """The broker's answer to a hello."""

    epoch: int
    incarnation: str
    heartbeat_ms: int
    """Assigned interval between heartbeats."""
    silent_after_ms: int
    """Without a pulse for this long, either side counts the other as gone."""
    resync: bool
    """Send everything (`Report.full`)."""
    inventories: list[str] = []
    """Reporters whose inventory body is wanted."""
    types: list[ResourceType] | None = None
    """The cluster's types; None: your digest matches."""
    state: str = ""
    conditions: list[str] = []
    holds: list[Hold] = []
    bindings: bool = False
    """Say all bindings (`BindingNews.full`): the broker knows of others, or knows them otherwise."""
    next_key: str = ""
    """The public key that the broker will have soon, while it is being rotated."""


class Refused(_Document, frozen=True, kw_only=True, tag="refused"):
    """The broker will not serve this peer; it may try again after `retry_s`."""

    code: str
    """`duplicate`, `role`, `name`, `unknown-host`, `released`, `protocol`, `busy`."""
    message: str
    hint: str = ""
    retry_s: float = 10


class Resync(_Document, frozen=True, kw_only=True, tag="resync"):
    """Send everything: the digests differ, or a tick is missing."""

    reason: str
    inventories: list[str] = []


class Pulse(_Document, frozen=True, kw_only=True, tag="pulse"):
    """Answer to a heartbeat."""

    sequence: int
    next_key: str = ""
    """As in `Welcome`."""


class Standing(_Document, frozen=True, kw_only=True, tag="standing"):
    """The host's state or holds have changed; for showing on the node."""

    state: str
    conditions: list[str] = []
    holds: list[Hold] = []


class TypesNews(_Document, frozen=True, kw_only=True, tag="types"):
    """The cluster's types have changed, whole."""

    types: list[ResourceType]


class Declared(_Document, frozen=True, kw_only=True, tag="declared"):
    """What became of a `Declare`: resource name to '' (in force) or the reason for refusing it."""

    types: dict[str, str]


class BindingPrepare(_Document, frozen=True, kw_only=True, tag="binding.prepare"):
    """Make a binding ready. The same order may come again; it is carried out once."""

    epoch: Count
    """Reign of the broker that orders; an order of an older one than the newest known is refused."""
    op_id: str
    binding: Binding
    claim: Claim
    volume: dict[str, str] = {}
    """What the claim's provider says of it; it may be secret."""


class BindingRelease(_Document, frozen=True, kw_only=True, tag="binding.release"):
    """Take a binding back, whatever is there of it. A node that has nothing of it says `released`."""

    epoch: Count
    op_id: str
    binding: str
    reason: str = ""


class BindingStanding(_Document, frozen=True, kw_only=True, tag="binding.standing"):
    """What the broker has durably of this node's bindings: the answer to `BindingNews`, and news of gangs.

    A binding of a gang is ready for its consumer only when this says so.
    """

    bindings: dict[str, str]
    """Id to state; `unknown` for one that the broker does not know: it is left alone, and shown."""


# --------------------------------------------------------------------- documents, controllers and admins


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the change stream; places of different incarnations cannot be compared."""

    epoch: int
    incarnation: str
    sequence: int


class LocationView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One location as a controller sees it."""

    source: Source
    state: str
    conditions: list[str] = []
    holds: list[Hold] = []
    groups: list[str] = []
    values: dict[str, Reading] = {}
    reporters: dict[str, ReporterState] = {}
    inventories: dict[str, InventoryRef] = {}
    amounts: dict[str, PoolAmount] = {}
    """Pools: resource to amounts."""
    about: dict[str, str] = {}
    """software, machine_id, boot_id, claims (yes, no), address, instance, template, drained (reason)."""
    origins: dict[str, str] = {}
    """Value name to reporter, only when asked for (`Snapshot.detail`)."""
    ages_ms: dict[str, int] = {}
    """Reporter to age of its last good frame, only when asked for."""
    quarantined: dict[str, Quarantine] = {}
    """Hosts: instances that may not be used, by id."""


class LocationChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What changed at one location. Scalars and lists replace; in maps, None removes the key.

    `source` and `state` are always there for a location that is new to the stream.
    """

    source: Source | None = None
    state: str | None = None
    conditions: list[str] | None = None
    holds: list[Hold] | None = None
    groups: list[str] | None = None
    values: dict[str, Reading | None] = {}
    reporters: dict[str, ReporterState | None] = {}
    inventories: dict[str, InventoryRef | None] = {}
    amounts: dict[str, PoolAmount | None] = {}
    about: dict[str, str] | None = None
    quarantined: dict[str, Quarantine | None] = {}


class ClaimView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One claim as a controller sees it. Its bindings stand beside it and name it."""

    claim: Claim
    state: str
    """`claim.BindingState`: the worst of its bindings, see `claim.claim_state`."""
    conditions: list[str] = []
    reason: str = ""
    """What its provider says."""
    volume: dict[str, str] = {}
    by: str = ""
    """Who created it: `controller:sched`."""


class BindingView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One binding as a controller sees it."""

    binding: Binding
    conditions: list[str] = []
    """`claim.Condition`."""
    note: str = ""
    """What the conditions are about, in words."""


class Quality(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How good a snapshot is: counts of readings by presence, and of hosts by state."""

    value: int = 0
    unknown: int = 0
    stale: int = 0
    never_seen: int = 0
    not_applicable: int = 0
    hosts: dict[str, int] = {}
    rejoining: int = 0


class _Request(_Document, frozen=True, kw_only=True):
    """A question or an order; the answer carries the same `id`.

    For an order, `id` is the op_id: the same id gets the same answer, also after a restart of the broker.
    """

    id: str
    """Chosen by who asks, 1 to 128 characters."""


class SnapshotRequest(_Request, frozen=True, kw_only=True, tag="snapshot"):
    """Everything at one revision; answered by `SnapshotBegin`, parts, `SnapshotEnd`."""

    only: list[str] = []
    """Location keys; empty: all."""
    detail: bool = False
    """Fill `origins` and `ages_ms`."""


class InventoriesRequest(_Request, frozen=True, kw_only=True, tag="inventories"):
    """Bodies of inventories; answered by `InventoryBodies`."""

    wanted: dict[str, list[str]]
    """Location key to reporters."""


class WatchRequest(_Request, frozen=True, kw_only=True, tag="watch"):
    """Follow the changes after `since`; answered by `WatchBegin` and `Delta`s, or `Lost`."""

    since: Position
    credit: int = 16
    """Deltas that may come before the next `Credit`."""


class Credit(_Request, frozen=True, kw_only=True, tag="credit"):
    """So many more deltas may come; not answered."""

    more: int


class Unwatch(_Request, frozen=True, kw_only=True, tag="unwatch"):
    """Stop the deltas."""


class MineRequest(_Request, frozen=True, kw_only=True, tag="mine"):
    """An agent asks what the broker holds of its own location; answered by `Mine`."""


class StatusRequest(_Request, frozen=True, kw_only=True, tag="status"):
    """The broker about itself; answered by `BrokerStatus`."""

    peers: bool = False
    """List the connected peers."""


class ClaimsRequest(_Request, frozen=True, kw_only=True, tag="claims"):
    """Claims and their bindings; answered by `Claims`. What is given narrows the answer."""

    claim: str = ""
    host: str = ""
    gang: str = ""


class KeysRequest(_Request, frozen=True, kw_only=True, tag="keys"):
    """All known keys; answered by `Keys`."""


class HostAdd(_Request, frozen=True, kw_only=True, tag="host.add"):
    """A host should exist (source `provisioner`, or `config` by an admin's hand)."""

    host: str
    groups: list[str] = []
    instance: str = ""
    template: str = ""
    join_within_s: float = 0


class HostAdmit(_Request, frozen=True, kw_only=True, tag="host.admit"):
    """Let in a host that nobody expected."""

    host: str


class HostDrain(_Request, frozen=True, kw_only=True, tag="host.drain"):
    """Drain a host."""

    host: str
    reason: str


class HostUndrain(_Request, frozen=True, kw_only=True, tag="host.undrain"):
    """End the drain."""

    host: str


class HostRelease(_Request, frozen=True, kw_only=True, tag="host.release"):
    """The host should no longer exist."""

    host: str
    reason: str


class HoldAdd(_Request, frozen=True, kw_only=True, tag="hold.add"):
    """Hold a location. The owner is `ROLE:KEYNAME`, with `/label` if given."""

    location: str
    reason: str
    label: str = ""


class HoldRelease(_Request, frozen=True, kw_only=True, tag="hold.release"):
    """Take a hold away."""

    location: str
    owner: str


class PoolSet(_Request, frozen=True, kw_only=True, tag="pool.set"):
    """Set a pool's amount of a resource; what is None stays."""

    pool: str
    resource: str
    base: float | None = None
    borrowed: float | None = None


class KeyAdd(_Request, frozen=True, kw_only=True, tag="key.add"):
    """Accept a public key."""

    name: str
    role: str
    public: str
    hosts: list[str] = []
    grants: str = ""
    """Of a joiner, whose key is a token: the role of the key that it may have accepted, once."""
    lifetime_s: float = 0
    """Of a joiner: how long from now on."""
    admit: bool = False
    """Of a joiner: admit the host, whatever the policy for hosts that nobody expects."""


class Join(_Request, frozen=True, kw_only=True, tag="join"):
    """Said with a token's key: accept this one from now on. The token is used up with it."""

    name: str
    """The host, of an agent."""
    public: str


class KeyRotate(_Request, frozen=True, kw_only=True, tag="key.rotate"):
    """Accept one more key for the caller, with the same name, role and hosts."""

    public: str


class KeyRetire(_Request, frozen=True, kw_only=True, tag="key.retire"):
    """Accept no other key of the caller's name and role any more than the one that says this."""


class KeyRevoke(_Request, frozen=True, kw_only=True, tag="key.revoke"):
    """Accept a public key no longer; open connections of it are cut off at once."""

    name: str
    reason: str


class ClaimCreate(_Request, frozen=True, kw_only=True, tag="claim.create"):
    """A claim is wanted. The answer's `made` has its id."""

    claim: Claim


class ClaimProvide(_Request, frozen=True, kw_only=True, tag="claim.provide"):
    """A provider says how far it is with a claim of its own."""

    claim: str
    state: BindingState
    reason: str = ""
    volume: dict[str, str] = {}


class Pick(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instance that was chosen from a snapshot."""

    id: str
    reporter: str
    generation: Count
    """Of the inventory that it was chosen from; with any other the choice is refused."""


class Place(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One binding that is wanted."""

    claim: str
    host: str
    consumer: Consumer
    instances: list[Pick] = []
    read_only: bool = False


class ClaimBind(_Request, frozen=True, kw_only=True, tag="claim.bind"):
    """Bind claims to hosts. The answer's `made` has the ids of the bindings, in the same order.

    Several are a gang: all become ready at once, or all are released. Ready is an event in the stream.
    """

    places: list[Place]
    ready_within_s: float = 0
    """Released again if it takes longer; 0: no limit."""


class ClaimRelease(_Request, frozen=True, kw_only=True, tag="claim.release"):
    """Release bindings: these, or all of a gang, or all of a claim. A template claim ends with it."""

    claim: str = ""
    gang: str = ""
    bindings: list[str] = []
    reason: str = ""


class ClaimDelete(_Request, frozen=True, kw_only=True, tag="claim.delete"):
    """Delete a claim without live bindings."""

    claim: str


class BindingForce(_Request, frozen=True, kw_only=True, tag="binding.force"):
    """Give up waiting for a node: the binding counts as released, its instances are quarantined."""

    binding: str
    reason: str


class QuarantineSet(_Request, frozen=True, kw_only=True, tag="quarantine.set"):
    """An instance may not be used."""

    host: str
    instance: str
    reason: str


class QuarantineClear(_Request, frozen=True, kw_only=True, tag="quarantine.clear"):
    """An instance may be used again."""

    host: str
    instance: str
    reason: str


class BackupRequest(_Request, frozen=True, kw_only=True, tag="backup"):
    """Write a whole copy of the facts beside the store, as `facts.copy`; answered by `Done` with its last
    revision.
    """


class _Answer(_Document, frozen=True, kw_only=True):
    """An answer; `id` is the request's."""

    id: str


class Done(_Answer, frozen=True, kw_only=True, tag="done"):
    """An order was carried out and is durable."""

    revision: int
    made: list[str] = []
    """Ids of what it made: a claim, or bindings in the order in which they were asked for."""


class Failed(_Answer, frozen=True, kw_only=True, tag="failed"):
    """A request was refused. Nothing has changed."""

    code: str
    """`forbidden`, `not-found`, `conflict`, `invalid`, `busy`, `not-durable`."""
    message: str
    hint: str = ""


class SnapshotBegin(_Answer, frozen=True, kw_only=True, tag="snapshot.begin"):
    """Head of a snapshot."""

    revision: int
    position: Position
    broker_ms: int
    """The broker's monotonic clock, for `Absent.since_ms`."""
    taken_at: str
    parts: int
    quality: Quality
    types: list[ResourceType]


class SnapshotPart(_Answer, frozen=True, kw_only=True, tag="snapshot.part"):
    """At most 1,000 locations, or claims and bindings, of a snapshot."""

    part: int
    locations: dict[str, LocationView] = {}
    claims: dict[str, ClaimView] = {}
    bindings: dict[str, BindingView] = {}


class SnapshotEnd(_Answer, frozen=True, kw_only=True, tag="snapshot.end"):
    """All parts have been sent."""


class InventoryBodies(_Answer, frozen=True, kw_only=True, tag="inventory.bodies"):
    """Bodies that were asked for; what is gone meanwhile is left out."""

    bodies: dict[str, dict[str, Inventory]]


class WatchBegin(_Answer, frozen=True, kw_only=True, tag="watch.begin"):
    """The stream starts; the first delta follows `since` without a gap."""

    since: Position


class Delta(_Answer, frozen=True, kw_only=True, tag="delta"):
    """All changes of one turn of the broker."""

    position: Position
    revision: int
    broker_ms: int
    locations: dict[str, LocationChange] = {}
    removed: list[str] = []
    types: list[ResourceType] | None = None
    claims: dict[str, ClaimView | None] = {}
    """Claims that changed, whole; null: it is gone. One turn's claims and bindings are in one delta."""
    bindings: dict[str, BindingView | None] = {}
    """Bindings that changed, whole; null: it is gone, it had ended."""


class NextKey(_Answer, frozen=True, kw_only=True, tag="key.next"):
    """Unasked, `id` is empty: the broker will have another key (`Welcome` and `Pulse` tell agents)."""

    public: str
    """Z85. To be kept beside the present one, and tried when that does not match any more."""


class Lost(_Answer, frozen=True, kw_only=True, tag="lost"):
    """The stream ends: take a snapshot and watch again."""

    reason: str


class Mine(_Answer, frozen=True, kw_only=True, tag="mine.is"):
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


class BrokerStatus(_Answer, frozen=True, kw_only=True, tag="status.is"):
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
    trouble: list[str] = []
    """What needs an admin, in words."""


class Claims(_Answer, frozen=True, kw_only=True, tag="claims.are"):
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


class Keys(_Answer, frozen=True, kw_only=True, tag="keys.are"):
    """All known keys."""

    keys: list[KeyView]


FromAgent: TypeAlias = Hello | ReporterNews | InventoryNews | InventoryGone | Declare | BindingNews | Goodbye
ToAgent: TypeAlias = (
    Welcome
    | Refused
    | Resync
    | Pulse
    | Standing
    | TypesNews
    | Declared
    | BindingPrepare
    | BindingRelease
    | BindingStanding
)
Read: TypeAlias = (
    SnapshotRequest
    | InventoriesRequest
    | WatchRequest
    | Credit
    | Unwatch
    | MineRequest
    | StatusRequest
    | ClaimsRequest
    | KeysRequest
    | BackupRequest
)
Order: TypeAlias = (
    HostAdd
    | HostAdmit
    | HostDrain
    | HostUndrain
    | HostRelease
    | HoldAdd
    | HoldRelease
    | PoolSet
    | KeyAdd
    | KeyRevoke
    | KeyRotate
    | KeyRetire
    | Join
    | ClaimCreate
    | ClaimProvide
    | ClaimBind
    | ClaimRelease
    | ClaimDelete
    | BindingForce
    | QuarantineSet
    | QuarantineClear
)
Answer: TypeAlias = (
    Done
    | Failed
    | SnapshotBegin
    | SnapshotPart
    | SnapshotEnd
    | InventoryBodies
    | WatchBegin
    | Delta
    | NextKey
    | Lost
    | Mine
    | BrokerStatus
    | Claims
    | Keys
)
ToBroker: TypeAlias = FromAgent | Read | Order
FromBroker: TypeAlias = ToAgent | Answer
