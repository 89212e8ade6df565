"""All 29 recorded machines: what is found there is what the record says, in full, one test a machine.

The expectations are told in the record's own words, so what was found is turned into those words.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from tests.hardware import recorded
from xce.agent.probe import classify, instances, machinefile, peers
from xce.agent.probe.facts import KfdLink, KfdNode, Machine, Nvidia, NvidiaGpu, NvLink, Pci, Rdma
from xce.agent.probe.topology import Pair, Topology, topology
from xce.model.instance import Health, Instance

KINDS = ("gpu", "accelerator", "nic", "nvme", "nvswitch", "display_only")
COMPARED = {
    "numa_nodes",
    "devices",
    "rdma",
    "virtual_net",
    "gpu_nic",
    "gpu_gpu",
    "switch_groups",
    "nearest_nics",
    "gpu_links",
    "kfd_cpu_nodes",
    "kfd_gpu_nodes",
    "physical_gpus",
    "hives",
    "gpu_memory_nodes",
    "switch_groups_by_admin_file",
    "gpus",
    "instances",
    "fabric_domain",
}
ABOUT = {"machine", "tree", "source", "notes", "check", "gpus_by_vendor_library"}
"""Words about the record; and what a vendor's tool said in passing, of which the addresses are compared."""

_MIG = {"True": "Enabled", "False": "Disabled", "None": None}
_OF_A_SLICE = {"gi": "gi", "ci": "ci", "sm": "multiprocessors"}


@pytest.mark.parametrize("name", recorded.ALL)
def test_what_is_found_is_what_the_record_says(name: str) -> None:
    record, folder = recorded.expected(name), recorded.MACHINES / name
    assert set(record) <= COMPARED | ABOUT, "the record says something that is not compared"
    machine = told_by_library(machinefile.load(folder), record)
    place = topology(machine, machinefile.load_admin(folder))
    assert machine.faults == ()
    found = Words(machine, topology(machine), record).all()
    found["switch_groups_by_admin_file"] = [
        {"numa": group.numa, "members": list(group.members)} for group in place.admin_groups
    ]
    units = instances.found(machine, place).instances
    print(f"{name}: {record['machine']}: {Counter(f'{one.kind} {one.health}' for one in units)}")
    found |= words_of_a_library(units)
    for key in COMPARED & set(record):
        assert found[key] == sorted_like(key, record[key]), f"{name}: {key}"
    if "devices" in record:
        are_those_of_the_record(units, record)


def test_no_recorded_machine_is_left_out() -> None:
    assert len(recorded.ALL) == 29
    bodies = {"devices", "instances", "kfd_gpu_nodes"}
    assert all(bodies & set(recorded.expected(one)) for one in recorded.ALL)


def words_of_a_library(units: Iterable[Instance]) -> dict[str, Any]:
    """What is offered, the GPUs, and their domains, in the words of a record that a library gave."""
    gpus = [one for one in units if one.kind == "gpu"]
    offered = [one for one in units if one.health is Health.AVAILABLE]
    return {
        "gpus": [
            [one.attributes.get(key) for key in ("index", "pci", "minor")]
            + [one.id, one.attributes.get("product"), _MIG[str(one.attributes.get("mig"))]]
            for one in gpus
        ],
        "instances": [
            {"kind": one.kind, "uuid": one.id, "memory_mib": one.attributes.get("memory_mib")}
            | (
                {"sysfs": one.attributes.get("pci"), "minor": one.attributes.get("minor")}
                if one.kind == "gpu"
                else {
                    "parent": one.parent,
                    **{word: one.attributes.get(key) for word, key in _OF_A_SLICE.items()},
                }
            )
            for one in offered
        ],
        "fabric_domain": {
            pci: one.attributes.get("fabric") for one in gpus if (pci := one.attributes.get("pci"))
        },
    }


def are_those_of_the_record(units: Iterable[Instance], record: dict[str, Any]) -> None:
    """By kind and address; displays, switches and disks are no instances."""
    devices = record["devices"]
    for kind in ("gpu", "accelerator", "nic"):
        here = [str(one.attributes.get("pci")) for one in units if one.kind == kind]
        named = record.get("physical_gpus") if kind == "gpu" else None
        wanted = {device["pci"] for device in named or devices.get(kind, [])}
        assert sorted(here) == sorted(wanted), kind
    others = {one["pci"] for kind in ("display_only", "nvme", "nvswitch") for one in devices.get(kind, [])}
    assert not others & {one.attributes.get("pci") for one in units}
    tool = {one["pci"] for one in record.get("gpus_by_vendor_library", ())}
    assert tool <= {one.attributes.get("pci") for one in units if one.kind == "gpu"}


