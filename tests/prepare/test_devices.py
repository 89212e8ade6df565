"""From an instance to device files: identity by UUID and PCI address, numbers as they are now."""

from pathlib import Path

import msgspec
import pytest

from tests.hardware import recorded
from tests.prepare import machine
from xce.agent.probe import instances
from xce.agent.probe.topology import topology
from xce.model.instance import Health
from xce.model.profile import Profile
from xce.prepare.devices import Finder
from xce.prepare.handler import StepFailed
from xce.prepare.plan import device_of
from xce.prepare.step import Device

UUID = "GPU-cccc0000-0000-4000-8000-000000000000"
GPU = Device(id=UUID, kind="gpu", vendor="nvidia", pci="0000:0f:00.0", minor=2)
INFORMATION = "proc/driver/nvidia/gpus/0000:0f:00.0/information"


def numbers(finder: Finder, device: Device) -> dict[str, str]:
    return {file.path: f"{file.major}:{file.minor}" for file in finder.find(device).files}


def nvidia(root: Path, letter: str = "A", **more: str) -> Finder:
    files = {"proc/devices": machine.proc_devices(letter), INFORMATION: machine.gpu_information(UUID, 2)}
    return machine.make(root, files | {path.replace("__", "/"): text for path, text in more.items()})


def test_c_gpu_03_the_device_number_is_the_drivers_and_not_an_index(tmp_path: Path) -> None:
    found = numbers(nvidia(tmp_path), GPU)
    assert found["/dev/nvidia2"] == "195:2"
    assert "/dev/nvidia0" not in found
    assert found["/dev/nvidiactl"] == "195:255"


@pytest.mark.parametrize(("letter", "uvm"), [("A", 510), ("B", 509)])
def test_c_dev_02_the_second_driver_has_the_number_of_today(tmp_path: Path, letter: str, uvm: int) -> None:
    found = numbers(nvidia(tmp_path, letter), GPU)
    assert found["/dev/nvidia2"] == "195:2"
    assert (found["/dev/nvidia-uvm"], found["/dev/nvidia-uvm-tools"]) == (f"{uvm}:0", f"{uvm}:1")
    assert {place.partition(":")[0] for place in found.values()} == {"195", str(uvm)}


@pytest.mark.root
def test_c_dev_02_where_the_device_file_is_there_its_own_number_wins(tmp_path: Path) -> None:
    finder = machine.make(
        tmp_path,
        {
            "proc/devices": machine.proc_devices("B"),
            INFORMATION: machine.gpu_information(UUID, 2),
            "dev/nvidia2": "c 241:7",
            "dev/nvidia-uvm": "c 508:0",
        },
    )
    found = numbers(finder, GPU)
    assert (found["/dev/nvidia2"], found["/dev/nvidia-uvm"]) == ("241:7", "508:0")


def test_another_gpu_at_the_same_address_is_refused(tmp_path: Path) -> None:
    finder = machine.make(
        tmp_path,
        {"proc/devices": machine.proc_devices("A"), INFORMATION: machine.gpu_information("GPU-other", 0)},
    )
    with pytest.raises(StepFailed, match=f"the GPU at 0000:0f:00.0 is GPU-other now, not {UUID}"):
        finder.find(GPU)


def test_without_the_driver_nothing_is_guessed(tmp_path: Path) -> None:
    finder = machine.make(tmp_path, {"proc/devices": "Character devices:\n  1 mem\n"})
    with pytest.raises(StepFailed, match="the NVIDIA driver is not loaded"):
        finder.find(GPU)


SLICE = Device(id="MIG-1", kind="mig", vendor="nvidia", pci="0000:0f:00.0", parent=UUID, gi=3, ci=0)
CAPS = "proc/driver/nvidia/capabilities/gpu2/mig/gi3"


def test_a_slice_gets_its_two_capabilities_and_its_gpu(tmp_path: Path) -> None:
    finder = machine.make(
        tmp_path,
        {
            "proc/devices": machine.proc_devices("A"),
            INFORMATION: machine.gpu_information(UUID, 2),
            f"{CAPS}/access": "DeviceFileMinor: 30\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
            f"{CAPS}/ci0/access": "DeviceFileMinor: 31\n",
        },
    )
    found = finder.find(SLICE)
    places = {file.path: (f"{file.major}:{file.minor}", file.exclusive) for file in found.files}
    assert places["/dev/nvidia-caps/nvidia-cap30"] == ("508:30", True)
    assert places["/dev/nvidia-caps/nvidia-cap31"] == ("508:31", True)
    assert places["/dev/nvidia2"] == ("195:2", False)


