"""The kernel's own PCIe switches, NUMA nodes, virtual functions, bonds and soft RoCE, in a virtual machine.

An NVMe controller with virtual functions and a NIC hang on one switch of node 0, another NIC on node 1. There
is no GPU to emulate: the controller's facts, with a GPU's class, stand for one.
"""

import msgspec
import pytest

from tests.vm import box
from xce.agent.probe import classify
from xce.agent.probe.facts import Machine, Net, Pci, Rdma
from xce.agent.probe.topology import topology

pytestmark = pytest.mark.vm

DEVICES = (
    "-object memory-backend-ram,id=m0,size=512M -object memory-backend-ram,id=m1,size=512M",
    "-numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1",
    "-numa dist,src=0,dst=1,val=21",
    "-device pxb-pcie,id=pxb0,bus_nr=64,bus=pcie.0,numa_node=0",
    "-device pxb-pcie,id=pxb1,bus_nr=128,bus=pcie.0,numa_node=1",
    "-device pcie-root-port,id=rp0,bus=pxb0,chassis=1,slot=1 -device x3130-upstream,id=up0,bus=rp0",
    "-device xio3130-downstream,id=dn0,bus=up0,chassis=2,slot=0",
    "-device xio3130-downstream,id=dn1,bus=up0,chassis=2,slot=1",
    "-device nvme-subsys,id=ss0 -device nvme,serial=s0,subsys=ss0,bus=dn0,sriov_max_vfs=4",
    "-global nvme.sriov_vq_flexible=8 -global nvme.sriov_vi_flexible=4",
    "-global nvme.max_ioqpairs=10 -global nvme.msix_qsize=9",
    "-device virtio-net-pci,bus=dn1",
    "-device pcie-root-port,id=rp1,bus=pxb1,chassis=3,slot=1 -device virtio-net-pci,bus=rp1",
)
SCRIPT = """
modprobe -a nvme virtio_net dummy bonding 8021q macvlan rdma_rxe ib_uverbs
for pci in /sys/bus/pci/devices/*; do [ ! -e $pci/sriov_totalvfs ] || echo 2 > $pci/sriov_numvfs; done
ip link add d0 type dummy; ip link set d0 up; ip addr add 192.168.77.1/24 dev d0
ip link add d1 type dummy
ip link add bond1 type bond mode active-backup; ip link set d1 master bond1
ip link add link d0 name d0.5 type vlan id 5
ip link add link d0 name mv0 type macvlan
rdma link add rxe0 type rxe netdev d0
read_all() { python3 -c '
import sys, time; from pathlib import Path
import msgspec
from xce.agent.probe import links, rdmalink, sysfs
start = time.monotonic(); machine = sysfs.read(); end = time.monotonic()
print(f"read in {(end - start) * 1000:.1f} ms: {len(machine.pci)} PCI functions, faults {machine.faults}")
Path(sys.argv[1]).write_bytes(msgspec.json.encode([machine, links.refine(machine)]))
print(rdmalink.interfaces())' $1; }
sleep 1
read_all up.json
ip link set d0 down
sleep 1
read_all down.json
"""


class Seen(msgspec.Struct, frozen=True):
    """One reading: by sysfs alone, and with netlink."""

    sysfs: Machine
    netlink: Machine

    def net(self, name: str) -> Net:
        return {net.name: net for net in self.netlink.net}[name]

    def of_class(self, klass: int) -> list[Pci]:
        return [pci for pci in self.netlink.pci if (pci.klass or 0) >> 8 == klass]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Seen, Seen]:
    """Both readings of one machine: as set up, and after an interface went down."""
    box.need()
    folder = tmp_path_factory.mktemp("vm")
    said = box.run(folder, SCRIPT, *DEVICES)
    assert said.count("{('rxe0', 1): 'd0'}") == 2, "RDMA netlink names the port's interface, up or down"
    up, down = (
        Seen(*msgspec.json.decode((folder / name).read_bytes(), type=tuple[Machine, Machine]))
        for name in ("up.json", "down.json")
    )
    return up, down


def controller(machine: Seen) -> Pci:
    [found] = [pci for pci in machine.of_class(0x0108) if not pci.physfn]
    return found


def on_node(machine: Seen, node: int) -> Pci:
    [found] = [pci for pci in machine.of_class(0x0200) if pci.numa == node]
    return found


def test_a_real_kernel_is_read_without_faults(seen: tuple[Seen, Seen]) -> None:
    for reading in seen:
        assert reading.sysfs.faults == reading.netlink.faults == ()


