"""C-GPU-01 to C-GPU-07: what went wrong for people with GPUs and NICs, tried with the real programs.

The real agent runs its real probe with the real pynvml; only the vendor's library is a stand-in, and /sys a
folder. Each is looked at where it counts: in what the broker holds. Times of the cases are shortened.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.system.hardware import CASES, Rig
from tests.system.harness import Site

pytestmark = [pytest.mark.system]

UUID = "GPU-{0}000{1}-0000-4000-8000-00000000000{1}"


def uuid(letter: str, number: int) -> str:
    return UUID.format(letter * 4, number)


def test_c_gpu_01_mig_on_without_slices_offers_the_other_gpu_alone(site: Site, tmp_path: Path) -> None:
    rig = Rig(site, tmp_path, "mig-empty").start()
    site.until(lambda: len(rig.health()) == 2)
    assert rig.health() == {uuid("a", 0): "unavailable", uuid("a", 1): "available"}
    assert "MIG" in rig.all()[uuid("a", 0)].reason
    assert rig.health("mig") == {}


def test_c_gpu_02_a_lost_gpu_costs_no_other_and_returns_as_itself(site: Site, tmp_path: Path) -> None:
    rig = Rig(site, tmp_path, "one-lost").start()
    everything = {uuid("b", number): "available" for number in range(4)}
    site.until(lambda: rig.health() == everything)
    before = rig.all()[uuid("b", 3)]
    rig.step(1)
    site.until(lambda: rig.health() == everything | {uuid("b", 3): "lost"})
    lost = rig.all()[uuid("b", 3)]
    assert lost.attributes["pci"] == "0000:c1:00.0"
    assert lost.since > ""
    assert "lost" in lost.evidence
    rig.step(2)
    site.until(lambda: rig.health() == everything)
    assert rig.all()[uuid("b", 3)].attributes == before.attributes


def test_c_gpu_03_the_device_number_is_the_minor_and_not_the_index(site: Site, tmp_path: Path) -> None:
    rig = Rig(site, tmp_path, "minor-swap").start()
    site.until(lambda: len(rig.health()) == 4)
    minors = {id_: one.attributes["minor"] for id_, one in rig.all().items()}
    assert minors == {uuid("c", number): minor for number, minor in enumerate((2, 3, 0, 1))}


def test_c_gpu_04_two_spellings_of_one_address_are_one_gpu(site: Site, tmp_path: Path) -> None:
    rig = Rig(site, tmp_path, "busid").start()
    site.until(lambda: len(rig.health()) == 1)
    (gpu,) = rig.all().values()
    assert (gpu.id, gpu.attributes["pci"], gpu.attributes["numa"]) == (uuid("d", 0), "0000:82:00.0", 1)


def test_c_gpu_05_an_unknown_numa_node_is_no_number(site: Site, tmp_path: Path) -> None:
    rig = Rig(site, tmp_path, "numa-unknown").start()
    site.until(lambda: len(rig.health()) == 2)
    found = rig.all()
    assert "numa" not in found[uuid("e", 0)].attributes
    assert found[uuid("e", 1)].attributes["numa"] == 0
    assert set(rig.health().values()) == {"available"}


def test_c_gpu_06_a_driver_that_does_not_match_makes_gpus_unknown_and_not_gone(
    site: Site, tmp_path: Path
) -> None:
    rig = Rig(site, tmp_path, "mismatch").start()
    site.until(lambda: rig.health() == {uuid("f", 0): "available", uuid("f", 1): "available"})
    agent = rig.node.pid
    rig.step(1)
    site.until(lambda: rig.health() == {uuid("f", 0): "unknown", uuid("f", 1): "unknown"})
    assert "mismatch" in rig.all()[uuid("f", 0)].reason
    site.until(lambda: rig.probe()["runs"] >= 4)
    assert rig.probe()["failures"] == 0
    assert any("mismatch" in line for line in rig.node.status()["trouble"])
    assert "not complete: nvidia: driver/library mismatch" in rig.node.command("inventory").stdout
    rig.step(2)
    site.until(lambda: rig.health() == {uuid("f", 0): "available", uuid("f", 1): "available"})
    assert rig.node.pid == agent
    assert rig.node.running()


def test_c_gpu_07_down_ports_and_virtual_functions_are_listed_and_not_offered(
    site: Site, tmp_path: Path
) -> None:
    rig = Rig(site, tmp_path)
    subprocess.run([CASES / "nic" / "make-nic-sysfs.sh", tmp_path / "root" / "sys"], check=True)
    rig.start()
    site.until(lambda: len(rig.health("nic")) == 4)
    assert rig.health("nic") == {
        "pci:0000:0c:00.0": "available",
        "pci:0000:0c:00.1": "unavailable",
        "pci:0000:12:00.0": "unavailable",
        "pci:0000:9a:00.0": "available",
    }
    attributes: dict[str, Any] = rig.all("nic")["pci:0000:0c:00.0"].attributes
    assert (attributes["fabric_kind"], attributes["numa"]) == ("infiniband", 0)
    assert rig.all("nic")["pci:0000:9a:00.0"].attributes["fabric_kind"] == "roce"
    site.until(lambda: rig.probe()["state"] == "waiting")
    assert rig.probe()["pid"] is None
