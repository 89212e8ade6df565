"""Who is close to whom: places, levels, switches, nearest NICs, links, domains, rails.

Pure: a function of the facts and of what an admin says. Unknown never equals unknown: of two devices whose
NUMA nodes are not known nothing is concluded. The kernel's word wins over the admin's; where they differ,
that is told in `conflicts`.
"""

from collections.abc import Iterable

import msgspec

from xce.agent.probe import classify, facts, peers, rails
from xce.agent.probe.facts import Machine
from xce.agent.probe.peers import Domain, Link, Physical, order
from xce.agent.probe.sysfs import cpulist

BRIDGE, HOSTBRIDGE, NUMA, SYSTEM, UNKNOWN = "bridge", "hostbridge", "numa", "system", "unknown"
LEVELS = (BRIDGE, HOSTBRIDGE, NUMA, SYSTEM, UNKNOWN)
"""From near to far."""
RAIL_LEVELS = (BRIDGE, HOSTBRIDGE, NUMA)
PLACED = {classify.GPU, classify.ACCELERATOR, classify.NIC, classify.NVME, classify.NVSWITCH}


class AdminGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Devices below one switch that the kernel cannot see."""

    members: tuple[str, ...]
    numa: int | None = None
    name: str = ""


class AdminTopology(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """`admin-topology.json`: what an admin knows and the kernel does not."""

    groups: tuple[AdminGroup, ...] = ()
    rails: tuple[tuple[str, ...], ...] = ()
    """One list of GPUs and NICs per rail; it replaces the rule of `rails.py`."""


class Place(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where one device is."""

    pci: str
    kind: str
    numa: int | None = None
    root: str | None = None
    bridges: tuple[str, ...] = ()
    group: str = ""
    """The admin's group that it is in."""
    rails: tuple[int, ...] = ()
    domain: str = ""
    """The node's link domain: a hive, or GPUs joined by NVLink."""
    fabric: str = ""
    """The domain that reaches beyond the node: CLUSTER.CLIQUE."""


