"""From facts to instances: the recorded machines, and the troubles that others had with theirs."""

import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.hardware import recorded
from xce.agent.probe import attributes, instances, machinefile, sysfs
from xce.agent.probe.facts import (
    Card,
    KfdNode,
    Machine,
    Mig,
    MigSlice,
    Net,
    Nvidia,
    NvidiaGpu,
    NvLink,
    Pci,
    Rdma,
    RdmaPort,
)
from xce.agent.probe.topology import AdminGroup, AdminTopology, topology
from xce.model.instance import Health, Instance, Inventory
from xce.model.value import Value
from xce.reporters import inventory

CASES = Path(__file__).parents[2] / "cases"


def unfit(found: dict[str, Value]) -> list[str]:
    """Names that are not in the table, or whose value has another form than it says."""
    forms = {
        bool: (attributes.Form.SWITCH,),
        int: (attributes.Form.NUMBER, attributes.Form.REAL),
        float: (attributes.Form.REAL,),
        str: (attributes.Form.TEXT,),
        list: (attributes.Form.LIST,),
    }
    return [
        name
        for name, value in found.items()
        if name not in attributes.BY_NAME or attributes.BY_NAME[name].form not in forms[type(value)]
    ]


def findings(machine: Machine, admin: AdminTopology | None = None) -> instances.Findings:
    found = instances.found(machine, topology(machine, admin))
    for one in found.instances:
        assert unfit(one.attributes) == [], one.id
    Inventory(reporter="discovery", generation=1, complete=True, instances=list(found.instances))
    return found


@cache
def all_of(name: str) -> instances.Findings:
    folder = recorded.MACHINES / name
    return findings(machinefile.load(folder), machinefile.load_admin(folder))


def by_id(found: instances.Findings) -> dict[str, Instance]:
    return {one.id: one for one in found.instances}


@pytest.mark.parametrize("name", recorded.ALL)
def test_every_recorded_machine_gives_instances_that_an_agent_would_take(name: str) -> None:
    """Parents first, each device once, no text or counter that the agent or the broker refuses."""
    found = all_of(name)
    seen: set[str] = set()
    for one in found.instances:
        assert one.parent in {"", *seen}
        seen.add(one.id)
    raw = [msgspec.to_builtins(one) for one in found.instances]
    taken, refusals = inventory.check(raw, complete=found.complete)
    assert refusals == []
    assert taken
    assert len(taken.instances) == len(raw)
    print(name, dict(Counter(f"{one.kind} {one.health}" for one in found.instances)))


@pytest.mark.parametrize("name", [name for name in recorded.ALL if name.startswith("kfd-")])
def test_partitions_belong_to_their_gpu_and_are_offered_in_its_place(name: str) -> None:
    wanted = recorded.expected(name)
    found = all_of(name).instances
    gpus = {one.id: one for one in found if one.kind == "gpu"}
    assert len(gpus) == len(wanted["physical_gpus"]) == 8
    parts = [one for one in found if one.kind == "gpu-partition"]
    whole = len(wanted["kfd_gpu_nodes"]) == 8
    assert len(parts) == (0 if whole else len(wanted["kfd_gpu_nodes"]))
    assert {one.health for one in gpus.values()} == {Health.AVAILABLE if whole else Health.UNAVAILABLE}
    for gpu in gpus.values():
        mine = [part for part in parts if part.parent == gpu.id]
        assert sum(part.consumes["partition"] for part in mine) == gpu.capacity.get("partition", 0)
    renders = {f"renderD{one.attributes['render']}" for one in (parts or gpus.values())}
    assert renders == {node["render"] for node in wanted["kfd_gpu_nodes"]}


GPU = Pci(address="0000:82:00.0", klass=0x030200, vendor=0x10DE, device=0x2330, driver="nvidia", numa=1)


def library(*gpus: NvidiaGpu, **more: Any) -> Nvidia:
    return Nvidia(driver="550.54.15", cuda="12.4", count=len(gpus), gpus=gpus, **more)