def sorted_like(key: str, value: Any) -> Any:
    """A record's lists whose order means nothing, in PCI order."""
    if key == "devices":
        return {kind: sorted(devices, key=lambda device: device["pci"]) for kind, devices in value.items()}
    if key == "gpu_links":
        return sorted(value)
    return value


def told_by_library(machine: Machine, record: dict[str, Any]) -> Machine:
    """Links that no tree holds: put where NVML or the KFD would say them."""
    links = record.get("gpu_links", [])
    gpus = sorted({end for link in links for end in link[:2] if kind_in(record, end) == "gpu"})
    if any(link[2] == "nvlink" for link in links):
        of_gpu = {gpu: [link for link in links if link[0] == gpu] for gpu in gpus}
        nvidia = [
            NvidiaGpu(
                index=index,
                pci=gpu,
                links=tuple(
                    NvLink(link=number, active=True, remote=link[1], remote_type=2)
                    for number, link in enumerate(of_gpu[gpu])
                ),
            )
            for index, gpu in enumerate(gpus)
        ]
        machine = msgspec.structs.replace(machine, nvidia=Nvidia(gpus=tuple(nvidia)))
    if any(link[2] == "xgmi" for link in links):
        number = {gpu: index for index, gpu in enumerate(gpus)}
        nodes = [
            KfdNode(
                node=number[gpu],
                simd=1,
                pci=gpu,
                links=tuple(
                    KfdLink(to=number[link[1]], type=11, max_mbps=link[3]) for link in links if link[0] == gpu
                ),
            )
            for gpu in gpus
        ]
        machine = msgspec.structs.replace(machine, kfd=tuple(nodes))
    return machine


def kind_in(record: dict[str, Any], address: str) -> str:
    """A switch that reads all zeros is in no list of the record."""
    kinds = [kind for kind, devices in record["devices"].items() for one in devices if one["pci"] == address]
    return kinds[0] if kinds else ""