def test_numa_nodes_and_their_distance(seen: tuple[Seen, Seen]) -> None:
    nodes = seen[0].sysfs.numa
    assert [(node.node, node.cpus, node.distances) for node in nodes] == [
        (0, "0", (10, 21)),
        (1, "1", (21, 10)),
    ]
    assert all(node.memory for node in nodes)


def test_functions_on_one_switch_are_near_and_those_of_another_node_far(seen: tuple[Seen, Seen]) -> None:
    """Two devices below a real switch: root port, upstream port, a downstream port each."""
    stand_in, near, far = controller(seen[0]), on_node(seen[0], 0), on_node(seen[0], 1)
    assert len(stand_in.bridges) == len(near.bridges) == 3
    assert (stand_in.numa, len(far.bridges)) == (0, 1)
    gpu = msgspec.structs.replace(stand_in, klass=0x030200, vendor=classify.NVIDIA)
    machine = msgspec.structs.replace(
        seen[0].netlink,
        pci=tuple(gpu if pci.address == gpu.address else pci for pci in seen[0].netlink.pci),
    )
    found = topology(machine)
    pair = found.pair(gpu.address, near.address)
    assert (pair.level, pair.common, pair.word) == ("bridge", near.bridges[1], "PIX")
    assert found.pair(gpu.address, far.address).level == "system"
    assert found.nearest[gpu.address].nics == (near.address,)
    [group] = [group for group in found.switch_groups if gpu.address in group.members]
    assert (group.bridge, set(group.members)) == (near.bridges[1], {gpu.address, near.address})


def test_virtual_functions_and_their_physical_one_name_each_other(seen: tuple[Seen, Seen]) -> None:
    physical = controller(seen[0])
    virtual = [pci for pci in seen[0].sysfs.pci if pci.physfn]
    assert (physical.sriov_total, physical.sriov_now) == (4, 2)
    assert {pci.physfn for pci in virtual} == {physical.address}
    assert physical.virtfns == tuple(pci.address for pci in virtual)
    assert len(virtual) == 2


def test_kinds_of_interfaces_and_who_is_below_whom(seen: tuple[Seen, Seen]) -> None:
    up = seen[0]
    kinds = {name: up.net(name).info for name in ("d0", "bond1", "d0.5", "mv0")}
    assert kinds == {"d0": "dummy", "bond1": "bond", "d0.5": "vlan", "mv0": "macvlan"}
    assert (up.net("d1").master, up.net("bond1").lower) == ("bond1", ("d1",))
    assert up.net("d0.5").lower == up.net("mv0").lower == ("d0",)
    assert all(up.net(name).pci is None for name in kinds)


def test_interfaces_two_levels_below_their_function_are_on_it(seen: tuple[Seen, Seen]) -> None:
    nics = {nic.pci: nic for nic in classify.nics(seen[0].netlink)}
    for node in (0, 1):
        address = on_node(seen[0], node).address
        [name] = nics[address].nets
        assert (seen[0].net(name).bus, seen[0].net(name).pci) == ("virtio", address)


def rxe(machine: Seen) -> Rdma:
    [found] = [device for device in machine.netlink.rdma if device.name == "rxe0"]
    return found


def test_soft_roce_is_an_rdma_device_off_pci_with_its_interface(seen: tuple[Seen, Seen]) -> None:
    device = rxe(seen[0])
    [port] = device.ports
    assert (device.pci, device.uverbs, device.node_type) == (None, "uverbs0", "CA")
    assert (port.state, port.layer, port.nets) == ("ACTIVE", "Ethernet", ("d0",))
    assert port.gbps is not None
    assert device.nets == ("d0",)
    [nic] = [nic for nic in classify.nics(seen[0].netlink) if nic.rdma == ("rxe0",)]
    assert (nic.pci, nic.fabric) == ("", "roce")


def test_a_link_that_goes_down_is_down_in_interface_and_port(seen: tuple[Seen, Seen]) -> None:
    up, down = seen
    assert up.net("d0").carrier is True
    assert (down.net("d0").operstate, rxe(down).ports[0].state) == ("down", "DOWN")


def test_reading_is_the_same_twice_but_for_what_changed(seen: tuple[Seen, Seen]) -> None:
    up, down = (reading.sysfs for reading in seen)
    assert (up.pci, up.numa, up.cards) == (down.pci, down.numa, down.cards)
    assert [net.name for net in up.net if net not in down.net] == ["d0"]