def test_a_device_known_to_two_witnesses_is_one_instance() -> None:
    gpu = NvidiaGpu(index=3, uuid="GPU-a", pci=GPU.address, minor=5, name="NVIDIA H100")
    (one,) = findings(Machine(pci=(GPU,), nvidia=library(gpu))).instances
    assert (one.id, one.health) == ("GPU-a", Health.AVAILABLE)
    assert one.attributes["pci"] == "0000:82:00.0"
    assert (one.attributes["numa"], one.attributes["minor"], one.attributes["index"]) == (1, 5, 3)


def test_a_device_that_makes_no_sense_costs_no_other() -> None:
    """A number or a name beyond all bounds ended the whole reading, and every device was unknown."""
    odd = msgspec.structs.replace(GPU, address="0000:83:00.0", numa=1 << 63)
    gpus = [NvidiaGpu(index=n, uuid=f"GPU-{n}", pci=pci.address) for n, pci in enumerate((GPU, odd))]
    slices = Mig(current=True, slices=(MigSlice(uuid="MIG-1", gi=1, ci=0),))
    gpus[1] = msgspec.structs.replace(gpus[1], mig=slices)
    bond = Net(name="bond\x1b[2J", info="bond", operstate="up")
    found = findings(Machine(pci=(GPU, odd), net=(bond,), nvidia=library(*gpus)))
    assert [one.id for one in found.instances] == ["GPU-0"]
    assert found.verdicts.keys() == {"GPU-0"}
    assert not found.complete
    assert [fault.split(":")[0] for fault in found.faults] == [
        "instance GPU-1",
        "instance MIG-1",
        r"instance id 'net",
    ]
    assert all(fault.isprintable() for fault in found.faults)


def test_two_devices_of_one_id_are_not_both_offered() -> None:
    other = msgspec.structs.replace(GPU, address="0000:83:00.0")
    gpus = [NvidiaGpu(index=n, uuid="GPU-a", pci=pci.address) for n, pci in enumerate((GPU, other))]
    found = findings(Machine(pci=(GPU, other), nvidia=library(*gpus)))
    assert [one.attributes["pci"] for one in found.instances] == [GPU.address]
    assert found.faults == ("instance GPU-a: its id occurs twice",)


def test_thousands_of_virtual_functions_leave_room_for_what_is_offered() -> None:
    """With 2,000 of them the reading was larger than a line may be, and nothing was known of the GPUs."""
    physical = Pci(address="0000:81:00.0", klass=0x020000, driver="mlx5_core", sriov_now=2000)
    virtual = [
        Pci(
            address=f"0000:{0x90 + n // 256:02x}:{n % 256 // 8:02x}.{n % 8}",
            klass=0x020000,
            driver="mlx5_core",
            physfn=physical.address,
        )
        for n in range(2000)
    ]
    nets = [
        Net(name=f"eth{n}", pci=pci.address, operstate="up") for n, pci in enumerate((physical, *virtual))
    ]
    found = findings(Machine(pci=(GPU, physical, *virtual), net=tuple(nets)))
    kinds = Counter(one.kind for one in found.instances)
    assert kinds == {"gpu": 1, "nic": 1025, "nic-port": 1025}
    assert by_id(found)["pci:0000:81:00.0"].notes == ["976 more virtual functions are not listed"]
    assert found.instances[0].attributes["nearest_nics"] == ["pci:0000:81:00.0"], "no VF is offered"


def test_a_gpu_that_the_library_does_not_list_stays_lost_under_its_address() -> None:
    other = NvidiaGpu(index=0, uuid="GPU-b", pci="0000:0f:00.0")
    found = findings(Machine(pci=(GPU,), nvidia=library(other)))
    lost = by_id(found)["pci:0000:82:00.0"]
    assert (lost.health, lost.reason) == (Health.LOST, "GPU is lost")
    assert "0000:82:00.0" in lost.evidence
    assert lost.attributes["pci"] == "0000:82:00.0"
    assert found.verdicts[lost.id].worst
    assert by_id(found)["GPU-b"].health is Health.AVAILABLE


