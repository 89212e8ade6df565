"""What a PCI function is, and which network ports may be offered: rules, and tables with their sources.

Pure. A rule asks for the class code and what the kernel hangs on a function first, and for ids only where
the class says too little. The ids are those of the PCI ID database (pci-ids.ucw.cz) and of the drivers named
beside them. A kind that no rule knows is `other` and never offered; displays and management chips neither.
"""

import re

import msgspec

from xce.agent.probe.facts import Machine, Net, Pci, Rdma, RdmaPort
from xce.linux import classes

GPU, ACCELERATOR, NIC, NVME = "gpu", "accelerator", "nic", "nvme"
NVSWITCH, DISPLAY, BRIDGE, OTHER = "nvswitch", "display_only", "bridge", "other"
COMPUTE = (GPU, ACCELERATOR)

NVIDIA, AMD, INTEL, MELLANOX, AMAZON, GOOGLE = 0x10DE, 0x1002, 0x8086, 0x15B3, 0x1D0F, 0x1AE0
CORNELIS, CRAY, HPE, QLOGIC = 0x434E, 0x17DB, 0x1590, 0x1077

GPU_MAKERS = {NVIDIA, AMD, INTEL, 0x1ED5}
"""Whose display controllers compute (1ed5: Moore Threads). Everyone else's are displays: ASPEED 1a03, Matrox
102b, Cirrus 1013, virtio 1af4, QXL 1b36, VMware 15ad, Hyper-V 1414, bochs 1234, Silicon Motion 126f."""
MANAGEMENT_DISPLAYS = {
    AMD: {0x515E, 0x5969, 0x4750, 0x4752, 0x4754, 0x4756, 0x474D, 0x474F, 0x4753, 0x5159},
}
"""AMD's server display chips: ES1000 (515e, 5969), Rage XL (47xx), RV100 (5159)."""
COPROCESSORS_ELSEWHERE = {
    INTEL: {0x0435, 0x0443, 0x37C8, 0x37C9, 0x19E2, 0x19E3, 0x6F54, 0x6F55, 0x18A0, 0x18A1, 0x18EE, 0x18EF}
    | set(range(0x4940, 0x4950))
    | {0x578A, 0x578B, 0x2710, 0x2714},
}
"""Class 0b40 that encrypts, compresses or queues: Intel QAT (drivers qat_*), DLB (2710, 2714)."""
ACCELERATORS = {
    AMAZON: {0x7064, 0x7065, 0x7066, 0x7067, 0x7164, 0x7264, 0x7364},
    GOOGLE: {0x0027, 0x0056, 0x005E, 0x0062, 0x0063, 0x006F},
}
"""Those whose class says nothing: AWS Inferentia and Trainium (driver neuron), Google TPU (gasket, vfio)."""

VIRTUAL_DRIVERS = {"igbvf", "ixgbevf", "iavf", "i40evf", "fm10kvf", "bnxt_en_vf", "cxgb4vf", "ena_vf"}
EFA_DEVICES = {0xEFA0, 0xEFA1, 0xEFA2, 0xEFA3}
OMNIPATH_DEVICES = {(INTEL, 0x24F0), (INTEL, 0x24F1)}
SLINGSHOT_DEVICES = {(CRAY, 0x0501), (HPE, 0x0371)}
"""Cassini 1 and 2 (driver cxi_ss1)."""
REPRESENTOR = re.compile(r"(c\d+)?pf\d+(vf|sf)\d+")
"""`phys_port_name` of a representor (Documentation/networking/switchdev.rst)."""

ETHERNET, INFINIBAND, ROCE, IWARP, USNIC = "ethernet", "infiniband", "roce", "iwarp", "usnic"
OMNIPATH, TRUESCALE, EFA, SLINGSHOT, WIFI, OTHER_FABRIC = (
    "omnipath",
    "truescale",
    "efa",
    "slingshot",
    "wifi",
    "unknown",
)
RDMA_FABRICS = {INFINIBAND, ROCE, IWARP, OMNIPATH, TRUESCALE, EFA, SLINGSHOT}
"""Fabrics that carry traffic of GPUs between hosts."""


