"""A machine in a file or a folder: read back as written, refused with its place, within bounds."""

import io
import tarfile
from pathlib import Path

import pytest

from tests.hardware import recorded
from xce.agent.probe import machinefile
from xce.agent.probe.facts import Machine, Mig, MigSlice, Net, Nvidia, NvidiaGpu, Pci, Rdma
from xce.model.refusal import ConfigRefused


def refused(path: Path) -> str:
    with pytest.raises(ConfigRefused) as caught:
        machinefile.load(path)
    return str(caught.value)


@pytest.mark.parametrize("name", ["mi300x-8nic", "nv-gb200x4", "kfd-mi210", "mic-mlx4"])
def test_a_machine_written_to_a_file_is_read_back_as_it_was(name: str, tmp_path: Path) -> None:
    machine = machinefile.load(recorded.MACHINES / name)
    assert machine != Machine()
    (tmp_path / "m.json").write_bytes(machinefile.encode(machine))
    assert machinefile.load(tmp_path / "m.json") == machine


def test_an_unpacked_folder_reads_like_the_packed_one(tmp_path: Path) -> None:
    recorded.unpack("mi300x-8nic", tmp_path)
    assert machinefile.load(tmp_path) == machinefile.load(recorded.MACHINES / "mi300x-8nic")


def test_a_machine_may_be_written_by_hand(tmp_path: Path) -> None:
    text = """\
pci:
  - {address: "0000:82:00.0", klass: 197120, vendor: 4318, numa: 1, bridges: ["0000:80:01.0"]}
nvidia:
  driver: "550.54.15"
  gpus:
    - index: 0
      uuid: GPU-1
      pci: "0000:82:00.0"
      mig: {current: true, slices: [{uuid: MIG-1, placement: [4, 4]}]}
"""
    (tmp_path / "m.yaml").write_text(text)
    machine = machinefile.load(tmp_path / "m.yaml")
    mig = Mig(current=True, slices=(MigSlice(uuid="MIG-1", placement=(4, 4)),))
    assert machine.nvidia == Nvidia(
        driver="550.54.15", gpus=(NvidiaGpu(index=0, uuid="GPU-1", pci="0000:82:00.0", mig=mig),)
    )
    assert machine.pci[0].bridges == ("0000:80:01.0",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pci:\n  - address: 5\n", "m:2: pci[0].address: expected text, got the number 5; put it in quotes"),
        ('{"pci": [\n{"adress": "x"}]}', "m:2: pci[0].adress: unknown key; did you mean 'address'?"),
        ('{"numa": [{"node": true}]}', "m:1: numa[0].node: expected a whole number, got true"),
        ("{", "m:1: "),
        ("[]", "expected keys and values, got a list"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "m").write_text(text)
    assert told in refused(tmp_path / "m")


def test_a_folder_or_file_that_is_no_machine_says_so(tmp_path: Path) -> None:
    assert "holds no machine: neither sys/ nor tree.tar.xz nor nvml.json" in refused(tmp_path)
    assert "cannot be read: No such file or directory" in refused(tmp_path / "gone")
    (tmp_path / "nvml.json").write_text('{"devices": [{"index": "x"}]}')
    assert "is not what a recorded library answers" in refused(tmp_path)
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text" in refused(tmp_path / "b")


def packed(folder: Path, *members: tuple[str, bytes, str]) -> Path:
    """A tree.tar.xz of names with a type and, for links, where they lead."""
    with tarfile.open(folder / "tree.tar.xz", "w:xz") as archive:
        for name, kind, leads in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, leads
            archive.addfile(member, io.BytesIO(b""))
    return folder


@pytest.mark.parametrize(
    "member",
    [
        ("../evil", tarfile.REGTYPE, ""),
        ("/evil", tarfile.REGTYPE, ""),
        ("sys/x", tarfile.LNKTYPE, "/etc/passwd"),
        ("sys/x", tarfile.CHRTYPE, ""),
        ("sys/../../evil", tarfile.SYMTYPE, "x"),
    ],
)
def test_a_packed_tree_cannot_leave_its_folder(member: tuple[str, bytes, str], tmp_path: Path) -> None:
    assert "is no file, folder or link within the tree" in refused(packed(tmp_path, member))


def test_nothing_of_this_machine_is_read_through_a_link_that_leads_out(tmp_path: Path) -> None:
    """A recorded `driver` link that leads above the tree still names the driver, and nothing else."""
    device = "sys/bus/pci/devices/0000:01:00.0"
    out = "../../../../../../../../../../../../etc/passwd"
    links = (
        (f"{device}/driver", tarfile.SYMTYPE, "../../../../../../../../bus/pci/drivers/ice"),
        (f"{device}/numa_node", tarfile.SYMTYPE, out),
        (f"{device}/local_cpulist", tarfile.SYMTYPE, "/etc/passwd"),
    )
    (pci,) = machinefile.load(packed(tmp_path, *links)).pci
    assert (pci.driver, pci.numa, pci.local_cpus) == ("ice", None, None)


def test_an_anonymous_file_holds_no_serial_and_no_hardware_address() -> None:
    machine = Machine(
        pci=(Pci(address="0000:82:00.0"),),
        net=(Net(name="eth0", mac="aa:bb:cc:dd:ee:ff"),),
        rdma=(Rdma(name="mlx5_0", node_guid="0002:c903:00f9:bfa0", sys_image_guid="0002:c903:00f9:bfa3"),),
        nvidia=Nvidia(gpus=(NvidiaGpu(index=0, uuid="GPU-1", serial="1650", platform={"host_id": "9"}),)),
    )
    text = machinefile.encode(machine, anonymous=True).decode()
    assert all(secret not in text for secret in ("aa:bb", "c903", "1650", "host_id"))
    assert all(kept in text for kept in ("0000:82:00.0", "eth0", "mlx5_0", "GPU-1"))


def test_an_admins_file_lies_beside_a_recorded_machine_or_is_named() -> None:
    folder = recorded.MACHINES / "azure-ndv4"
    found = machinefile.load_admin(folder)
    assert found is not None
    assert found == machinefile.load_admin(folder / "admin-topology.json")
    assert len(found.groups) == 4
    assert machinefile.load_admin(recorded.MACHINES / "dgx2") is None
