"""Reported troubles with addresses, NUMA nodes and ports: C-GPU-04, C-GPU-05, C-GPU-07 of the cases."""

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from xce.agent.probe import classify, facts, sysfs
from xce.agent.probe.facts import Machine, Nvidia, NvidiaGpu
from xce.agent.probe.topology import Nearest, topology

CASES = Path(__file__).parents[2] / "cases"


def case_of(name: str, folder: Path) -> Machine:
    """What the case's files and its library say, read as from a machine."""
    case = json.loads((CASES / "gpu" / name).read_text())
    for path, text in case["sysfs"].items():
        file = folder / "sys" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        (file.parent / "class").write_text("0x030200\n")
        (file.parent / "vendor").write_text("0x10de\n")
    return msgspec.structs.replace(sysfs.read(folder), nvidia=library(case["devices"]))


def library(devices: list[dict[str, Any]]) -> Nvidia:
    gpus = [
        NvidiaGpu(index=one["index"], uuid=one["uuid"], minor=one["minor"], pci=facts.address(one["bus_id"]))
        for one in devices
    ]
    return Nvidia(gpus=tuple(gpus))


def test_two_spellings_of_one_address_are_one_device(tmp_path: Path) -> None:
    """C-GPU-04: the library says 00000000:82:00.0, the kernel's folder is 0000:82:00.0."""
    found = topology(case_of("busid.json", tmp_path))
    assert list(found.places) == ["0000:82:00.0"]
    assert found.places["0000:82:00.0"].numa == 1


def test_a_gpu_of_the_other_spelling_joins_the_nics_on_its_switch(tmp_path: Path) -> None:
    """C-GPU-04, with the switch that the case speaks of: the library's GPU is the one below it."""
    machine = case_of("busid.json", tmp_path)
    path = {"root": "pci0000:80", "bridges": ("0000:80:01.0", "0000:81:00.0")}
    gpu = msgspec.structs.replace(machine.pci[0], **path)
    nic = facts.Pci(address="0000:83:00.0", klass=0x020700, numa=1, **path)  # type: ignore[arg-type]
    found = topology(msgspec.structs.replace(machine, pci=(gpu, nic)))
    assert found.nearest == {"0000:82:00.0": Nearest(level="bridge", nics=("0000:83:00.0",))}


def test_two_unknown_numa_nodes_are_not_the_same_node(tmp_path: Path) -> None:
    """C-GPU-05: numa_node reads -1: not node 0, not a number, and no condition of equality is met."""
    found = topology(case_of("numa-unknown.json", tmp_path))
    assert [found.places[gpu].numa for gpu in ("0000:01:00.0", "0000:41:00.0")] == [None, 0]
    assert found.pair("0000:01:00.0", "0000:41:00.0").level == "unknown"
    assert found.pair("0000:01:00.0", "0000:01:00.0").level == "unknown"


def test_down_ports_and_virtual_functions_are_listed_and_not_offered(tmp_path: Path) -> None:
    """C-GPU-07: two of four may be offered, and InfiniBand is told from Ethernet."""
    subprocess.run([CASES / "nic" / "make-nic-sysfs.sh", tmp_path / "sys"], check=True)
    machine = sysfs.read(tmp_path)
    nics = {nic.rdma[0]: nic for nic in classify.nics(machine)}
    places = topology(machine).places
    offered = {name: nic for name, nic in nics.items() if not nic.reasons}
    assert {(name, nic.fabric, nic.ports[0].gbps, places[nic.pci].numa) for name, nic in offered.items()} == {
        ("mlx5_0", "infiniband", 400.0, 0),
        ("mlx5_3", "roce", 200.0, 1),
    }
    assert nics["mlx5_1"].reasons == ("port is DOWN, Disabled",)
    assert nics["mlx5_2"].reasons[0] == "virtual function of 0000:0c:00.0"
    assert (nics["mlx5_2"].function, nics["mlx5_2"].physfn) == ("virtual", "0000:0c:00.0")