class Pair(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Two devices. `common` is the deepest bridge above both, or their host bridge, or the admin's group."""

    a: str
    b: str
    level: str
    common: str | None = None
    below: int = 0
    """Bridges between `common` and the farther of the two, at level `bridge`."""
    depth: int = 0
    """Bridges from the root down to `common`: more is nearer."""
    link: str = ""
    """`nvlink` or `xgmi`, if they are joined so too."""
    links: int | None = None
    mbps: int | None = None

    @property
    def word(self) -> str:
        """As the matrix of `nvidia-smi topo -m` has it; `?` for unknown, and `XGMI` as AMD's tool says."""
        if self.link:
            return f"NV{self.links or '?'}" if self.link == peers.NVLINK else "XGMI"
        if self.level == BRIDGE:
            return "PIX" if self.below <= 1 else "PXB"
        return {HOSTBRIDGE: "PHB", NUMA: "NODE", SYSTEM: "SYS"}.get(self.level, "?")


class SwitchGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """GPUs, accelerators and NICs below one bridge, or in one group of the admin's."""

    bridge: str
    members: tuple[str, ...]
    numa: int | None = None


class Nearest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The best level that a GPU has to any NIC, and the NICs that have it (at the deepest bridge)."""

    level: str
    nics: tuple[str, ...]


class Topology(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All of it. Lists are in PCI order, whatever the order of the facts."""

    places: dict[str, Place] = {}
    gpu_nic: tuple[Pair, ...] = ()
    gpu_gpu: tuple[Pair, ...] = ()
    switch_groups: tuple[SwitchGroup, ...] = ()
    admin_groups: tuple[SwitchGroup, ...] = ()
    nearest: dict[str, Nearest] = {}
    links: tuple[Link, ...] = ()
    domains: tuple[Domain, ...] = ()
    physical: tuple[Physical, ...] = ()
    host_nodes: tuple[int, ...] = ()
    """NUMA nodes with CPUs; the others are devices' memory."""
    memory_nodes: dict[str, int] = {}
    """The NUMA node that is a GPU's own memory."""
    only_node: int | None = None
    """The one host node of a machine that has no other: an unknown node may be shown as it, and no more."""
    conflicts: tuple[str, ...] = ()

    def of_kind(self, *kinds: str) -> list[str]:
        """Addresses of devices of these kinds, in PCI order."""
        return [address for address, place in self.places.items() if place.kind in kinds]

    def pair(self, a: str, b: str) -> Pair:
        """Any two devices that have places, in this order."""
        return _pair(self.places[a], self.places[b], {})


def topology(machine: Machine, admin: AdminTopology | None = None) -> Topology:
    """What the facts say of who is close to whom."""
    nodes = [node for node in machine.numa if node.cpus]
    kinds = classify.kinds(machine)
    places = _places(machine, kinds, nodes)
    conflicts: list[str] = []
    groups = _apply(admin, places, conflicts) if admin else ()
    links = peers.links(machine, {pci for pci, kind in kinds.items() if kind == classify.NVSWITCH})
    joined = peers.between(links, machine)
    domains = peers.domains(machine, joined)
    _add_domains(places, domains)
    gpus = [place for place in places.values() if place.kind in classify.COMPUTE]
    nics = [place for place in places.values() if place.kind == classify.NIC]
    pairs = {gpu.pci: [_pair(gpu, nic, {}) for nic in nics] for gpu in gpus}
    _add_rails(places, machine, pairs, admin, conflicts)
    virtual = {pci.address for pci in machine.pci if pci.physfn in places}
    near = {gpu: [pair for pair in of_gpu if pair.b not in virtual] for gpu, of_gpu in pairs.items()}
    return Topology(
        places=places,
        gpu_nic=tuple(pair for of_gpu in pairs.values() for pair in of_gpu),
        gpu_gpu=tuple(_pair(a, b, joined) for at, a in enumerate(gpus) for b in gpus[at + 1 :]),
        switch_groups=_switch_groups([*gpus, *nics]),
        admin_groups=groups,
        nearest={gpu: _nearest(of_gpu) for gpu, of_gpu in near.items() if of_gpu},
        links=links,
        domains=domains,
        physical=peers.physical(machine),
        host_nodes=tuple(sorted(node.node for node in nodes)),
        memory_nodes=_memory_nodes(machine),
        only_node=nodes[0].node if len(nodes) == 1 else None,
        conflicts=tuple(conflicts),
    )


def _places(machine: Machine, kinds: dict[str, str], nodes: list[facts.Numa]) -> dict[str, Place]:
    """Every device worth a place; GPUs that only a library or the KFD names too, in an unknown place."""
    cpus = {node.node: cpulist.cpus(node.cpus) for node in nodes}
    found = {
        pci.address: Place(
            pci=pci.address,
            kind=kinds[pci.address],
            numa=_numa(pci, cpus),
            root=pci.root,
            bridges=pci.bridges,
        )
        for pci in machine.pci
        if kinds[pci.address] in PLACED
    }
    named = [gpu.pci for gpu in machine.nvidia.gpus] if machine.nvidia else []
    named += [node.pci for node in machine.kfd if node.simd]
    for address in named:
        if address and (address not in found or found[address].kind != classify.GPU):
            old = found.get(address, Place(pci=address, kind=classify.GPU))
            found[address] = msgspec.structs.replace(old, kind=classify.GPU)
    return dict(sorted(found.items(), key=lambda item: order(item[0])))


def _numa(pci: facts.Pci, cpus: dict[int, frozenset[int]]) -> int | None:
    """What the kernel says; if it is silent, the one of several nodes that holds all of its CPUs."""
    if not pci.numa_silent or len(cpus) < 2 or not pci.local_cpus:
        return pci.numa
    local = cpulist.cpus(pci.local_cpus)
    holding = [node for node, owned in cpus.items() if local and local <= owned]
    return holding[0] if len(holding) == 1 else None


def _memory_nodes(machine: Machine) -> dict[str, int]:
    told = {
        gpu.pci: gpu.numa_memory
        for gpu in (machine.nvidia.gpus if machine.nvidia else ())
        if gpu.pci and gpu.numa_memory is not None
    }
    return told | machine.nvidia_numa


def _pair(a: Place, b: Place, joined: dict[tuple[str, str], Link]) -> Pair:
    level, common, depth = _level(a, b)
    below = max(len(a.bridges), len(b.bridges)) - depth if level == BRIDGE and depth else 0
    link = joined.get((a.pci, b.pci))
    if link is None:
        return Pair(a=a.pci, b=b.pci, level=level, common=common, below=below, depth=depth)
    return Pair(
        a=a.pci,
        b=b.pci,
        level=level,
        common=common,
        below=below,
        depth=depth,
        link=link.kind,
        links=link.count,
        mbps=link.mbps,
    )


def _level(a: Place, b: Place) -> tuple[str, str | None, int]:
    """Level, what is common, and how deep it is.

    A host bridge that spans NUMA nodes is a guest's, and no nearness.
    """
    depth = 0
    for ours, theirs in zip(a.bridges, b.bridges, strict=False):
        if ours != theirs:
            break
        depth += 1
    if depth:
        return BRIDGE, a.bridges[depth - 1], depth
    if a.group and a.group == b.group:
        return BRIDGE, a.group, 0
    known = a.numa is not None and b.numa is not None
    if a.root is not None and a.root == b.root and not (known and a.numa != b.numa):
        return HOSTBRIDGE, a.root, 0
    if not known:
        return UNKNOWN, None, 0
    return (NUMA if a.numa == b.numa else SYSTEM), None, 0


def _switch_groups(devices: list[Place]) -> tuple[SwitchGroup, ...]:
    """Each bridge that is the deepest one above two devices in different slots."""
    below: dict[str, list[str]] = {}
    for device in sorted(devices, key=lambda place: order(place.pci)):
        for bridge in device.bridges:
            below.setdefault(bridge, []).append(device.pci)
    deepest: dict[tuple[str, ...], str] = {}
    for device in devices:
        for bridge in device.bridges:  # from the root down: the last one with the same members stays
            deepest[tuple(below[bridge])] = bridge
    found = [
        SwitchGroup(bridge=bridge, members=members)
        for members, bridge in deepest.items()
        if len({member.rpartition(".")[0] for member in members}) > 1
    ]
    return tuple(sorted(found, key=lambda group: order(group.bridge)))


def _nearest(pairs: list[Pair]) -> Nearest:
    """Unknown is the last of the levels, so nothing is near for being unknown."""
    best = min(pairs, key=_nearness)
    return Nearest(
        level=best.level,
        nics=tuple(pair.b for pair in pairs if _nearness(pair) == _nearness(best)),
    )


def _nearness(pair: Pair) -> tuple[int, int]:
    return LEVELS.index(pair.level), -pair.depth


def _add_domains(places: dict[str, Place], domains: Iterable[Domain]) -> None:
    for domain in domains:
        field = "fabric" if domain.kind == peers.FABRIC else "domain"
        for member in domain.members:
            if member in places:
                places[member] = msgspec.structs.replace(places[member], **{field: domain.id})


def _add_rails(
    places: dict[str, Place],
    machine: Machine,
    pairs: dict[str, list[Pair]],
    admin: AdminTopology | None,
    conflicts: list[str],
) -> None:
    if admin and admin.rails:
        lists = [[facts.address(member) or member for member in members] for members in admin.rails]
        found = rails.given(lists)
        conflicts += [f"rails: {member} is not on this machine" for member in found if member not in places]
    else:
        found = rails.rails(_rail_nics(machine, places, pairs))
    for address, numbers in found.items():
        if address in places:
            places[address] = msgspec.structs.replace(places[address], rails=numbers)


def _rail_nics(
    machine: Machine, places: dict[str, Place], pairs: dict[str, list[Pair]]
) -> dict[str, tuple[str, ...]]:
    """Each GPU's nearest NICs among those that can be on a rail."""
    kinds = {address: place.kind for address, place in places.items()}
    able = {
        nic.pci
        for nic in classify.nics(machine, {pci.address: kinds.get(pci.address, "") for pci in machine.pci})
        if nic.fabric in classify.RDMA_FABRICS and nic.physfn not in places
    }
    found = {}
    for gpu, of_gpu in pairs.items():
        candidates = [pair for pair in of_gpu if pair.b in able and pair.level in RAIL_LEVELS]
        if candidates:
            found[gpu] = _nearest(candidates).nics
    return found


def _apply(admin: AdminTopology, places: dict[str, Place], conflicts: list[str]) -> tuple[SwitchGroup, ...]:
    """Put the admin's groups into the places that they fit; what does not fit is told and left out."""
    found = []
    for number, group in enumerate(admin.groups, 1):
        name = group.name or f"group {number}"
        members = [facts.address(member) or member for member in group.members]
        taken = []
        for member in members:
            problem = _refusal(member, group, places)
            if problem:
                conflicts.append(f"{name}: {member} {problem}")
            if member not in places or (problem and places[member].group):
                continue
            place = places[member]
            numa = place.numa if place.numa is not None else group.numa
            places[member] = msgspec.structs.replace(place, group="" if problem else name, numa=numa)
            taken += [] if problem else [member]
        apart = _apart([places[member] for member in taken])
        for member in apart:
            conflicts.append(f"{name}: {member} is below another switch, as the kernel sees it")
            places[member] = msgspec.structs.replace(places[member], group="")
        taken = [member for member in taken if member not in apart]
        found.append(SwitchGroup(bridge=name, members=tuple(taken), numa=group.numa))
    return tuple(found)


def _refusal(member: str, group: AdminGroup, places: dict[str, Place]) -> str:
    place = places.get(member)
    if place is None:
        return "is not on this machine"
    if place.group:
        return f"is in {place.group} already"
    if group.numa is not None and place.numa is not None and group.numa != place.numa:
        return f"is on NUMA node {place.numa}, not {group.numa}, as the kernel sees it"
    return ""


def _apart(members: list[Place]) -> list[str]:
    """Members below another switch (more than a root port) than the first, in the kernel's eyes."""
    seen = [place for place in members if len(place.bridges) > 1]
    return [place.pci for place in seen if place.bridges[0] != seen[0].bridges[0]]
