"""What netlink says of network interfaces, laid over what sysfs said. The only importer of pyroute2.

It knows more: the kind of every virtual interface, masters by number, the bus and address of the device
below. Plain `IPRoute` in this network namespace alone: pyroute2's ways into other ones fork. If netlink
cannot be asked, the facts stay those of sysfs, and a fault says why.
"""

from typing import Any

import msgspec
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from xce.agent.probe import facts, rdmalink
from xce.agent.probe.facts import Machine, Net, Rdma
from xce.reporters.frame import escape

LOWER = {"vlan", "macvlan", "ipvlan", "macvtap", "ipvtap"}
"""Kinds whose IFLA_LINK is the interface below; of a veth it is the peer."""


def refine(machine: Machine) -> Machine:
    """The facts with netlink's word on every interface; interfaces that only netlink names come last."""
    try:
        with IPRoute() as netlink:
            told = [_plain(message) for message in netlink.get_links()]
    except (OSError, NetlinkError) as error:
        return msgspec.structs.replace(machine, faults=(*machine.faults, f"netlink: {error}"))
    return msgspec.structs.replace(machine, net=merged(machine, told), rdma=_with_interfaces(machine.rdma))


def _with_interfaces(devices: tuple[Rdma, ...]) -> tuple[Rdma, ...]:
    """RDMA devices with the interfaces of their ports; as they were, where the kernel does not say."""
    try:
        told = rdmalink.interfaces() if devices else {}
    except OSError:
        return devices
    return tuple(joined(device, told) for device in devices)


def joined(device: Rdma, told: dict[tuple[str, int], str]) -> Rdma:
    """Pure: one device, with the interface that netlink names for a port of which sysfs names none."""
    ports = tuple(
        port
        if port.nets or (device.name, port.number) not in told
        else msgspec.structs.replace(port, nets=(told[device.name, port.number],))
        for port in device.ports
    )
    nets = dict.fromkeys((*device.nets, *(net for port in ports for net in port.nets)))
    return msgspec.structs.replace(device, ports=ports, nets=tuple(nets))


def _plain(message: Any) -> dict[str, Any]:
    """The parts of a RTM_NEWLINK message that are used."""
    info = message.get("linkinfo") or {}
    return {
        "name": escape(message.get("ifname") or ""),
        "index": message["index"],
        "type": message["ifi_type"],
        "kind": info.get("kind") if hasattr(info, "get") else None,
        **{
            key: message.get(key)
            for key in (
                "address",
                "operstate",
                "carrier",
                "mtu",
                "master",
                "link",
                "link_netnsid",
                "phys_port_name",
                "parent_dev_name",
                "parent_dev_bus_name",
            )
        },
    }


def merged(machine: Machine, told: list[dict[str, Any]]) -> tuple[Net, ...]:
    """Pure: sysfs's interfaces, corrected; those of another name or number in netlink are not the same."""
    names = {link["index"]: link["name"] for link in told}
    functions = {pci.address for pci in machine.pci}
    said = {(link["name"], link["index"]): link for link in told}
    found = []
    for net in machine.net:
        link = said.pop((net.name, net.index), None) if net.index is not None else None
        found.append(net if link is None else _over(net, link, names, functions))
    new = [_over(Net(name=link["name"]), link, names, functions) for link in said.values() if link["name"]]
    known = {net.name for net in found}
    return tuple(_with_members([*found, *(net for net in new if net.name not in known)]))


def _over(net: Net, link: dict[str, Any], names: dict[int, str], functions: set[str]) -> Net:
    address = facts.address(link["parent_dev_name"] or "") if link["parent_dev_bus_name"] == "pci" else None
    below = names.get(link["link"], "") if link["link_netnsid"] is None and link["kind"] in LOWER else ""
    operstate = link["operstate"]
    return msgspec.structs.replace(
        net,
        index=link["index"],
        kind=link["type"],
        info=link["kind"] or net.info,
        mac=link["address"] or net.mac,
        operstate=operstate.lower() if operstate else net.operstate,
        carrier=net.carrier if link["carrier"] is None else bool(link["carrier"]),
        mtu=link["mtu"] or net.mtu,
        master=names.get(link["master"], net.master) if link["master"] else "",
        lower=net.lower or ((below,) if below else ()),
        pci=net.pci or (address if address in functions else None),
        phys_port=link["phys_port_name"] or net.phys_port,
    )


def _with_members(nets: list[Net]) -> list[Net]:
    """Bonds and bridges name their members, where sysfs did not."""
    members: dict[str, list[str]] = {}
    for net in nets:
        if net.master:
            members.setdefault(net.master, []).append(net.name)
    return [msgspec.structs.replace(net, lower=net.lower or tuple(members.get(net.name, ()))) for net in nets]
