"""What instances of all kinds have in common: a unit in the making, its place, what the layout says of it.

Pure. A fault of the device is a `Verdict`, which the agent remembers; that a sound device is not offered as
it is now (a GPU in MIG mode, a bond's member) is its `layout`, which is forgotten when it ends.
"""

import re

import msgspec

from xce.agent.probe import attributes, facts, products
from xce.agent.probe.topology import Topology
from xce.agent.probe.verdict import Fault, Verdict
from xce.model.instance import NOTES, Health, Instance
from xce.model.value import Count, Value

MIB = 1 << 20
PASSED_THROUGH = frozenset({"vfio-pci", "pci-stub", "xen-pciback"})
"""Drivers that hold a device for a virtual machine."""
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """An instance before its health is put together."""

    id: str
    kind: str
    attributes: dict[str, Value]
    parent: str = ""
    verdict: Verdict = Verdict()
    layout: str = ""
    """Why it is not offered although nothing is wrong with it; '' if it is."""
    notes: tuple[str, ...] = ()
    capacity: dict[str, Count] = {}
    consumes: dict[str, Count] = {}

    def laid_out(self) -> Instance:
        """The instance without its faults, which are for whoever remembers them: the layout's word alone."""
        return Instance(
            id=self.id,
            kind=self.kind,
            parent=self.parent,
            health=Health.UNAVAILABLE if self.layout else Health.AVAILABLE,
            reason=self.layout,
            attributes=self.attributes,
            capacity=self.capacity,
            consumes=self.consumes,
            notes=list(self.notes[:NOTES]),
        )

    def instance(self) -> Instance:
        """The instance as this reading alone would show it: a fault goes before the layout."""
        one, worst = self.laid_out(), self.verdict.worst
        notes = [*self.verdict.notes, *self.notes][:NOTES]
        if worst is None:
            return msgspec.structs.replace(one, notes=notes)
        return msgspec.structs.replace(
            one,
            health=worst.health,
            reason=worst.reason,
            evidence=worst.evidence,
            recovery=worst.recovery,
            notes=notes,
        )


def device(pci: facts.Pci, topology: Topology) -> dict[str, Value]:
    """Attributes of a PCI function that every kind of device has."""
    place = topology.places.get(pci.address)
    product_id = products.pci_id(pci.vendor, pci.device)
    return attributes.known(
        pci=pci.address,
        vendor=products.vendor(pci.vendor),
        pci_id=product_id,
        product=products.PRODUCTS.get(product_id or ""),
        driver=pci.driver,
        numa=place.numa if place else pci.numa,
        cpus=pci.local_cpus,
        pci_root=pci.root,
        bridges=pci.bridges,
        group=place.group if place else None,
        rails=tuple(str(rail) for rail in place.rails) if place else (),
        pcie_gen=generation(pci.max_speed or pci.speed),
        pcie_width=pci.max_width if pci.max_width is not None else pci.width,
    )


def generation(speed: str | None) -> int | None:
    """The PCIe generation of `32.0 GT/s PCIe`."""
    match = re.match(r"([0-9.]+) GT/s", speed or "")
    return _GENERATIONS.get(float(match[1])) if match else None


def mebibytes(size: int | None) -> int | None:
    """Bytes as MiB."""
    return None if size is None else size // MIB


def nearest(address: str, topology: Topology) -> dict[str, Value]:
    """The NICs that a GPU reaches best, and how."""
    best = topology.nearest.get(address)
    if best is None or not best.nics:
        return {}
    return attributes.known(
        nearest_nics=tuple(f"pci:{nic}" for nic in best.nics), nearest_level=str(best.level)
    )


def unspoken(reason: str, evidence: str) -> Verdict:
    """The verdict of a device about which nobody says whether it works."""
    return Verdict(
        faults=(
            Fault(
                cause="unspoken",
                reason=reason,
                evidence=evidence,
                recovery="by itself when its driver answers",
                health=Health.UNKNOWN,
            ),
        )
    )