@pytest.mark.parametrize(
    ("machine", "blind"),
    [
        (Machine(pci=(GPU,)), "the NVIDIA library was not asked"),
        (Machine(pci=(GPU,), nvidia=Nvidia(error="Driver/library version mismatch", code=18)), "mismatch"),
    ],
)
def test_a_library_that_says_nothing_makes_gpus_unknown_and_not_gone(machine: Machine, blind: str) -> None:
    found = findings(machine)
    (one,) = found.instances
    assert one.health is Health.UNKNOWN
    assert not found.complete
    assert blind in found.blind["nvidia"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"driver": "vfio-pci"}, "held by the driver vfio-pci for a virtual machine"),
        ({"driver": "nouveau"}, "held by the driver nouveau"),
        ({"physfn": "0000:82:00.0", "address": "0000:82:00.4"}, "virtual function of 0000:82:00.0"),
    ],
)
def test_a_gpu_that_is_held_for_something_else_is_neither_lost_nor_offered(
    change: dict[str, str], reason: str
) -> None:
    pci = msgspec.structs.replace(GPU, **change)
    found = findings(Machine(pci=(pci,), nvidia=library()))
    (one,) = found.instances
    assert (one.health, one.reason) == (Health.UNAVAILABLE, reason)
    assert found.verdicts[one.id].worst is None


def test_mig_without_slices_offers_nothing_and_hides_nobody_else() -> None:
    """C-GPU-01."""
    bare = NvidiaGpu(index=0, uuid="GPU-0", pci="0000:0f:00.0", mig=Mig(current=True, pending=True))
    whole = NvidiaGpu(index=1, uuid="GPU-1", pci="0000:15:00.0", mig=Mig(current=False, pending=False))
    found = findings(Machine(nvidia=library(bare, whole)))
    assert {one.id: (one.health, one.reason) for one in found.instances} == {
        "GPU-0": (Health.UNAVAILABLE, "MIG on, no instances"),
        "GPU-1": (Health.AVAILABLE, ""),
    }


def test_slices_consume_the_memory_slices_they_cover_and_share_the_fate_of_their_gpu() -> None:
    slices = (
        MigSlice(uuid="MIG-a", gi=1, ci=0, profile="3g.20gb", placement=(4, 4), memory=20224 << 20),
        MigSlice(uuid="MIG-b", gi=2, ci=0, profile="3g.20gb", placement=(0, 4), memory=20096 << 20),
    )
    gpu = NvidiaGpu(index=0, uuid="GPU-0", remap_failed=True, mig=Mig(current=True, slices=slices))
    found = by_id(findings(Machine(nvidia=library(gpu))))
    assert found["MIG-a"].consumes == {f"memory-slice-{at}": 1 for at in range(4, 8)}
    assert found["GPU-0"].capacity == {f"memory-slice-{at}": 1 for at in range(8)}
    assert found["MIG-a"].attributes["memory_mib"] == 20224
    assert found["MIG-a"].attributes["placement"] == "4:4"
    assert found["GPU-0"].health is Health.UNAVAILABLE
    assert found["GPU-0"].reason == "row remapping failed"
    assert found["MIG-b"].reason == "its GPU: row remapping failed"


def test_slices_that_cannot_be_read_make_the_inventory_openly_incomplete() -> None:
    gpu = NvidiaGpu(index=0, uuid="GPU-0", mig=Mig(current=True, error="Unknown Error"))
    found = findings(Machine(nvidia=library(gpu)))
    assert not found.complete
    assert found.partial == ("GPU-0",)


