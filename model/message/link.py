"""Documents on the link of an agent or an external reporter, both ways."""

import msgspec

from xce.model.claim import Binding, BindingState, Chosen, Claim
from xce.model.instance import Inventory, InventoryRef
from xce.model.message.base import Document
from xce.model.resource import ResourceType
from xce.model.supply import Hold
from xce.model.value import Count


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


class Hello(Document, frozen=True, kw_only=True, tag="hello"):
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
    epoch: Count = 0
    """The newest reign whose orders about claims its node has seen; it refuses those of older ones."""
    newest: Count = 0
    """The highest number of a binding that its node has known: the ids of new ones are above it."""


class ReporterNews(Document, frozen=True, kw_only=True, tag="reporters"):
    """States that changed; None: the reporter is gone, and its values with it."""

    reporters: dict[str, ReporterState | None]
    full: bool = False


class InventoryNews(Document, frozen=True, kw_only=True, tag="inventory"):
    """A reporter's new inventory, whole."""

    inventory: Inventory


class InventoryGone(Document, frozen=True, kw_only=True, tag="inventory.gone"):
    """The reporter of an inventory was removed."""

    reporter: str


class Declare(Document, frozen=True, kw_only=True, tag="declare"):
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


class BindingNews(Document, frozen=True, kw_only=True, tag="bindings"):
    """Bindings of this node that changed; repeated until `BindingStanding` says the same."""

    reports: dict[str, BindingReport]
    """By the id of the binding."""
    full: bool = False
    """All that it has: the broker settles what only one of the two knows of."""


class Goodbye(Document, frozen=True, kw_only=True, tag="goodbye"):
    """A planned stop; with `expected_s` the agent means to be back."""

    expected_s: float = 0


class Welcome(Document, frozen=True, kw_only=True, tag="welcome"):
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
    spread_ms: int = 0
    """Over so long agents are to spread their attempts when all come back together; 0: as very many do."""


class Refused(Document, frozen=True, kw_only=True, tag="refused"):
    """The broker will not serve this peer; it may try again after `retry_s`."""

    code: str
    """`duplicate`, `role`, `name`, `unknown-host`, `released`, `protocol`, `busy`."""
    message: str
    hint: str = ""
    retry_s: float = 10


class Resync(Document, frozen=True, kw_only=True, tag="resync"):
    """Send everything: the digests differ, or a tick is missing."""

    reason: str
    inventories: list[str] = []


class Pulse(Document, frozen=True, kw_only=True, tag="pulse"):
    """Answer to a heartbeat."""

    sequence: int
    next_key: str = ""
    """As in `Welcome`."""
    spread_ms: int = 0
    """As in `Welcome`; 0: as before."""


class Standing(Document, frozen=True, kw_only=True, tag="standing"):
    """The host's state or holds have changed, or what is not taken of it; for showing on the node.

    An external reporter has neither conditions nor holds.
    """

    state: str
    conditions: list[str] = []
    holds: list[Hold] = []
    refused: list[str] = []
    """Names that it reports and the broker does not take, and why not."""


class TypesNews(Document, frozen=True, kw_only=True, tag="types"):
    """The cluster's types have changed, whole."""

    types: list[ResourceType]


class Declared(Document, frozen=True, kw_only=True, tag="declared"):
    """What became of a `Declare`: resource name to '' (in force) or the reason for refusing it."""

    types: dict[str, str]


class BindingPrepare(Document, frozen=True, kw_only=True, tag="binding.prepare"):
    """Make a binding ready. The same order may come again; it is carried out once."""

    epoch: Count
    """Reign of the broker that orders; an order of an older one than the newest known is refused."""
    op_id: str
    binding: Binding
    claim: Claim
    volume: dict[str, str] = {}
    """What the claim's provider says of it; it may be secret."""


class BindingRelease(Document, frozen=True, kw_only=True, tag="binding.release"):
    """Take a binding back, whatever is there of it. A node that has nothing of it says `released`."""

    epoch: Count
    op_id: str
    binding: str
    reason: str = ""
    was: BindingPrepare | None = None
    """By what it was made ready, while the node has not said what it has. One that has lost its journal takes
    it up first, so that nothing of it is overlooked."""


class BindingStanding(Document, frozen=True, kw_only=True, tag="binding.standing"):
    """What the broker has durably of this node's bindings: the answer to `BindingNews`, and news of gangs.

    A binding of a gang is ready for its consumer only when this says so.
    """

    bindings: dict[str, str]
    """Id to state; `unknown` for one that the broker does not know: it is left alone, and shown."""