class Words:
    """What was found, in the words of expected.json."""

    def __init__(self, machine: Machine, place: Topology, record: dict[str, Any]) -> None:
        self.machine = machine
        self.place = place
        self.record = record

    def all(self) -> dict[str, Any]:
        return {
            "numa_nodes": {
                str(node.node): {"cpus": node.cpus, "mem_kb": node.memory // 1024 if node.memory else None}
                for node in self.machine.numa
            },
            "devices": self.devices(),
            "rdma": {device.name: self.rdma(device) for device in self.machine.rdma},
            "virtual_net": sorted(net.name for net in self.machine.net if net.pci is None),
            "gpu_nic": [self.pair(pair) for pair in self.place.gpu_nic],
            "gpu_gpu": [self.pair(pair) for pair in self.place.gpu_gpu],
            "switch_groups": [
                {"bridge": group.bridge, "members": list(group.members)} for group in self.place.switch_groups
            ],
            "nearest_nics": {
                gpu: {"level": nearest.level, "nics": list(nearest.nics)}
                for gpu, nearest in self.place.nearest.items()
            },
            "gpu_links": sorted(self.links()),
            "gpu_memory_nodes": self.place.memory_nodes,
            **self.kfd(),
        }

    def devices(self) -> dict[str, Any]:
        kinds = classify.kinds(self.machine)
        recorded_as = (
            {one["pci"]: one for devices in self.record["devices"].values() for one in devices}
            if ("devices" in self.record)
            else {}
        )
        found: dict[str, Any] = {kind: [] for kind in KINDS}
        for pci in self.machine.pci:
            if kinds[pci.address] in found:
                keys = recorded_as.get(pci.address, {"pci": ""})
                found[kinds[pci.address]].append({key: self.device(pci)[key] for key in keys})
        return {kind: devices for kind, devices in found.items() if devices}

    def device(self, pci: Pci) -> dict[str, Any]:
        """Everything that a record may hold of a device; a field that it left out is not compared."""
        place = self.place.places.get(pci.address)
        return {
            "pci": pci.address,
            "class": _hex(pci.klass, 6),
            "vendor": _hex(pci.vendor, 4),
            "device": _hex(pci.device, 4),
            "numa": place.numa if place else pci.numa,
            "local_cpus": pci.local_cpus,
            "bridges": list(pci.bridges),
            "root": pci.root,
            "link": f"{pci.speed} x{pci.width}",
            "sriov": {"total": pci.sriov_total, "now": pci.sriov_now},
            "net": [net.name for net in self.machine.net if net.pci == pci.address],
            "rdma": [device.name for device in self.machine.rdma if device.pci == pci.address],
            "ve": self.cards("ve", pci.address),
            "drm": self.cards("drm", pci.address),
        }

    def cards(self, subsystem: str, address: str) -> list[str]:
        return [
            card.name for card in self.machine.cards if (card.subsystem, card.pci) == (subsystem, address)
        ]

    def rdma(self, device: Rdma) -> dict[str, Any]:
        wanted = self.record["rdma"].get(device.name, {})
        told: dict[str, Any] = {
            "pci": device.pci,
            "node_guid": device.node_guid,
            "sys_image_guid": device.sys_image_guid,
            "hca_type": device.hca,
            "fw_ver": device.firmware,
            "board_id": device.board,
        }
        found = {key: told[key] for key in wanted if key != "ports"}
        if "ports" not in wanted:
            assert device.ports == ()
            return found
        ports = {}
        for port in device.ports:
            words: dict[str, Any] = {
                "state": port.state,
                "phys_state": port.physical,
                "link_layer": port.layer,
                "rate": port.rate,
                "lid": None if port.lid is None else hex(port.lid),
            }
            of_record = wanted["ports"].get(str(port.number), {})
            ports[str(port.number)] = {
                key: (
                    of_record[key]
                    if key in ("state", "phys_state") and of_record[key].endswith(f": {words[key]}")
                    else words[key]
                )
                for key in of_record
            }
        return found | {"ports": ports}

    def pair(self, pair: Pair) -> list[Any]:
        return [pair.a, pair.b, pair.level, pair.common]

    def links(self) -> list[list[Any]]:
        """The record counts NVLinks by their bandwidth, 25000 MB/s each in that generation."""
        return [
            [link.a, link.b, link.kind, (link.count or 0) * 25000 if link.kind == "nvlink" else link.mbps]
            for link in self.place.links
        ]

    def kfd(self) -> dict[str, Any]:
        if "kfd_gpu_nodes" not in self.record:
            return {}
        by_node = {node.node: node for node in self.machine.kfd}
        first = {pci: by_node[one.nodes[0]] for one in self.place.physical for pci in [one.pci]}
        return {
            "kfd_cpu_nodes": [node.node for node in self.machine.kfd if not node.simd],
            "kfd_gpu_nodes": [
                self.kfd_node(node, first[node.pci], by_node)
                for node in self.machine.kfd
                if node.simd and node.pci
            ],
            "physical_gpus": [
                {"pci": one.pci, "unique_id": one.unique_id, "kfd_nodes": list(one.nodes)}
                for one in self.place.physical
            ],
            "hives": sorted({domain.id for domain in self.place.domains if domain.kind == peers.XGMI}),
        }

    def kfd_node(self, node: KfdNode, first: KfdNode, by_node: dict[int, KfdNode]) -> dict[str, Any]:
        [wanted] = [one for one in self.record["kfd_gpu_nodes"] if one["node"] == node.node]
        told: dict[str, Any] = {
            "node": node.node,
            "gpu_id": None if node.gpu_id is None else str(node.gpu_id),
            "pci": node.pci,
            "low_bits": (node.location or 0) & 7,
            "render": f"renderD{node.render}",
            "unique_id": node.unique_id,
            "hive_id": node.hive,
            "xcc": node.xcc,
            "gfx": str(node.gfx),
            "device": _hex(node.device, 4),
            "cpu_node": [link.to for link in first.links if link.type == 2 and not by_node[link.to].simd],
            "xgmi_to": [link.to for link in node.links if link.type == 11],
            "pcie_to": [link.to for link in node.links if link.type == 2],
        }
        return {key: told[key] for key in wanted}


def _hex(number: int | None, digits: int) -> str | None:
    return None if number is None else f"0x{number:0{digits}x}"
