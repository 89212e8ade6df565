"""Reading /sys and /proc: odd trees, and no tree at all. What is absent is unknown, and nothing raises."""

import os
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.hardware import recorded
from xce.agent.probe import facts, sysfs
from xce.agent.probe.facts import Machine
from xce.agent.probe.sysfs import cpulist
from xce.agent.probe.sysfs.tree import pci_path

DEVICES = "sys/devices/pci0000:00"


def tree(folder: Path, files: dict[str, str | None]) -> Path:
    """Files with their content; `-> TARGET` is a link, None a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir(exist_ok=True)
        elif content.startswith("-> "):
            path.symlink_to(content[3:])
        else:
            path.write_text(content)
    return folder


def function(address: str, path: str, **files: str) -> dict[str, str | None]:
    """One PCI function below `DEVICES`."""
    at = f"{DEVICES}/{path}{address}"
    return {
        f"sys/bus/pci/devices/{address}": f"-> ../../../devices/pci0000:00/{path}{address}",
        at: None,
        **{f"{at}/{name}": content for name, content in files.items()},
    }


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:82:00.0", "0000:82:00.0"),
        ("0000:8F:00.0", "0000:8f:00.0"),
        ("00010001:00:00.0", "10001:00:00.0"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("82:00.0", "0000:82:00.0"),
        ("0000:00:1f.7\n", "0000:00:1f.7"),
        ("0000:00:20.0", None),
        ("0000:00:00.8", None),
        ("", None),
        ("virtio0", None),
    ],
)
def test_every_spelling_of_a_pci_address_is_one(text: str, address: str | None) -> None:
    assert facts.address(text) == address


def test_nothing_at_all_is_an_empty_machine(tmp_path: Path) -> None:
    assert sysfs.read(tmp_path) == sysfs.read(tmp_path / "not there") == Machine()


def test_this_machine_can_be_read() -> None:
    machine = sysfs.read()
    assert "lo" in {net.name for net in machine.net}
    assert machine.numa == () or any(node.cpus for node in machine.numa)


def test_a_function_is_read_from_its_uevent_and_its_files(tmp_path: Path) -> None:
    uevent = "DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID=15B3:1021\nPCI_SUBSYS_ID=15B3:0041\n"
    files = function("0000:02:00.0", "0000:00:01.0/0000:01:00.0/", uevent=uevent, numa_node="1\n")
    files |= function(
        "0000:02:00.1", "0000:00:01.0/0000:01:00.0/", **{"class": "0x020000", "vendor": "0x15b3"}
    )
    first, second = sysfs.read(tree(tmp_path, files)).pci
    assert first == facts.Pci(
        address="0000:02:00.0",
        klass=0x020700,
        vendor=0x15B3,
        device=0x1021,
        subsystem_vendor=0x15B3,
        subsystem_device=0x41,
        driver="mlx5_core",
        numa=1,
        bridges=("0000:00:01.0", "0000:01:00.0"),
        root="pci0000:00",
    )
    assert (second.klass, second.vendor, second.device, second.driver) == (0x020000, 0x15B3, None, "")
    assert second.numa_silent


@pytest.mark.parametrize(
    ("link", "functions", "root"),
    [
        ("devices/pci0000:00/0000:00:01.0/0000:01:00.0", ["0000:00:01.0", "0000:01:00.0"], "pci0000:00"),
        ("devices/LNXSYSTM:00/VMBUS:01/ab-cd/pci1a2b:00/1a2b:00:02.0", ["1a2b:00:02.0"], "pci1a2b:00"),
        ("devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0", ["10000:e0:06.0"], "pci10000:e0"),
        ("devices/virtual/net/lo", [], None),
        ("", [], None),
    ],
)
def test_the_way_to_a_function_starts_at_its_nearest_host_bridge(
    link: str, functions: list[str], root: str | None
) -> None:
    assert pci_path(link) == (functions, root)


def test_physical_and_virtual_functions_name_each_other(tmp_path: Path) -> None:
    nic = {"class": "0x020000"}
    files = function("0000:05:00.0", "", **nic, sriov_totalvfs="8", sriov_numvfs="2")
    files |= function("0000:05:00.1", "", **nic) | function("0000:05:00.2", "", **nic)
    physical = f"{DEVICES}/0000:05:00.0"
    for number, address in enumerate(("0000:05:00.1", "0000:05:00.2")):
        files[f"{physical}/virtfn{number}"] = f"-> ../{address}"
        files[f"{DEVICES}/{address}/physfn"] = "-> ../0000:05:00.0"
    pf, vf, _ = sysfs.read(tree(tmp_path, files)).pci
    assert (pf.sriov_total, pf.sriov_now, pf.virtfns) == (8, 2, ("0000:05:00.1", "0000:05:00.2"))
    assert (vf.physfn, vf.sriov_total) == ("0000:05:00.0", None)


def test_an_interface_two_levels_below_its_function_is_on_it(tmp_path: Path) -> None:
    net = f"{DEVICES}/0000:05:00.0/virtio2/net/eth7"
    files = function("0000:05:00.0", "", **{"class": "0x020000"})
    files |= {
        f"{net}/operstate": "up\n",
        f"{net}/carrier": "1\n",
        f"{net}/speed": "-1\n",
        f"{net}/dev_port": "0\n",
        f"{net}/device": "-> ../../../virtio2",
        f"{DEVICES}/0000:05:00.0/virtio2/subsystem": "-> ../../../../bus/virtio",
        "sys/class/net/eth7": "-> ../../devices/pci0000:00/0000:05:00.0/virtio2/net/eth7",
        "sys/class/net/lo": "-> ../../devices/virtual/net/lo",
        "sys/class/net/bonding_masters": "bond0\n",
    }
    lo, eth7 = sysfs.read(tree(tmp_path, files)).net
    assert lo == facts.Net(name="lo"), "a link that ends in nothing is still an interface"
    assert (eth7.pci, eth7.bus, eth7.carrier, eth7.mbps, eth7.port) == (
        "0000:05:00.0",
        "virtio",
        True,
        None,
        0,
    )


def test_an_rdma_device_finds_its_interfaces_port_by_port(tmp_path: Path) -> None:
    """ConnectX-3: two ports on one function, each with an interface; the port with a GID names its own."""
    at = f"{DEVICES}/0000:05:00.0"
    files = function("0000:05:00.0", "", **{"class": "0x028000"})
    for number in (0, 1):
        files[f"sys/class/net/e{number}"] = f"-> ../../devices/pci0000:00/0000:05:00.0/net/e{number}"
        files[f"{at}/net/e{number}/dev_port"] = f"{number}\n"
        files[f"{at}/infiniband/mlx4_0/ports/{number + 1}/link_layer"] = "Ethernet\n"
    files |= {
        f"{at}/infiniband/mlx4_0/ports/2/gid_attrs/ndevs/0": "bond0\n",
        f"{at}/infiniband/mlx4_0/ports/2/rate": "2.5 Gb/sec (1X SDR)\n",
        f"{at}/infiniband/mlx4_0/node_type": "1: CA\n",
        "sys/class/infiniband/mlx4_0": "-> ../../devices/pci0000:00/0000:05:00.0/infiniband/mlx4_0",
        "sys/class/infiniband_verbs/uverbs3/ibdev": "mlx4_0\n",
        "sys/class/infiniband_mad/umad5/ibdev": "mlx4_0\n",
    }
    [device] = sysfs.read(tree(tmp_path, files)).rdma
    assert (device.pci, device.nets, device.node_type) == ("0000:05:00.0", ("e0", "e1"), "CA")
    assert (device.uverbs, device.umads) == ("uverbs3", ("umad5",))
    assert [(port.number, port.nets, port.gbps) for port in device.ports] == [
        (1, ("e0",), None),
        (2, ("bond0",), 2.5),
    ]


def break_class(root: Path) -> None:
    (root / DEVICES / "0000:05:00.0/class").write_text("rubbish")


def break_numa(root: Path) -> None:
    (root / DEVICES / "0000:05:00.0/numa_node").write_text("zero")


def break_name(root: Path) -> None:
    (root / "sys/bus/pci/devices/slot one").mkdir()


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (break_class, "sys/bus/pci/devices/0000:05:00.0/class: not a number: 'rubbish'"),
        (break_numa, "sys/bus/pci/devices/0000:05:00.0/numa_node: not a number: 'zero'"),
        (break_name, "sys/bus/pci/devices/slot one: not a PCI address"),
    ],
)
def test_what_cannot_be_understood_is_a_fault_with_its_path(
    damage: Callable[[Path], None], fault: str, tmp_path: Path
) -> None:
    files = function("0000:05:00.0", "", **{"class": "0x020000", "numa_node": "0", "vendor": "0x15b3"})
    damage(tree(tmp_path, files))
    machine = sysfs.read(tmp_path)
    assert machine.faults == (fault,)
    assert machine.pci[0].vendor == 0x15B3, "the rest is read all the same"


def test_faults_are_bounded(tmp_path: Path) -> None:
    tree(tmp_path, {f"sys/bus/pci/devices/x{number}": None for number in range(100)})
    faults = sysfs.read(tmp_path).faults
    assert len(faults) == 65
    assert faults[-1] == "and 36 more"


def test_empty_files_say_nothing(tmp_path: Path) -> None:
    empty = dict.fromkeys(("class", "vendor", "device", "numa_node", "local_cpulist", "uevent"), "")
    [pci] = sysfs.read(tree(tmp_path, function("0000:05:00.0", "", **empty))).pci
    assert (pci.klass, pci.vendor, pci.numa) == (None, None, None)


def test_a_pipe_in_place_of_a_file_does_not_hold_the_reader_up(tmp_path: Path) -> None:
    tree(tmp_path, function("0000:05:00.0", ""))
    os.mkfifo(tmp_path / DEVICES / "0000:05:00.0/class")
    (tmp_path / DEVICES / "0000:05:00.0/vendor").mkdir()
    [pci] = sysfs.read(tmp_path).pci
    assert (pci.klass, pci.vendor) == (None, None)


def test_a_gpu_whose_id_may_not_be_read_is_known_by_its_other_marks(tmp_path: Path) -> None:
    node = "sys/class/kfd/kfd/topology/nodes/1"
    properties = "simd_count 152\nlocation_id 1281\ndomain 0\ndrm_render_minor 129\nunique_id 77\nhive_id 0\n"
    files: dict[str, str | None] = {
        f"{node}/properties": properties,
        f"{node}/gpu_id": "",
        f"{node}/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 4096\n",
    }
    [found] = sysfs.read(tree(tmp_path, files)).kfd
    assert (found.gpu_id, found.pci, found.location, found.render) == (None, "0000:05:00.0", 1281, 129)
    assert (found.unique_id, found.hive, found.memory) == ("77", None, 4096)


@hypothesis.given(st.frozensets(st.integers(0, 300), max_size=40))
def test_a_mask_of_cpus_is_the_list_of_them(cpus: frozenset[int]) -> None:
    mask = sum(1 << cpu for cpu in cpus)
    assert cpulist.cpus(cpulist.ranges(mask)) == cpus


@pytest.mark.parametrize("name", ["nec-ve8", "mic-mlx4", "kfd-mi210", "p9-lassen"])
def test_a_machine_with_any_file_damaged_is_still_read(name: str, tmp_path: Path) -> None:
    """Every 7th file of a real tree turned into a folder, emptied, or filled with rubbish."""
    recorded.unpack(name, tmp_path)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink())
    for number, path in enumerate(files[::7]):
        path.unlink()
        if number % 3 == 0:
            path.mkdir()
        else:
            path.write_bytes(b"" if number % 3 == 1 else b"\xff\x00:rubbish\n= =\n")
    machine = sysfs.read(tmp_path)
    assert machine.pci or machine.kfd
    assert all(": " in fault for fault in machine.faults)


@pytest.mark.root
def test_a_refusal_is_a_fault_but_for_what_only_users_of_the_device_may_read(tmp_path: Path) -> None:
    """As nobody, in a tree of files that only root may read."""
    node = "sys/class/kfd/kfd/topology/nodes/1"
    files: dict[str, str | None] = {
        f"{node}/gpu_id": "7",
        f"{node}/properties": "simd_count 4\nlocation_id 1280\n",
        "sys/devices/system/node/node0/cpulist": "0",
    }
    tree(tmp_path, files)
    for name in (f"{node}/gpu_id", "sys/devices/system/node/node0/cpulist"):
        (tmp_path / name).chmod(0o600)
    top = os.open(tmp_path, os.O_RDONLY)
    os.fchmod(top, 0o755)
    os.setresuid(65534, 65534, 0)
    try:
        machine = sysfs.read(Path(f"/proc/self/fd/{top}"))
    finally:
        os.setresuid(0, 0, 0)
        os.close(top)
    assert machine.faults == ("sys/devices/system/node/node0/cpulist: Permission denied",)
    assert (machine.kfd[0].gpu_id, machine.kfd[0].pci) == (None, "0000:05:00.0")


def test_a_name_that_cannot_be_shown_is_a_fault_and_hides_nothing_else(tmp_path: Path) -> None:
    """The kernel lets an interface be called anything but blanks, slashes and colons."""
    nets = os.fsencode(tmp_path / "sys/class/net")
    for name in (b"eth0", b"\xff\xfe", b"\x1b[2J", b"a\nb"):
        os.makedirs(nets + b"/" + name)
    Path(os.fsdecode(nets), "eth0", "mtu").write_text("99999999999999999999")
    Path(os.fsdecode(nets), "eth0", "address").write_text("02:00:\x1b[31m")
    Path(os.fsdecode(nets), "eth0", "master").symlink_to(os.fsdecode(b"../\xff"))
    machine = sysfs.read(tmp_path)
    (net,) = machine.net
    assert (net.name, net.mtu, net.mac, net.master) == ("eth0", None, r"02:00:\x1b[31m", r"\udcff")
    assert len(machine.faults) == 4
    assert all(fault.isprintable() for fault in machine.faults)
