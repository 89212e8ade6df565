"""Links between GPUs: what each end says of them, the pairs that they make, and the domains.

Pure. NVLink is what NVML says of active links; a link to a switch reaches every GPU that is on switches too,
since a node holds one switch fabric. xGMI is what the KFD says. A fabric cluster of all zeros is no domain
beyond the node.
"""

from collections.abc import Collection, Iterable

import msgspec

from xce.agent.probe import facts
from xce.agent.probe.facts import Machine, NvidiaGpu

NVLINK, XGMI = "nvlink", "xgmi"
FABRIC = "fabric"
LINK_TO_SWITCH = 2
LINK_XGMI = 11
FABRIC_COMPLETED = 3
NO_ADDRESS = {"0000:00:00.0", "ffff:ff:1f.7", "ffffffff:ff:1f.7"}


class Link(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU's links of one kind to another device, as that GPU states them."""

    a: str
    b: str
    """A GPU, a switch, a processor; '' if the library did not say which."""
    kind: str
    count: int | None = None
    mbps: int | None = None
    weight: int | None = None
    switch: bool = False


class Domain(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """GPUs that reach each other by links. `fabric` reaches beyond the node; its id is CLUSTER.CLIQUE."""

    kind: str
    id: str
    members: tuple[str, ...]


class Physical(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU of the KFD, and the nodes that are its partitions."""

    pci: str
    unique_id: str | None = None
    nodes: tuple[int, ...] = ()


def links(machine: Machine, switches: Collection[str] = ()) -> tuple[Link, ...]:
    """Every link that is up, once: the end with the lower address states a pair of GPUs.

    `switches` are the addresses of NVSwitches, for libraries that do not say what is at the other end.
    """
    found = (*_nvlinks(machine, switches), *_xgmi(machine))
    return tuple(sorted(found, key=lambda link: (order(link.a), order(link.b))))


def order(address: str) -> tuple[int, str]:
    """PCI order; domains of five digits come last."""
    return len(address), address


def _nvlinks(machine: Machine, switches: Collection[str]) -> list[Link]:
    counted: dict[tuple[str, str, bool], int] = {}
    gpus = machine.nvidia.gpus if machine.nvidia else ()
    for gpu in gpus:
        for link in gpu.links if gpu.pci else ():
            if link.active:
                remote = _remote(link)
                key = (gpu.pci or "", remote, link.remote_type == LINK_TO_SWITCH or remote in switches)
                counted[key] = counted.get(key, 0) + 1
    ends = {gpu.pci for gpu in gpus}
    return [
        Link(a=a, b=b, kind=NVLINK, count=count, switch=switch)
        for (a, b, switch), count in counted.items()
        if b not in ends or order(a) < order(b) or (b, a, switch) not in counted
    ]


def _remote(link: facts.NvLink) -> str:
    """The other end; some switches have an address of all zeros or ones, which is none."""
    address = facts.address(link.remote or "")
    return "" if address is None or address in NO_ADDRESS else address


def _xgmi(machine: Machine) -> list[Link]:
    """Links of type 11 between two devices; weight 15 and bandwidths as the KFD says them."""
    where = {node.node: node.pci for node in machine.kfd}
    best: dict[tuple[str, str], facts.KfdLink] = {}
    for node in machine.kfd:
        for link in node.links:
            a, b = node.pci, where.get(link.to)
            if link.type != LINK_XGMI or a is None or b is None or a == b:
                continue
            pair = (a, b) if order(a) < order(b) else (b, a)
            if pair not in best or (a == pair[0] and best[pair].max_mbps is None):
                best[pair] = link
    return [
        Link(a=a, b=b, kind=XGMI, mbps=link.max_mbps or None, weight=link.weight)
        for (a, b), link in best.items()
    ]


def between(found: Iterable[Link], machine: Machine) -> dict[tuple[str, str], Link]:
    """Pairs of GPUs with what joins them, straight or by switches; both orders are there."""
    pairs: dict[tuple[str, str], Link] = {}
    switched: dict[str, int] = {}
    ends = {gpu.pci for gpu in machine.nvidia.gpus if gpu.pci} if machine.nvidia else set()
    for link in found:
        if link.switch:
            switched[link.a] = switched.get(link.a, 0) + (link.count or 0)
        elif link.kind == XGMI or link.b in ends:
            pairs[link.a, link.b] = pairs[link.b, link.a] = link
    fabrics = {gpu.pci: fabric(gpu) for gpu in machine.nvidia.gpus} if machine.nvidia else {}
    for a, of_a in switched.items():
        for b, of_b in switched.items():
            apart = fabrics.get(a) != fabrics.get(b)
            if a != b and not apart and (a, b) not in pairs:
                pairs[a, b] = Link(a=a, b=b, kind=NVLINK, count=min(of_a, of_b), switch=True)
    return pairs


def fabric(gpu: NvidiaGpu) -> str:
    """CLUSTER.CLIQUE of a GPU whose registration is complete; '' if it is in no domain beyond its node."""
    told = gpu.fabric
    if told is None or told.state != FABRIC_COMPLETED or told.clique is None:
        return ""
    digits = (told.cluster or "").replace("-", "").strip("0")
    return f"{(told.cluster or '').lower()}.{told.clique}" if digits else ""


def domains(machine: Machine, pairs: dict[tuple[str, str], Link]) -> tuple[Domain, ...]:
    """Hives, groups of GPUs joined by links, and fabrics; in the order of their first members."""
    hives: dict[str, set[str]] = {}
    for node in machine.kfd:
        if node.hive and node.pci and node.simd:
            hives.setdefault(node.hive, set()).add(node.pci)
    in_hive = set().union(*hives.values()) if hives else set()
    found = [Domain(kind=XGMI, id=hive, members=_ordered(members)) for hive, members in hives.items()]
    for kind in (NVLINK, XGMI):
        joined = [pair for pair, link in pairs.items() if link.kind == kind and pair[0] not in in_hive]
        found += [Domain(kind=kind, id=f"{kind}:{group[0]}", members=group) for group in _components(joined)]
    clusters: dict[str, set[str]] = {}
    for gpu in machine.nvidia.gpus if machine.nvidia else ():
        if gpu.pci and fabric(gpu):
            clusters.setdefault(fabric(gpu), set()).add(gpu.pci)
    found += [Domain(kind=FABRIC, id=name, members=_ordered(members)) for name, members in clusters.items()]
    return tuple(sorted(found, key=lambda domain: (domain.kind, order(domain.members[0]), domain.id)))


def _ordered(members: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(members, key=order))


def _components(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Groups of those that reach each other."""
    group: dict[str, set[str]] = {}
    for a, b in pairs:
        joined = group.setdefault(a, {a}) | group.setdefault(b, {b})
        for member in joined:
            group[member] = joined
    return sorted({_ordered(members) for members in group.values()}, key=lambda members: order(members[0]))


def physical(machine: Machine) -> tuple[Physical, ...]:
    """GPUs of the KFD: partitions of one device have its unique id, or its address where that is unknown."""
    devices: dict[str, list[facts.KfdNode]] = {}
    for node in machine.kfd:
        if node.simd and node.pci:
            devices.setdefault(node.unique_id or node.pci, []).append(node)
    return tuple(
        Physical(
            pci=nodes[0].pci or "",
            unique_id=nodes[0].unique_id,
            nodes=tuple(sorted(node.node for node in nodes)),
        )
        for nodes in devices.values()
    )