def test_peers_are_named_by_identity_with_the_number_of_links() -> None:
    def gpu(index: int, other: int) -> NvidiaGpu:
        links = [
            NvLink(link=n, active=n < 3, version=3, remote=f"0004:0{other}:00.0", remote_type=0)
            for n in range(4)
        ]
        return NvidiaGpu(index=index, uuid=f"GPU-{index}", pci=f"0004:0{index}:00.0", links=tuple(links))

    one, two = findings(Machine(nvidia=library(gpu(4, 5), gpu(5, 4)))).instances
    assert one.attributes["link_peers"] == ["GPU-5=3"]
    assert two.attributes["link_peers"] == ["GPU-4=3"]
    assert (one.attributes["nvlinks"], one.attributes["nvlink_version"]) == (3, 3)
    assert one.attributes["link_domain"] == two.attributes["link_domain"]


def test_sharing_is_described_with_its_limits() -> None:
    gpu = NvidiaGpu(index=0, uuid="GPU-0", compute_mode="default", compute_capability="9.0")
    (one,) = findings(Machine(nvidia=library(gpu))).instances
    assert (one.attributes["sharing"], one.attributes["mps_clients"]) == (["mps", "time-slicing"], 48)
    closed = msgspec.structs.replace(gpu, compute_mode="prohibited")
    (one,) = findings(Machine(nvidia=library(closed))).instances
    assert (one.health, one.reason) == (Health.UNAVAILABLE, "its compute mode is prohibited")
    assert "sharing" not in one.attributes


def test_partitions_are_named_by_what_the_device_says_of_them_and_not_by_an_order() -> None:
    """A partition that is missing leaves the names of the others alone."""
    nodes = [
        KfdNode(
            node=2 + n,
            simd=4,
            pci="0000:05:00.0",
            unique_id="16404946649897475633",
            gpu_id=0xA0 + n,
            gfx=90402,
        )
        for n in range(3)
    ]
    whole = findings(Machine(kfd=tuple(nodes)))
    fewer = findings(Machine(kfd=(nodes[0], nodes[2])))
    assert [one.id for one in whole.instances] == ["GPU-e3aa140f9a5f9e31"] + [
        f"GPU-e3aa140f9a5f9e31/a{n}" for n in range(3)
    ]
    assert {one.id for one in fewer.instances} < {one.id for one in whole.instances}
    assert whole.instances[0].attributes["architecture"] == "gfx942"


def test_down_ports_and_virtual_functions_are_listed_and_not_offered(tmp_path: Path) -> None:
    """C-GPU-07."""
    subprocess.run([CASES / "nic" / "make-nic-sysfs.sh", tmp_path / "sys"], check=True)
    nics = {
        one.attributes["rdma"]: one for one in findings(sysfs.read(tmp_path)).instances if one.kind == "nic"
    }
    offered = {
        (
            one.attributes["rdma"],
            one.attributes["fabric_kind"],
            one.attributes["gbps"],
            one.attributes["numa"],
        )
        for one in nics.values()
        if one.health is Health.AVAILABLE
    }
    assert offered == {("mlx5_0", "infiniband", 400.0, 0), ("mlx5_3", "roce", 200.0, 1)}
    assert nics["mlx5_1"].health is Health.UNAVAILABLE
    assert "DOWN" in nics["mlx5_1"].reason
    assert nics["mlx5_2"].attributes["physical_function"] == "pci:0000:0c:00.0"
    assert nics["mlx5_2"].reason == "virtual function of 0000:0c:00.0"


NIC = Pci(address="0000:17:00.0", klass=0x020000, vendor=0x15B3, device=0x1021, driver="mlx5_core", numa=0)


