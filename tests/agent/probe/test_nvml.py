"""NVML as the probe reads it: the real pynvml on a stand-in library with the real layouts."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from tests.agent.probe.conftest import Make
from tests.agent.probe.gpus import case, four
from tests.fakes.nvml import stand_in
from tests.hardware.recorded import MACHINES, expected
from xce.agent.probe import facts, mig, recorded, verdict
from xce.agent.probe.nvml import Library
from xce.model.instance import Health

NVIDIA = sorted(folder.parent.name for folder in MACHINES.glob("*/nvml.json"))


@pytest.mark.parametrize("name", NVIDIA)
def test_a_recorded_machine_is_read_as_it_was_recorded(name: str, lab: Make) -> None:
    """Through C structures, versions and two-call patterns, against the plain reading of the same record."""
    raw = (MACHINES / name / "nvml.json").read_bytes()
    read = lab(stand_in.recorded(json.loads(raw))).library.read()
    wanted = recorded.nvidia(raw)
    assert (read.error, read.driver, read.cuda, read.count) == ("", wanted.driver, wanted.cuda, wanted.count)
    for gpu, want in zip(read.gpus, wanted.gpus, strict=True):
        assert gpu.unanswered == ()
        assert plain(gpu) == plain(want)


def plain(gpu: facts.NvidiaGpu) -> dict[str, Any]:
    """What a record holds: no health masks, no engines that are not there, no pending mode with MIG on."""
    found: dict[str, Any] = msgspec.to_builtins(gpu)
    for name in ("health", "summary"):
        found.get("fabric", {}).pop(name, None)
    if found.get("mig", {}).get("current"):
        found["mig"].pop("pending", None)
    for each in found.get("mig", {}).get("slices", ()):
        for name in ("name", "gpu_slices", "compute_slices"):
            each.pop(name, None)
        each["engines"] = {engine: count for engine, count in each["engines"].items() if count}
    return found


@pytest.mark.parametrize("name", NVIDIA)
def test_a_recorded_machine_offers_what_it_should(name: str, lab: Make) -> None:
    want = expected(name)
    raw = json.loads((MACHINES / name / "nvml.json").read_bytes())
    read = lab(stand_in.recorded(raw)).library.read()
    modes = {True: "Enabled", False: "Disabled", None: None}
    assert [
        [gpu.index, gpu.pci, gpu.minor, gpu.uuid, gpu.name, modes[gpu.mig.current]] for gpu in read.gpus
    ] == want["gpus"]
    offered: list[Mapping[str, object]] = []
    for gpu in read.gpus:
        assert verdict.judge(gpu, xids=read.xids).health == Health.AVAILABLE
        offer = mig.offer(gpu)
        if offer.whole:
            memory = gpu.memory // stand_in.MIB if gpu.memory else None
            whole = {"kind": "gpu", "uuid": gpu.uuid, "sysfs": gpu.pci, "minor": gpu.minor}
            offered.append(whole | {"memory_mib": memory})
        for each in offer.slices:
            ids = {"kind": "mig", "parent": each.parent, "gi": each.facts.gi, "ci": each.facts.ci}
            memory = each.facts.memory // stand_in.MIB if each.facts.memory else None
            offered.append(ids | {"uuid": each.facts.uuid, "memory_mib": memory, "sm": each.facts.sm})
    assert offered == want["instances"]


def test_the_layouts_of_pynvml_are_those_that_the_stand_in_was_built_with() -> None:
    """The stand-in is held to the same table by its compiler."""
    sizes = {name: about["size"] for name, about in json.loads(stand_in.ABI.read_text())["structs"].items()}
    ours = {
        "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
        "nvmlMemory_v2_t": pynvml.c_nvmlMemory_v2_t,
        "nvmlDeviceAttributes_t": pynvml.c_nvmlDeviceAttributes,
        "nvmlGpuInstanceProfileInfo_v2_t": pynvml.c_nvmlGpuInstanceProfileInfo_v2_t,
        "nvmlGpuInstanceInfo_t": pynvml.c_nvmlGpuInstanceInfo_t,
        "nvmlGpuFabricInfo_v3_t": pynvml.c_nvmlGpuFabricInfo_v3_t,
        "nvmlEventData_t": pynvml.c_nvmlEventData_t,
        "nvmlPlatformInfo_v2_t": pynvml.c_nvmlPlatformInfo_v2_t,
    }
    for name, kind in ours.items():
        assert pynvml.sizeof(kind) == sizes[name], name


def test_one_lost_gpu_is_named_and_leaves_the_others_alone(lab: Make) -> None:
    """C-GPU-02: the library cannot say who it was; asked by its address, it can."""
    (_, whole, _), (_, _, lost), _ = case("one-lost.json")
    node = lab(whole)
    before = node.library.read()
    addresses = tuple(gpu.pci or "" for gpu in before.gpus)
    node.stand_in.control(lost)
    node.clock.now += 30
    read = node.library.read(addresses)
    assert [gpu.uuid for gpu in read.gpus[:3]] == [gpu.uuid for gpu in before.gpus[:3]]
    assert all(not gpu.error for gpu in read.gpus[:3])
    assert (read.gpus[3].pci, read.gpus[3].code) == ("0000:c1:00.0", 15)
    assert read.gpus[3].error == "GetHandleByPciBusId: GPU is lost (15)"
    assert verdict.judge(read.gpus[3]).health == Health.LOST
    assert len(read.gpus) == 4, "the one without a name is the one with the address"
    node.stand_in.control()
    node.clock.now += 60
    assert node.library.read(addresses).gpus == before.gpus


def test_minor_index_and_address_are_kept_apart(lab: Make) -> None:
    """C-GPU-03."""
    gpus = lab(four()).library.read().gpus
    assert [(gpu.index, gpu.minor, gpu.pci) for gpu in gpus] == [
        (0, 2, "0000:0f:00.0"),
        (1, 3, "0000:15:00.0"),
        (2, 0, "0000:51:00.0"),
        (3, 1, "0000:57:00.0"),
    ]


@pytest.mark.parametrize(
    ("said", "ours"),
    [
        ("00000000:82:00.0", "0000:82:00.0"),
        ("00010001:00:00.0", "10001:00:00.0"),
        ("00000009:06:1F.0", "0009:06:1f.0"),
    ],
)
def test_an_address_is_lower_case_with_all_of_its_domain(said: str, ours: str, lab: Make) -> None:
    """C-GPU-04; the older of the two texts that the library gives has four digits of the domain."""
    assert lab({**four(), "1.pci": said}).library.read().gpus[1].pci == ours


def test_a_mismatch_leaves_the_gpus_unknown_and_needs_a_new_process(lab: Make) -> None:
    """C-GPU-06."""
    (_, whole, _), (_, _, mismatch), (_, after, _) = case("mismatch.json")
    node = lab(whole)
    uuids = [gpu.uuid for gpu in node.library.read().gpus]
    assert [node.library.fresh_process] == [False]
    node.stand_in.control(mismatch)
    read = node.library.read()
    assert (read.error, read.code, read.gpus) == ("driver/library mismatch", 18, ())
    assert verdict.unreadable(read).health == Health.UNKNOWN
    assert node.library.fresh_process
    assert node.new().read().code == 18, "a new process finds it at once"
    node.stand_in.control()
    node.stand_in.answer(after)
    node.library = node.new()
    read = node.library.read()
    assert (read.driver, [gpu.uuid for gpu in read.gpus]) == ("550.90.07", uuids)
    assert not node.library.fresh_process


def test_an_error_of_one_call_of_one_gpu_stays_there(lab: Make) -> None:
    node = lab({**four(), **{f"{gpu}.remapped": "0 0 0 0" for gpu in range(4)}})
    node.stand_in.control({"code.nvmlDeviceGetRemappedRows.2": 999})
    gpus = node.library.read().gpus
    assert gpus[2].unanswered == ("RemappedRows: Unknown Error (999)",)
    assert (gpus[2].remap_pending, gpus[2].minor, gpus[2].error) == (None, 0, "")
    assert [gpu.remap_pending for gpu in (gpus[0], gpus[1], gpus[3])] == [False] * 3
    assert verdict.judge(gpus[2]).notes == ("no answer: RemappedRows: Unknown Error (999)",)


def test_a_gpu_that_gets_lost_in_the_midst_of_a_reading_keeps_its_name_and_is_asked_no_more(
    lab: Make,
) -> None:
    node = lab(four())
    node.stand_in.control({"code.nvmlDeviceGetComputeMode.1": 15, "sleep.nvmlDeviceGetEccMode.1": 30_000})
    began = time.monotonic()
    gpu = node.library.read().gpus[1]
    assert (gpu.uuid, gpu.pci, gpu.code) == ("GPU-cccc0001-0000-4000-8000-000000000001", "0000:15:00.0", 15)
    assert gpu.error == "Modes: GPU is lost (15)"
    assert time.monotonic() - began < 20


def test_more_gpus_on_pci_than_the_library_counts_are_asked_for_by_address(lab: Make) -> None:
    """Seen without any XID: four on PCI, three in the library."""
    node = lab({**four(), "count": 3})
    addresses = ("0000:0f:00.0", "0000:15:00.0", "0000:51:00.0", "0000:57:00.0", "0000:99:00.0")
    gpus = node.library.read(addresses).gpus
    assert [gpu.pci for gpu in gpus] == list(addresses)
    assert (gpus[3].uuid[-4:], gpus[3].index, gpus[3].error) == ("0003", 3, "")
    assert gpus[4].error == "GetHandleByPciBusId: Not Found (6)"


def test_text_that_is_no_text_is_an_error_of_its_call(lab: Make) -> None:
    node = lab(four())
    (node.stand_in.folder / "answers").write_bytes(
        (node.stand_in.folder / "answers").read_bytes().replace(b"3.name=NVIDIA", b"3.name=\xff\xfe")
    )
    gpus = node.library.read().gpus
    assert gpus[3].name is None
    assert gpus[3].unanswered[0].startswith("Name: ")
    assert gpus[2].name == "NVIDIA A100-SXM4-40GB"


def test_a_library_that_is_not_there_and_a_driver_that_is_not_loaded_say_so(
    lab: Make, tmp_path: Path
) -> None:
    read = Library(str(tmp_path / "nothing.so")).read()
    assert read.error.startswith("library not found: ")
    assert read.code == 12
    node = lab(four())
    node.stand_in.control({"code.nvmlInitWithFlags.-1": 9})
    assert node.library.read().error == "driver not loaded"
    node.stand_in.control()
    assert node.library.read().count == 4, "it was loaded meanwhile"


def test_a_function_that_an_old_driver_lacks_is_unknown_and_its_older_form_is_used(lab: Make) -> None:
    raw = json.loads((MACHINES / "nv-gb200x4" / "nvml.json").read_bytes())
    node = lab(stand_in.recorded(raw), absent=stand_in.OLD_DRIVER)
    gpu = node.library.read().gpus[0]
    assert gpu.unanswered == ()
    assert (gpu.module, gpu.addressing, gpu.c2c, gpu.remap_pending, gpu.platform) == (
        None,
        None,
        None,
        None,
        {},
    )
    assert gpu.memory == 189471 * stand_in.MIB
    assert gpu.reserved is None
    assert gpu.fabric == facts.Fabric(
        state=3, status=0, cluster="00000001-0000-0000-0000-000000000001", clique=2
    )


def test_a_driver_that_knows_the_second_form_of_the_fabric_alone_is_asked_for_that(lab: Make) -> None:
    raw = json.loads((MACHINES / "nv-gb300x4" / "nvml.json").read_bytes())
    gpu = lab({**stand_in.recorded(raw), "fabric.old": 1}).library.read().gpus[0]
    assert gpu.fabric is not None
    assert (gpu.fabric.clique, gpu.fabric.health, gpu.fabric.summary) == (32766, 0, None)


def test_the_library_is_found_in_a_folder_too(lab: Make) -> None:
    node = lab({**four(), "1.gsp": "580.105.08"})
    library = Library(str(node.stand_in.library.parent))
    assert library.read().gpus[1].gsp == "580.105.08"
    library.close()


def test_nvlinks_end_where_the_library_says_so(lab: Make) -> None:
    links = {
        "link.0.active": 1, "link.0.version": 4, "link.0.remote": "00000000:C1:00.0", "link.0.type": 2,
        "link.1.active": 0,
    }  # fmt: skip
    gpus = lab({**four(), **stand_in.of_gpu(2, links)}).library.read().gpus
    assert gpus[2].links == (
        facts.NvLink(link=0, active=True, version=4, remote="0000:c1:00.0", remote_type=2),
        facts.NvLink(link=1, active=False),
    )
    assert gpus[1].links == ()


def test_health_of_memory_recovery_and_mps_is_read(lab: Make) -> None:
    ill = {
        "remapped": "3 1 1 0", "uncorrected": 4, "field.230": 4, "mps": 2, "retired_pending": 1,
        "retired_single": 2, "retired_double": 5, "pcie_width": 8, "pcie_width_max": 16, "pcie_gen": 1,
    }  # fmt: skip
    gpus = (
        lab({**four(), **stand_in.of_gpu(0, ill), **stand_in.of_gpu(1, {"field.230": 42})})
        .library.read()
        .gpus
    )
    gpu = gpus[0]
    assert (gpu.remapped_correctable, gpu.remapped_uncorrectable, gpu.remap_pending, gpu.remap_failed) == (
        *(3, 1),
        *(True, False),
    )
    assert (gpu.uncorrected, gpu.recovery, gpu.mps) == (4, "drain-and-reset", True)
    assert (gpu.retired_pending, gpu.retired_pages) == (True, 7)
    assert [fault.cause for fault in verdict.judge(gpu).faults] == [
        "recovery",
        "remap-pending",
        "retirement-pending",
    ]
    assert "PCIe width 8 of 16" in verdict.judge(gpu).notes
    assert gpus[1].recovery == "action-42"


def test_gpus_that_the_driver_was_told_to_leave_out_are_listed(lab: Make) -> None:
    read = lab({**four(), "excluded.0": "00000000:C1:00.0"}).library.read(("0000:c1:00.0",))
    assert read.excluded == ("0000:c1:00.0",)
    assert len(read.gpus) == 4, "and not asked for as if they were missing"
