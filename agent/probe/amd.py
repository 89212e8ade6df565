"""AMD and Intel GPUs, and accelerators of others: from KFD, DRM and PCI.

Pure. KFD shows each partition of a GPU (CPX, DPX) as a node of its own: nodes with one unique id are one
GPU, which is then offered in parts and not whole. A GPU is `GPU-` and its unique id, as ROCm writes it; a
partition is named by KFD's own id of it where that is known: it comes from the device, not from an order.
"""

from collections.abc import Iterable, Iterator

from xce.agent.probe import attributes, facts, units
from xce.agent.probe.peers import Physical
from xce.agent.probe.topology import Topology
from xce.agent.probe.units import Unit
from xce.agent.probe.verdict import Verdict
from xce.model.value import Value

_INHERITED = (
    *("vendor", "product", "architecture", "numa", "cpus", "rails", "unique_id"),
    *("nearest_nics", "nearest_level", "link_domain"),
)


def found(machine: facts.Machine, addresses: list[str], topology: Topology) -> Iterator[Unit]:
    """AMD GPUs: those that KFD knows, with their partitions, and those that only PCI shows."""
    on_pci = {pci.address: pci for pci in machine.pci}
    nodes = {node.node: node for node in machine.kfd}
    known = {physical.pci: physical for physical in topology.physical}
    names = {
        physical.pci: _id(physical, [nodes[number] for number in physical.nodes])
        for physical in topology.physical
        if physical.pci
    }
    for physical in topology.physical:
        pci = on_pci.get(physical.pci or "") or facts.Pci(address=physical.pci or "", vendor=0x1002)
        yield from _physical(physical, [nodes[number] for number in physical.nodes], pci, topology, names)
    for address in addresses:
        if address not in known:
            yield _unspoken(on_pci[address], topology, "KFD does not show it", cards=_cards(machine, address))


def others(machine: facts.Machine, addresses: list[str], kind: str, topology: Topology) -> Iterator[Unit]:
    """GPUs and accelerators of other vendors: they work if a driver has made device nodes for them."""
    on_pci = {pci.address: pci for pci in machine.pci}
    for address in addresses:
        pci, cards = on_pci[address], _cards(machine, address)
        if not cards:
            yield _unspoken(pci, topology, "no driver has made a device node for it", cards, kind)
            continue
        yield Unit(
            id=f"pci:{address}",
            kind=kind,
            attributes={
                **units.device(pci, topology),
                **units.nearest(address, topology),
                **attributes.known(devices=tuple(card.name for card in cards), render=_render(cards)),
            },
            layout=f"virtual function of {pci.physfn}" if pci.physfn else "",
        )


def _id(physical: Physical, nodes: list[facts.KfdNode]) -> str:
    for node in nodes:
        if node.unique_id and int(node.unique_id):
            return f"GPU-{int(node.unique_id):016x}"
    return f"pci:{physical.pci}" if physical.pci else f"kfd:{nodes[0].node}"


def _physical(
    physical: Physical,
    nodes: list[facts.KfdNode],
    pci: facts.Pci,
    topology: Topology,
    names: dict[str, str],
) -> Iterator[Unit]:
    identifier, first = _id(physical, nodes), nodes[0]
    parts = len(nodes) if len(nodes) > 1 else None
    described = {
        **(units.device(pci, topology) if pci.address else {}),
        **units.nearest(pci.address, topology),
        **_links(pci.address, topology, names),
        **attributes.known(
            vendor="amd",
            architecture=_architecture(first.gfx),
            unique_id=f"{int(first.unique_id):016x}" if first.unique_id else None,
            partitions=parts,
            memory_mib=units.mebibytes(_sum(node.memory for node in nodes)),
            cores=_sum(node.simd for node in nodes),
            xcc=_sum(node.xcc for node in nodes),
        ),
        **(_node(first) if parts is None else {}),
    }
    yield Unit(
        id=identifier,
        kind="gpu",
        attributes=described,
        layout=f"partitioned: its {parts} partitions are offered" if parts else "",
        capacity={"partition": parts} if parts else {},
    )
    above = {name: described[name] for name in _INHERITED if name in described}
    ordered = sorted(nodes, key=lambda node: (node.render is None, node.render, node.node))
    for ordinal, node in enumerate(ordered if parts else []):
        part = f"{node.gpu_id:x}" if node.gpu_id else f"part{ordinal}"
        yield Unit(
            id=f"{identifier}/{part}",
            kind="gpu-partition",
            parent=identifier,
            attributes={
                **above,
                **_node(node),
                **attributes.known(
                    memory_mib=units.mebibytes(node.memory), cores=node.simd or None, xcc=node.xcc
                ),
            },
            consumes={"partition": 1},
        )


def _node(node: facts.KfdNode) -> dict[str, Value]:
    return attributes.known(render=node.render, kfd_id=node.gpu_id or None)


def _sum(numbers: Iterable[int | None]) -> int | None:
    found = list(numbers)
    known = [number for number in found if number is not None]
    return sum(known) if known and len(known) == len(found) else None


def _architecture(gfx: int | None) -> str | None:
    """`gfx90a` of 90010: major, two digits minor, two digits stepping, the last two written in hex."""
    if gfx is None or gfx < 10000:
        return None
    return f"gfx{gfx // 10000}{gfx // 100 % 100:x}{gfx % 100:x}"


def _links(address: str, topology: Topology, names: dict[str, str]) -> dict[str, Value]:
    peers = [
        names.get(other, f"pci:{other}")
        for pair in topology.gpu_gpu
        if pair.link == "xgmi" and address in (pair.a, pair.b)
        for other in [pair.b if pair.a == address else pair.a]
    ]
    place = topology.places.get(address)
    return attributes.known(
        link_kind="xgmi" if peers else None,
        link_peers=tuple(peers),
        link_domain=place.domain if place else None,
    )


def _cards(machine: facts.Machine, address: str) -> list[facts.Card]:
    return [card for card in machine.cards if card.pci == address]


def _render(cards: list[facts.Card]) -> int | None:
    return next((card.minor for card in cards if card.name.startswith("renderD")), None)


def _unspoken(
    pci: facts.Pci, topology: Topology, why: str, cards: list[facts.Card], kind: str = "gpu"
) -> Unit:
    layout, judged = "", Verdict()
    if pci.physfn:
        layout = f"virtual function of {pci.physfn}"
    elif pci.driver in units.PASSED_THROUGH:
        layout = f"held by the driver {pci.driver} for a virtual machine"
    else:
        driver = f"driver {pci.driver}" if pci.driver else "no driver known"
        judged = units.unspoken(why, f"PCI shows {pci.address}, {driver}; {why}")
    return Unit(
        id=f"pci:{pci.address}",
        kind=kind,
        attributes={
            **units.device(pci, topology),
            **units.nearest(pci.address, topology),
            **attributes.known(devices=tuple(card.name for card in cards)),
        },
        verdict=judged,
        layout=layout,
    )