class Port(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One port of a NIC: an RDMA device's, or an interface where there is none."""

    fabric: str
    rdma: str = ""
    number: int | None = None
    nets: tuple[str, ...] = ()
    state: str | None = None
    """`ACTIVE`, `DOWN`, ... of RDMA; `up`, `down`, ... of an interface."""
    gbps: float | None = None
    reasons: tuple[str, ...] = ()
    """Why it may not be offered; none: it may."""


class Nic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One PCI function that is a NIC. It may be offered if a port of it may."""

    pci: str
    """'' for an RDMA device of which no PCI function is known."""
    fabric: str
    function: str = "physical"
    """`physical` or `virtual`."""
    physfn: str = ""
    nets: tuple[str, ...] = ()
    rdma: tuple[str, ...] = ()
    ports: tuple[Port, ...] = ()
    reasons: tuple[str, ...] = ()
    """Why nothing of it may be offered; none: a port may."""


def kinds(machine: Machine) -> dict[str, str]:
    """The kind of every PCI function, by address."""
    compute = {card.pci for card in machine.cards if card.subsystem in classes.ACCELERATORS}
    network = {net.pci for net in machine.net} | {device.pci for device in machine.rdma}
    held = set(machine.nvidia_proc)
    return {pci.address: _kind(pci, compute=compute, network=network, held=held) for pci in machine.pci}


def _kind(pci: Pci, *, compute: set[str | None], network: set[str | None], held: set[str]) -> str:
    base, klass = (pci.klass >> 16, pci.klass >> 8) if pci.klass is not None else (None, None)
    ids = (pci.vendor, pci.device)
    if pci.address in held:
        return GPU
    if base == 0x03:
        return _display(pci)
    if klass == 0x1200 and pci.vendor == AMD:
        return GPU
    if pci.address in compute or klass == 0x1200 or _listed(ACCELERATORS, ids):
        return ACCELERATOR
    if klass == 0x0B40:
        return OTHER if _listed(COPROCESSORS_ELSEWHERE, ids) else ACCELERATOR
    if base == 0x02 or klass == 0x0C06:
        return NIC
    if base in (None, 0x00, 0xFF) and pci.address in network:
        return NIC
    if klass == 0x0680 and pci.vendor == NVIDIA:
        return NVSWITCH
    if klass == 0x0108:
        return NVME
    return BRIDGE if base == 0x06 else OTHER


def _display(pci: Pci) -> str:
    """A display controller computes if its maker's do; a 3D controller (0302) has no display to be only for.

    Intel's own graphics sit in the processor: of class VGA, on the root bus. Its cards are behind a bridge or
    of class `display, other` (0380).
    """
    ids, klass = (pci.vendor, pci.device), (pci.klass or 0) >> 8
    if _listed(MANAGEMENT_DISPLAYS, ids):
        return DISPLAY
    if pci.vendor == INTEL and klass == 0x0300 and not pci.bridges:
        return DISPLAY
    return GPU if pci.vendor in GPU_MAKERS or klass == 0x0302 else DISPLAY


def _listed(table: dict[int, set[int]], ids: tuple[int | None, int | None]) -> bool:
    vendor, device = ids
    return vendor is not None and device is not None and device in table.get(vendor, ())


def nics(machine: Machine, of_kind: dict[str, str] | None = None) -> tuple[Nic, ...]:
    """Every NIC, in PCI order, with its ports and why they may not be offered; RDMA devices off PCI last."""
    known = kinds(machine) if of_kind is None else of_kind
    nets = {net.name: net for net in machine.net}
    own: dict[str, list[Net]] = {}
    rdma: dict[str, list[Rdma]] = {}
    for net in machine.net:
        own.setdefault(net.pci or "", []).append(net)
    for device in machine.rdma:
        rdma.setdefault(device.pci or "", []).append(device)
    found = [
        _nic(pci, rdma.get(pci.address, []), nets, own.get(pci.address, []))
        for pci in machine.pci
        if known[pci.address] == NIC
    ]
    return (*found, *(_off_pci(device) for device in rdma.get("", [])))


def _off_pci(device: Rdma) -> Nic:
    """An RDMA device in software, of another bus, or of which the kernel does not say where it is."""
    reason = "not on a PCI function that is known"
    ports = tuple(
        Port(
            fabric=fabric_of(None, device, port),
            rdma=device.name,
            number=port.number,
            nets=port.nets,
            state=port.state,
            gbps=port.gbps,
            reasons=(reason,),
        )
        for port in device.ports
    )
    fabric = ports[0].fabric if ports else fabric_of(None, device, None)
    return Nic(pci="", fabric=fabric, rdma=(device.name,), ports=ports, reasons=(reason,))


def _nic(pci: Pci, rdma: list[Rdma], nets: dict[str, Net], own: list[Net]) -> Nic:
    uplinks = [net for net in own if not representor(net)]
    ports = tuple(
        port
        for device in rdma
        for port in (
            *(_rdma_port(pci, device, port, nets, uplinks) for port in device.ports),
            *([] if device.ports else [_portless(pci, device)]),
        )
    )
    if not rdma:
        ports = tuple(_interface(pci, net, nets) for net in uplinks)
    reasons = _function_reasons(pci)
    if not ports:
        reasons.append("no network interface and no RDMA device" + _bound(pci))
    elif not reasons and all(port.reasons for port in ports):
        reasons += dict.fromkeys(reason for port in ports for reason in port.reasons)
    return Nic(
        pci=pci.address,
        fabric=ports[0].fabric if ports else _fabric_of_class(pci),
        function="virtual" if pci.physfn or pci.driver in VIRTUAL_DRIVERS else "physical",
        physfn=pci.physfn,
        nets=tuple(net.name for net in own),
        rdma=tuple(device.name for device in rdma),
        ports=ports,
        reasons=tuple(reasons),
    )


def representor(net: Net) -> bool:
    """It stands for a virtual function's port on the host's side of an embedded switch."""
    return REPRESENTOR.fullmatch(net.phys_port) is not None


def _function_reasons(pci: Pci) -> list[str]:
    """A virtual function whose physical one is here is not offered beside it: they share a port."""
    return [f"virtual function of {pci.physfn}"] if pci.physfn else []


def _bound(pci: Pci) -> str:
    return f" (driver {pci.driver})" if pci.driver else " (no driver)"


def _rdma_port(pci: Pci, device: Rdma, port: RdmaPort, nets: dict[str, Net], own: list[Net]) -> Port:
    fabric = fabric_of(pci, device, port)
    reasons = _function_reasons(pci)
    if port.state is None:
        reasons.append("state of its port is unknown")
    elif port.state != "ACTIVE":
        physical = f", {port.physical}" if port.physical else ""
        reasons.append(f"port is {port.state}{physical}")
    names = port.nets or tuple(net.name for net in own if net.port in (None, port.number - 1))
    members = [nets[name] for name in names if name in nets]
    reasons += [reason for net in members for reason in _membership(net, nets)]
    return Port(
        fabric=fabric,
        rdma=device.name,
        number=port.number,
        nets=names,
        state=port.state,
        gbps=port.gbps,
        reasons=tuple(reasons),
    )


def _portless(pci: Pci, device: Rdma) -> Port:
    reasons = (*_function_reasons(pci), "state of its port is unknown")
    return Port(fabric=fabric_of(pci, device, None), rdma=device.name, reasons=reasons)


def _interface(pci: Pci, net: Net, nets: dict[str, Net]) -> Port:
    """A port without RDMA: up, and no part of something else."""
    reasons = _function_reasons(pci)
    if net.operstate is None and net.carrier is None:
        reasons.append("state of its port is unknown")
    elif not (net.operstate in ("up", "unknown", None) and net.carrier is not False):
        reasons.append(f"interface is {net.operstate or 'without carrier'}")
    reasons += _membership(net, nets)
    fabric = _fabric_of_class(pci)
    if net.info in ("wlan", "wireless"):
        fabric = WIFI
        reasons.append("a wireless interface")
    elif fabric in (INFINIBAND, OMNIPATH, TRUESCALE, EFA):
        reasons.append("no RDMA device")
    return Port(
        fabric=fabric,
        nets=(net.name,),
        state=net.operstate,
        gbps=net.mbps / 1000 if net.mbps else None,
        reasons=tuple(reasons),
    )


def _membership(net: Net, nets: dict[str, Net]) -> list[str]:
    """What it is a part of; a routing domain (VRF) only says where its packets go."""
    kind = nets[net.master].info if net.master in nets else ""
    if not net.master or kind == "vrf":
        return []
    return [f"{net.name} is a member of {kind + ' ' if kind else ''}{net.master}"]


def fabric_of(pci: Pci | None, device: Rdma, port: RdmaPort | None) -> str:
    """The network that an RDMA port is on, by what the kernel says of it."""
    driver = device.driver or (pci.driver if pci else "")
    if driver == "hfi1" or device.name.startswith("hfi1_") or (pci and _fabric_of_class(pci) == OMNIPATH):
        return OMNIPATH
    if driver == "ib_qib" or device.name.startswith("qib"):
        return TRUESCALE
    if pci is not None and _fabric_of_class(pci) == EFA:
        return EFA
    if device.node_type in ("usNIC", "usNIC UDP"):
        return USNIC
    if device.node_type == "RNIC":
        return IWARP
    if port is not None and port.layer is not None:
        return {"InfiniBand": INFINIBAND, "Ethernet": ROCE}.get(port.layer, OTHER_FABRIC)
    guess = _fabric_of_class(pci) if pci else OTHER_FABRIC
    return guess if guess == INFINIBAND else OTHER_FABRIC


def _fabric_of_class(pci: Pci) -> str:
    """By class and ids alone, where nothing hangs on the function."""
    ids = (pci.vendor, pci.device)
    klass = pci.klass >> 8 if pci.klass is not None else None
    if ids in OMNIPATH_DEVICES or pci.vendor == CORNELIS or klass == 0x0208:
        return OMNIPATH
    if ids in SLINGSHOT_DEVICES:
        return SLINGSHOT
    if pci.vendor == AMAZON and pci.device in EFA_DEVICES:
        return EFA
    if pci.vendor == QLOGIC and klass == 0x0C06:
        return TRUESCALE
    return {0x0207: INFINIBAND, 0x0C06: INFINIBAND, 0x0200: ETHERNET}.get(klass or 0, OTHER_FABRIC)