def test_a_slice_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="MIG slice MIG-1 is gone"):
        nvidia(tmp_path).find(SLICE)


def test_an_adapter_is_found_by_its_address_and_uverbs_by_its_own_link(tmp_path: Path) -> None:
    finder = machine.make(
        tmp_path,
        {
            "sys/bus/pci/devices/0000:81:00.0/infiniband/mlx5_0/node_type": "1: CA",
            "sys/bus/pci/devices/0000:81:00.0/net/ib0/dev_port": "0",
            "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
            "sys/class/infiniband_verbs/uverbs3/ibdev": "mlx5_0\n",
            "sys/class/infiniband_verbs/uverbs3/dev": "231:195\n",
            "sys/class/infiniband_verbs/uverbs0/ibdev": "mlx5_10\n",
            "sys/class/infiniband_verbs/uverbs0/dev": "231:192\n",
            "sys/class/misc/rdma_cm/dev": "10:58\n",
        },
    )
    found = finder.find(Device(id="pci:0000:81:00.0", kind="nic", pci="0000:81:00.0"))
    assert (found.rdma, found.nets) == (["mlx5_0:1"], ["ib0"])
    assert {file.path: (file.major, file.minor, file.exclusive) for file in found.files} == {
        "/dev/infiniband/uverbs3": (231, 195, True),
        "/dev/infiniband/rdma_cm": (10, 58, False),
    }


def test_an_interface_of_a_virtual_machine_is_that_of_its_virtio_device(tmp_path: Path) -> None:
    finder = machine.make(tmp_path, {"sys/bus/pci/devices/0000:00:03.0/virtio2/net/eth0/dev_port": "0"})
    found = finder.find(Device(id="pci:0000:00:03.0", kind="nic", pci="0000:00:03.0"))
    assert (found.rdma, found.nets) == ([], ["eth0"])


def test_a_port_of_an_adapter_is_given_without_the_other(tmp_path: Path) -> None:
    """Its kind is what the probe calls it."""
    place = "sys/bus/pci/devices/0000:81:00.0"
    finder = machine.make(
        tmp_path,
        {
            f"{place}/infiniband/mlx5_0/node_type": "1: CA",
            f"{place}/net/ib0/dev_port": "0",
            f"{place}/net/ib1/dev_port": "1",
            "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
            "sys/class/infiniband/mlx5_0/ports/2/state": "4: ACTIVE",
        },
    )
    found = finder.find(Device(id="pci:0000:81:00.0/2", kind="nic-port", pci="0000:81:00.0", port=2))
    assert (found.rdma, found.nets) == (["mlx5_0:2"], ["ib1"])


def test_amd_cards_share_one_file_and_have_one_each(tmp_path: Path) -> None:
    finder = machine.make(
        tmp_path,
        {
            "sys/bus/pci/devices/0000:c1:00.0/drm/renderD129/dev": "226:129\n",
            "sys/bus/pci/devices/0000:c1:00.0/drm/card1/dev": "226:1\n",
            "sys/class/kfd/kfd/dev": "234:0\n",
        },
    )
    found = finder.find(Device(id="GPU-1122334455667788", kind="gpu", vendor="amd", pci="0000:c1:00.0"))
    assert {file.path: (file.major, file.minor, file.exclusive) for file in found.files} == {
        "/dev/dri/card1": (226, 1, True),
        "/dev/dri/renderD129": (226, 129, True),
        "/dev/kfd": (234, 0, False),
    }
    with pytest.raises(StepFailed, match="cannot find a render node"):
        finder.find(Device(id="GPU-2", kind="gpu", vendor="amd", pci="0000:c2:00.0"))


