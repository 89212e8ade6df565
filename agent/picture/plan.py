"""Instances sorted by where they are: NUMA nodes, host bridges, switches, devices; short names; pairs.

Pure. Nothing is concluded here that the instances do not say: levels are those of the discovery.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property

import msgspec

from xce.agent.probe import topology
from xce.model.instance import Instance
from xce.model.value import Value

COMPUTE = ("gpu", "accelerator")
PARTS = ("mig", "gpu-partition")
BEYOND = ("bond", "rdma")
"""Listed, but in no place of their own."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, accelerator or NIC with a short name, and its parts."""

    name: str
    """`GPU0` (as `nvidia-smi` numbers them, else in PCI order), `mlx5_0`, `eth0`."""
    instance: Instance
    parts: tuple[Instance, ...] = ()
    peers: dict[str, int] = {}
    """By id: links to it (0: the number is not known)."""

    @property
    def id(self) -> str:
        """The instance's."""
        return self.instance.id

    @property
    def kind(self) -> str:
        """The instance's."""
        return self.instance.kind

    def text(self, name: str) -> str:
        """An attribute as text; '' if it is not known."""
        value = self.instance.attributes.get(name)
        return "" if value is None else shown(value)

    def number(self, name: str) -> int | None:
        """A whole number; None if it is not known."""
        value = self.instance.attributes.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty if it is not known."""
        value = self.instance.attributes.get(name)
        return tuple(value) if isinstance(value, list) else ()


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has devices below it: a NUMA node, a host bridge, a switch, an admin's group."""

    kind: str
    """`numa`, `root`, `bridge`, `group`."""
    names: tuple[str, ...]
    """From the root down: bridges with the same devices below are one branch."""
    devices: tuple[Device, ...] = ()
    branches: tuple["Branch", ...] = ()

    def all(self) -> Iterator[Device]:
        """Every device below."""
        yield from self.devices
        for branch in self.branches:
            yield from branch.all()


class Plan:
    """Everything that is drawn of one node."""

    def __init__(self, instances: Iterable[Instance]) -> None:
        found = list(instances)
        self.devices = _devices(found)
        """In order: GPUs, accelerators, NICs."""
        self.beyond = [one for one in found if one.kind in BEYOND]
        self._topology = topology.Topology(places={one.id: _place(one) for one in self.devices})

    @property
    def compute(self) -> list[Device]:
        """GPUs and accelerators."""
        return [device for device in self.devices if device.kind in COMPUTE]

    @property
    def nics(self) -> list[Device]:
        """NICs, without virtual functions of a NIC that is here too: those are at the same place."""
        return [one for one in self.devices if one.kind == "nic" and not one.text("physical_function")]

    def pair(self, a: Device, b: Device) -> topology.Pair:
        """Two devices, with the links between them."""
        pair = self._topology.pair(a.id, b.id)
        links = a.peers.get(b.id, b.peers.get(a.id))
        if links is None:
            return pair
        kind = a.text("link_kind") or b.text("link_kind")
        return msgspec.structs.replace(pair, link=kind, links=links or None)

    def word(self, a: Device, b: Device) -> str:
        """Two devices in the words of `nvidia-smi topo -m`, and `XGMI`, `?` beside."""
        return "X" if a.id == b.id else self.pair(a, b).word

    @cached_property
    def numas(self) -> tuple[Branch, ...]:
        """The tree; a node that is not known comes last."""
        nodes: dict[int | None, list[Device]] = {}
        for device in self.devices:
            if device.kind in COMPUTE or device.kind == "nic":
                nodes.setdefault(device.number("numa"), []).append(device)
        order = sorted(nodes, key=lambda node: (node is None, node or 0))
        return tuple(_numa(node, nodes[node]) for node in order)


LEGEND = {
    "X": "itself",
    "NV#": "joined by # NVLinks",
    "XGMI": "joined by xGMI (Infinity Fabric)",
    "PIX": "at most one PCIe bridge between, or one group of the topology file",
    "PXB": "several PCIe bridges, no host bridge",
    "PHB": "a PCIe host bridge (the CPU)",
    "NODE": "host bridges of one NUMA node",
    "SYS": "between NUMA nodes",
    "?": "not known: the platform does not say",
}