def test_a_bond_is_listed_beside_its_members_which_are_not_offered() -> None:
    nets = (
        Net(name="eth0", pci=NIC.address, operstate="up", carrier=True, master="bond0", port=0),
        Net(name="bond0", info="bond", operstate="up", mbps=100_000, lower=("eth0",)),
    )
    found = findings(Machine(pci=(NIC,), net=nets))
    ids = by_id(found)
    assert ids["net:bond0"].health is Health.AVAILABLE
    assert ids["net:bond0"].attributes["nets"] == ["eth0"]
    assert ids["net:bond0"].attributes["gbps"] == 100.0
    port = ids["pci:0000:17:00.0/1"]
    assert port.health is ids["pci:0000:17:00.0"].health is Health.UNAVAILABLE
    assert "member of bond bond0" in port.reason
    assert found.verdicts[port.id].worst is None


def test_a_nic_is_as_well_as_the_best_of_its_ports_and_each_port_says_its_own() -> None:
    ports = (
        RdmaPort(number=1, state="DOWN", physical="Polling", layer="InfiniBand"),
        RdmaPort(number=2, state="ACTIVE", layer="InfiniBand", gbps=56.0, lid=931),
    )
    found = findings(Machine(pci=(NIC,), rdma=(Rdma(name="mlx4_0", pci=NIC.address, ports=ports),)))
    ids = by_id(found)
    assert ids["pci:0000:17:00.0"].health is Health.AVAILABLE
    assert ids["pci:0000:17:00.0"].capacity == {"port": 2}
    assert ids["pci:0000:17:00.0/1"].reason == "port is DOWN, Polling"
    assert found.verdicts["pci:0000:17:00.0/1"].worst
    assert ids["pci:0000:17:00.0/2"].attributes["lid"] == 931


def test_an_rdma_device_off_pci_is_shown_and_never_offered() -> None:
    port = RdmaPort(number=1, state="ACTIVE", layer="Ethernet")
    found = findings(Machine(rdma=(Rdma(name="rxe0", ports=(port,)),)))
    assert [(one.id, one.kind, one.health) for one in found.instances] == [
        ("rdma:rxe0", "rdma", Health.UNAVAILABLE),
        ("rdma:rxe0/1", "nic-port", Health.UNAVAILABLE),
    ]


def test_an_accelerator_works_if_its_driver_made_a_device_node() -> None:
    pci = Pci(address="0000:1b:00.0", klass=0x0B4000, vendor=0x1BCF, device=0x1C, driver="ve_drv")
    card = Card(subsystem="ve", name="ve0", pci=pci.address)
    (good,) = findings(Machine(pci=(pci,), cards=(card,))).instances
    assert (good.kind, good.health, good.attributes["devices"]) == ("accelerator", Health.AVAILABLE, ["ve0"])
    (silent,) = findings(Machine(pci=(pci,))).instances
    assert silent.health is Health.UNKNOWN


def test_an_admins_group_and_what_it_joins_are_attributes() -> None:
    gpu, nic = (msgspec.structs.replace(one, numa=None) for one in (GPU, NIC))
    group = AdminGroup(members=(GPU.address, NIC.address), numa=1, name="plx0")
    ids = by_id(findings(Machine(pci=(gpu, nic)), AdminTopology(groups=(group,))))
    assert ids["pci:0000:82:00.0"].attributes["group"] == "plx0"
    assert ids["pci:0000:82:00.0"].attributes["nearest_nics"] == ["pci:0000:17:00.0"]
    assert ids["pci:0000:82:00.0"].attributes["nearest_level"] == "bridge"
    assert ids["pci:0000:17:00.0"].attributes["numa"] == 1


def test_what_is_unknown_is_absent() -> None:
    pci = msgspec.structs.replace(GPU, numa=None, root=None)
    (one,) = findings(
        Machine(pci=(pci,), nvidia=library(NvidiaGpu(index=0, uuid="GPU-0", pci=pci.address)))
    ).instances
    assert not {"numa", "pci_root", "bridges", "memory_mib", "ecc", "nearest_nics", "rails"} & set(
        one.attributes
    )


def test_the_table_of_attributes_names_each_once() -> None:
    assert len(attributes.BY_NAME) == len(attributes.TABLE)