def test_a_partition_is_found_by_the_id_that_the_driver_gives_it(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    finder = machine.make(
        tmp_path,
        {
            f"{nodes}/0/gpu_id": "0",
            f"{nodes}/1/gpu_id": "51000\n",
            f"{nodes}/1/properties": "simd_count 304\ndrm_render_minor 128\n",
            f"{nodes}/2/gpu_id": "4660\n",
            f"{nodes}/2/properties": "simd_count 304\ndrm_render_minor 137\n",
            "sys/class/kfd/kfd/dev": "234:0\n",
        },
    )
    part = Device(id="GPU-1122334455667788/1234", kind="gpu-partition", vendor="amd", pci="0000:c1:00.0")
    assert numbers(finder, part) == {"/dev/dri/renderD137": "226:137", "/dev/kfd": "234:0"}
    with pytest.raises(StepFailed, match="cannot find a render node of GPU-1122334455667788/part0"):
        finder.find(msgspec.structs.replace(part, id="GPU-1122334455667788/part0"))


def test_accelerators_of_others_have_what_their_drivers_have_made(tmp_path: Path) -> None:
    place = "sys/bus/pci/devices/0000:33:00.0"
    finder = machine.make(
        tmp_path,
        {
            f"{place}/accel/accel3/dev": "261:3\n",
            f"{place}/accel/accel3/uevent": "MAJOR=261\nMINOR=3\nDEVNAME=accel/accel3\n",
            f"{place}/ve/ve1/dev": "240:1\n",
            f"{place}/hwmon/hwmon2/dev": "9:9\n",
        },
    )
    found = numbers(finder, Device(id="pci:0000:33:00.0", kind="accelerator", pci="0000:33:00.0"))
    assert found == {"/dev/accel/accel3": "261:3", "/dev/ve1": "240:1"}
    with pytest.raises(StepFailed, match="no driver has made one at"):
        finder.find(Device(id="pci:0000:44:00.0", kind="accelerator", pci="0000:44:00.0"))


def test_a_bond_is_its_interface(tmp_path: Path) -> None:
    finder = machine.make(tmp_path, {"sys/class/net/bond0/bonding/mode": "802.3ad 4\n"})
    assert finder.find(Device(id="net:bond0", kind="bond")).nets == ["bond0"]
    with pytest.raises(StepFailed, match="there is no bond1"):
        finder.find(Device(id="net:bond1", kind="bond"))


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("nec-ve8", {"accelerator", "nic", "nic-port"}),
        ("p9-lassen", {"nic", "nic-port"}),
        ("opa-quartz", {"nic", "nic-port"}),
    ],
)
def test_a_claim_can_have_all_that_discovery_offers_of_a_recorded_machine(
    tmp_path: Path, name: str, kinds: set[str]
) -> None:
    machine_there = recorded.machine(name, tmp_path)
    every = {one.id: one for one in instances.found(machine_there, topology(machine_there)).instances}
    offered = [one for one in every.values() if one.health is Health.AVAILABLE]
    assert {one.kind for one in offered} == kinds
    finder = Finder(str(tmp_path / "proc"), str(tmp_path / "sys"), str(tmp_path / "none"))
    for one in offered:
        found = finder.find(device_of(one, every, Profile()))
        assert found.files or found.nets, one.id


def test_a_kind_that_nobody_knows_needs_files_that_its_reporter_names(tmp_path: Path) -> None:
    finder = machine.make(tmp_path, {"proc/devices": ""})
    with pytest.raises(StepFailed, match="nothing is known about kind 'fpga'"):
        finder.find(Device(id="f1", kind="fpga"))
    found = Finder().find(Device(id="f1", kind="fpga", files=["/dev/null"]))
    assert [(file.path, file.major, file.minor) for file in found.files] == [("/dev/null", 1, 3)]
    with pytest.raises(StepFailed, match="is no device"):
        finder.find(Device(id="f1", kind="fpga", files=[str(tmp_path / "proc/devices")]))
    assert finder.find(Device(id="seat-1", kind="seat", fileless=True)).files == []


@pytest.mark.root
def test_extras_are_those_that_are_there(tmp_path: Path) -> None:
    finder = machine.make(
        tmp_path,
        {
            "dev/gdrdrv": "c 236:0",
            "dev/nvidia-fs0": "c 235:0",
            "dev/nvidia-fs1": "c 235:1",
            "dev/nvidia-caps-imex-channels/channel0": "c 234:0",
        },
    )
    (tmp_path / "dev/nvidia-fs9").symlink_to("../../etc/passwd")
    found = finder.extras(
        ["/dev/gdrdrv", "/dev/nvidia-fs*", "/dev/none", "/dev/nvidia-caps-imex-channels/channel0"]
    )
    assert [(file.path, file.major, file.exclusive) for file in found] == [
        ("/dev/gdrdrv", 236, False),
        ("/dev/nvidia-caps-imex-channels/channel0", 234, False),
        ("/dev/nvidia-fs0", 235, False),
        ("/dev/nvidia-fs1", 235, False),
    ]