def shown(value: Value) -> str:
    """A value as a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _devices(found: list[Instance]) -> list[Device]:
    parts: dict[str, list[Instance]] = {}
    for one in found:
        if one.kind in PARTS:
            parts.setdefault(one.parent, []).append(one)
    ports = {one.parent: one for one in reversed(found) if one.kind == "nic-port"}
    gpus = _numbered([one for one in found if one.kind == "gpu"], "GPU")
    others = _numbered([one for one in found if one.kind == "accelerator"], "ACC")
    nics = [(_nic_name(one, ports.get(one.id)), one) for one in found if one.kind == "nic"]
    return [
        Device(name=name, instance=one, parts=tuple(parts.get(one.id, ())), peers=_peers(one))
        for name, one in [*gpus, *others, *nics]
    ]


def _numbered(found: list[Instance], prefix: str) -> list[tuple[str, Instance]]:
    """By the vendor's own numbers where each has one, else in the order of the inventory."""
    own = [one.attributes.get("index") for one in found]
    numbers = [number for number in own if isinstance(number, int)]
    if len(set(numbers)) != len(found):
        return [(f"{prefix}{number}", one) for number, one in enumerate(found)]
    return sorted(
        ((f"{prefix}{number}", one) for number, one in zip(numbers, found, strict=True)),
        key=lambda pair: int(pair[0].removeprefix(prefix)),
    )


def _nic_name(one: Instance, port: Instance | None) -> str:
    """RDMA device, network device, or PCI address."""
    for source in (one, port):
        if source is None:
            continue
        if rdma := source.attributes.get("rdma"):
            return str(rdma)
        nets = source.attributes.get("nets")
        if isinstance(nets, list) and nets:
            return nets[0]
    return str(one.attributes.get("pci", one.id))


def _peers(one: Instance) -> dict[str, int]:
    """`ID=18`, or `ID`."""
    listed = one.attributes.get("link_peers")
    found = {}
    for text in listed if isinstance(listed, list) else []:
        peer, _, count = text.partition("=")
        found[peer] = int(count) if count.isdecimal() else 0
    return found


def _place(device: Device) -> topology.Place:
    return topology.Place(
        pci=device.id,
        kind=device.kind,
        numa=device.number("numa"),
        root=device.text("pci_root") or None,
        bridges=device.texts("bridges"),
        group=device.text("group"),
    )


def _numa(node: int | None, devices: list[Device]) -> Branch:
    """A NUMA node: its host bridges, then what is below none that is known."""
    cpus = {device.text("cpus") for device in devices} - {""}
    roots: dict[tuple[str, str], list[Device]] = {}
    for device in devices:
        group, root = device.text("group"), device.text("pci_root")
        place = ("group", group) if group else ("root", root) if root else ("", "")
        roots.setdefault(place, []).append(device)
    loose = roots.pop(("", ""), [])
    branches = [_below(kind, (name,), members, 0) for (kind, name), members in roots.items()]
    unplaced = _split(loose, 0)
    return Branch(
        kind="numa",
        names=(f"NUMA node {node}" if node is not None else "NUMA node unknown", *sorted(cpus)[:1]),
        devices=unplaced[0],
        branches=(*branches, *unplaced[1]),
    )


def _below(kind: str, names: tuple[str, ...], members: list[Device], depth: int) -> Branch:
    """A bridge and what is below; the bridges that all of it is below are one with it."""
    while len(members) > 1 and (shared := {one.texts("bridges")[depth : depth + 1] for one in members}):
        if len(shared) > 1 or not (only := next(iter(shared))):
            break
        names, depth = (*names, *only), depth + 1
    devices, branches = _split(members, depth)
    return Branch(kind=kind, names=names, devices=devices, branches=branches)


def _split(members: list[Device], depth: int) -> tuple[tuple[Device, ...], tuple[Branch, ...]]:
    """Devices that hang here alone, and bridges with several devices below them."""
    ways: dict[str, list[Device]] = {}
    for device in members:
        bridge = device.texts("bridges")[depth : depth + 1]
        ways.setdefault(bridge[0] if bridge else "", []).append(device)
    alone = [device for way, below in ways.items() if not way or len(below) == 1 for device in below]
    branches = tuple(
        _below("bridge", (way,), below, depth + 1) for way, below in ways.items() if way and len(below) > 1
    )
    return tuple(device for device in members if device in alone), branches
