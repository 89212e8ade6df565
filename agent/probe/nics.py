"""NICs with their ports, RDMA devices that hang on no PCI function, and bonds.

Pure. A NIC is `pci:ADDRESS`: its GUIDs can be set anew and are shared by the functions of a card; a port is
the NIC and its number. A NIC is offered if one of its ports is. That a port is down is a fault; that it
belongs to a bond, or is a virtual function's, is not.
"""

from collections import Counter
from collections.abc import Iterator

import msgspec

from xce.agent.probe import attributes, classify, facts, units
from xce.agent.probe.topology import Topology
from xce.agent.probe.units import Unit
from xce.agent.probe.verdict import Fault, Verdict
from xce.model.instance import Health
from xce.model.value import Value

UP = frozenset({"ACTIVE", "up", "unknown"})
"""`unknown` of an interface: its driver does not tell, and traffic flows."""
VIRTUAL = 1024
"""Virtual functions that are listed, of those whose physical function is here too: none of them is ever
offered, and thousands would leave no room in an inventory for what is."""


class _Names(msgspec.Struct, frozen=True):
    """Devices by name."""

    rdma: dict[str, facts.Rdma]
    nets: dict[str, facts.Net]


def found(machine: facts.Machine, kinds: dict[str, str], topology: Topology) -> Iterator[Unit]:
    """Every NIC with its ports; RDMA devices elsewhere; bonds."""
    on_pci = {pci.address: pci for pci in machine.pci}
    names = _Names({one.name: one for one in machine.rdma}, {net.name: net for net in machine.net})
    nics = classify.nics(machine, kinds)
    left_out = [nic for nic in nics if nic.physfn in on_pci][VIRTUAL:]
    passed_over, more = {nic.pci for nic in left_out}, Counter(nic.physfn for nic in left_out)
    for nic in nics:
        if nic.pci not in passed_over:
            note = f"{more[nic.pci]} more virtual functions are not listed" if nic.pci in more else ""
            yield from _nic(nic, on_pci.get(nic.pci), names, topology, note)
    for net in machine.net:
        if net.info == "bond":
            yield _bond(net, machine)


def _nic(
    nic: classify.Nic, pci: facts.Pci | None, names: _Names, topology: Topology, note: str
) -> Iterator[Unit]:
    identifier = f"pci:{nic.pci}" if nic.pci else f"rdma:{nic.rdma[0]}"
    device = names.rdma[nic.rdma[0]] if nic.rdma else None
    ports = [
        _port(nic, port, f"{identifier}/{ordinal}", names) for ordinal, port in enumerate(nic.ports, start=1)
    ]
    rates = [port.gbps for port in nic.ports if port.gbps is not None]
    verdict, layout = _whole(nic, ports)
    yield Unit(
        id=identifier,
        kind="nic" if nic.pci else "rdma",
        attributes={
            **(units.device(pci, topology) if pci else {}),
            **_device(device),
            **attributes.known(
                fabric_kind=nic.fabric,
                function=nic.function if pci else None,
                physical_function=f"pci:{nic.physfn}" if nic.physfn else None,
                virtual_functions=pci.sriov_now if pci else None,
                virtual_functions_max=pci.sriov_total if pci else None,
                nets=nic.nets,
                gbps=max(rates, default=None),
            ),
        },
        verdict=verdict,
        layout=layout,
        notes=(note,) if note else (),
        capacity={"port": len(ports)} if ports else {},
    )
    yield from ports


def _whole(nic: classify.Nic, ports: list[Unit]) -> tuple[Verdict, str]:
    """A NIC is as well as the best of its ports."""
    if any(port.verdict.worst is None and not port.layout for port in ports):
        return Verdict(), ""
    if not nic.pci or not ports or any(port.layout for port in ports):
        return Verdict(), "; ".join(nic.reasons)
    faults = [fault for port in ports for fault in port.verdict.faults]
    known = [fault for fault in faults if fault.health is not Health.UNKNOWN]
    return Verdict(faults=tuple((known or faults)[:1])), ""


def _port(nic: classify.Nic, port: classify.Port, identifier: str, names: _Names) -> Unit:
    members = [names.nets[name] for name in port.nets if name in names.nets]
    on_rdma = {one.number: one for one in names.rdma[port.rdma].ports} if port.rdma else {}
    numbered = on_rdma.get(port.number) if port.number is not None else None
    verdict, layout = _state(nic, port)
    return Unit(
        id=identifier,
        kind="nic-port",
        parent=identifier.rpartition("/")[0],
        attributes=attributes.known(
            port=port.number if port.number is not None else int(identifier.rpartition("/")[2]),
            fabric_kind=port.fabric,
            rdma=port.rdma or None,
            nets=port.nets,
            state=port.state,
            gbps=port.gbps,
            lid=numbered.lid if numbered else None,
            mac=next((net.mac for net in members if net.mac), None),
            mtu=next((net.mtu for net in members if net.mtu), None),
            master=next((net.master for net in members if net.master), None),
        ),
        verdict=verdict,
        layout=layout,
        consumes={"port": 1},
    )


def _state(nic: classify.Nic, port: classify.Port) -> tuple[Verdict, str]:
    """What is wrong with a port, and why a sound one is not offered."""
    if not port.reasons:
        return Verdict(), ""
    text = "; ".join(port.reasons)
    if nic.physfn or not nic.pci or port.state in UP:
        return Verdict(), text
    if port.state is None:
        return units.unspoken(text, "the kernel tells no state"), ""
    fault = Fault(
        cause="port-down",
        reason=text,
        evidence=f"state of the port: {port.state}",
        recovery="by itself when the link is up",
    )
    return Verdict(faults=(fault,)), ""


def _device(device: facts.Rdma | None) -> dict[str, Value]:
    if device is None:
        return {}
    return attributes.known(
        rdma=device.name,
        uverbs=device.uverbs,
        node_guid=device.node_guid,
        system_guid=device.sys_image_guid,
        firmware=device.firmware,
    )


def _bond(net: facts.Net, machine: facts.Machine) -> Unit:
    members = tuple(sorted({one.name for one in machine.net if one.master == net.name} | set(net.lower)))
    down = net.operstate not in (None, "up", "unknown")
    fault = Fault(cause="port-down", reason=f"bond is {net.operstate}", recovery="by itself when it is up")
    verdict = Verdict(faults=(fault,)) if down else Verdict()
    if net.operstate is None:
        verdict = units.unspoken("its state is unknown", f"no operstate of {net.name}")
    return Unit(
        id=f"net:{net.name}",
        kind="bond",
        attributes=attributes.known(
            nets=members,
            mac=net.mac,
            mtu=net.mtu,
            state=net.operstate,
            gbps=net.mbps / 1000 if net.mbps else None,
        ),
        verdict=verdict,
    )
