"""Identified units and inventories.

An instance is one unit that is not like the next one: a GPU, a MIG slice, a NIC, a port. Its identity is a
UUID, a PCI address or another name that survives reboots, never an index or a minor number. An inventory is
one reporter's complete set of instances at a location, with a generation; a reader always knows whether the
set is complete.
"""

from enum import StrEnum

import msgspec

from xce.model.value import Count, Value, digest_of, is_finite

INSTANCES = 4096
ATTRIBUTES = 128
ID_BYTES = 255
NOTES = 16
PORTS = frozenset({"nic", "nic-port", "rdma", "bond"})
"""Kinds of which one that is down or unknown is no trouble of its host."""


class Health(StrEnum):
    """Whether an instance may be chosen."""

    AVAILABLE = "available"
    UNAVAILABLE = "unavailable"
    LOST = "lost"
    QUARANTINED = "quarantined"
    UNKNOWN = "unknown"


class Instance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One identified unit."""

    id: str
    kind: str
    parent: str = ""
    """The id of the instance that this one is a part of (a MIG slice's GPU)."""
    health: Health = Health.AVAILABLE
    reason: str = ""
    attributes: dict[str, Value] = {}
    capacity: dict[str, Count] = {}
    """Counters that choices draw from, as integers."""
    consumes: dict[str, Count] = {}
    """What choosing it takes from the capacity of its parent (a MIG slice: its memory slices)."""
    evidence: str = ""
    """What was seen that led to `health`: `NVML: GPU is lost (15)`."""
    since: str = ""
    """Wall time at which `health` became what it is, ISO 8601, only for showing."""
    recovery: str = ""
    """What ends an ill health: `by itself after 600 s without a fault`, `after a reset`, `by an admin`."""
    notes: list[str] = []
    """What a person should know and no choice depends on: `PCIe width 8 of 16`."""

    def __post_init__(self) -> None:
        if not self.id or len(self.id.encode()) > ID_BYTES or not self.id.isprintable():
            raise ValueError(f"instance id {self.id!r}: must be 1 to {ID_BYTES} printable bytes")
        if not self.kind:
            raise ValueError(f"instance {self.id}: kind is empty")
        if len(self.attributes) > ATTRIBUTES:
            raise ValueError(f"instance {self.id}: more than {ATTRIBUTES} attributes")
        if len(self.notes) > NOTES:
            raise ValueError(f"instance {self.id}: more than {NOTES} notes")
        if len(self.capacity) > ATTRIBUTES or len(self.consumes) > ATTRIBUTES:
            raise ValueError(f"instance {self.id}: more than {ATTRIBUTES} counters")
        if self.consumes and not self.parent:
            raise ValueError(f"instance {self.id}: consumes from a parent, and names none")
        for name, value in self.attributes.items():
            if isinstance(value, int | float) and not is_finite(value):
                raise ValueError(f"instance {self.id}: attribute {name} is not a finite 64-bit number")


def ill(instance: Instance) -> bool:
    """Whether it needs a person: not what is only laid out so, and no port without a cable."""
    if instance.health in (Health.LOST, Health.QUARANTINED):
        return True
    if instance.kind in PORTS or instance.health is Health.AVAILABLE:
        return False
    return instance.health is Health.UNKNOWN or bool(instance.evidence)


class Inventory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A complete (or openly incomplete) set of instances of one reporter."""

    reporter: str
    generation: Count
    complete: bool
    instances: list[Instance] = []

    def __post_init__(self) -> None:
        ids = {instance.id for instance in self.instances}
        if len(ids) != len(self.instances):
            raise ValueError(f"inventory of {self.reporter}: an instance id occurs twice")
        if len(self.instances) > INSTANCES:
            raise ValueError(f"inventory of {self.reporter}: more than {INSTANCES} instances")
        for instance in self.instances:
            if instance.parent and instance.parent not in ids:
                raise ValueError(
                    f"instance {instance.id}: its parent {instance.parent} is not in the inventory"
                )


class InventoryRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a snapshot carries of an inventory: enough to know whether the body held is the newest."""

    generation: Count
    complete: bool
    count: Count
    digest: str
    kinds: dict[str, tuple[Count, Count]] = {}
    """How many of each kind are available, and how many there are."""


def reference(inventory: Inventory) -> InventoryRef:
    """The reference of an inventory; the digest does not depend on the order of instances or keys."""
    ordered = sorted(inventory.instances, key=lambda instance: instance.id)
    return InventoryRef(
        generation=inventory.generation,
        complete=inventory.complete,
        count=len(ordered),
        digest=digest_of([msgspec.to_builtins(instance) for instance in ordered]),
        kinds=_kinds(ordered),
    )


def _kinds(instances: list[Instance]) -> dict[str, tuple[Count, Count]]:
    counts: dict[str, tuple[int, int]] = {}
    for one in instances:
        available, every = counts.get(one.kind, (0, 0))
        counts[one.kind] = available + (one.health is Health.AVAILABLE), every + 1
    return dict(sorted(counts.items()))
