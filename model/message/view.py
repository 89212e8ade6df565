"""Parts of what controllers and admins are told: locations, claims, bindings, places in the stream."""

import msgspec

from xce.model.claim import Binding, Claim, Quarantine
from xce.model.instance import InventoryRef
from xce.model.message.link import ReporterState
from xce.model.supply import Hold, PoolAmount, Source
from xce.model.value import Reading


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
