"""MIG as NVML tells it: slices, profiles and modes that come, go and cannot be read."""

from typing import Any

import pytest

from tests.agent.probe.conftest import Make
from tests.agent.probe.gpus import case, four
from tests.fakes.nvml import stand_in
from xce.agent.probe import facts, mig


def test_mig_on_without_instances_offers_one_gpu_of_two(lab: Make) -> None:
    """C-GPU-01."""
    (_, answers, _) = case("mig-empty.json")[0]
    first, second = map(mig.offer, lab(answers).library.read().gpus)
    assert (first.whole, first.slices, first.reason) == (False, (), "MIG on, no instances")
    assert second.whole


SLICES: list[dict[str, Any]] = [
    {
        "mig_index": 1, "gi": 5, "ci": 0, "profile": "2g.10gb", "placement": [4, 2], "uuid": "MIG-five",
        "name": "NVIDIA A100-SXM4-40GB MIG 2g.10gb", "sm": 28, "memory": 9856,
    },
    {
        "mig_index": 4, "gi": 13, "ci": 2, "profile": "1g.5gb", "placement": [6, 1], "uuid": "MIG-thirteen",
        "name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "sm": 14, "memory": 4864,
    },
]  # fmt: skip
PROFILES = stand_in.profiles(
    [
        (0, "1g.5gb", 19, "0:1 1:1 2:1 3:1 4:1 5:1 6:1", 4864),
        (1, "2g.10gb", 14, "0:2 2:2 4:2", 9856),
        (9, "1g.10gb", 15, "0:2 2:2 4:2 6:2", 9856),
    ]
)


def with_mig(slices: list[dict[str, Any]], layout: int, **more: object) -> dict[str, object]:
    on = {"mig.current": 1, "mig.pending": 1, **stand_in.mig(slices, layout), **PROFILES, **more}
    return {**four(), **stand_in.of_gpu(1, on)}


def test_sparse_slices_profiles_and_an_instance_without_compute_are_as_the_library_states(lab: Make) -> None:
    bare = {"gi.2.id": 1, "gi.2.profile": 14, "gi.2.start": 0, "gi.2.size": 2}
    found = lab(with_mig(SLICES, 1, **bare)).library.read().gpus[1].mig
    assert [(each.uuid, each.gi, each.ci, each.placement, each.profile) for each in found.slices] == [
        ("MIG-five", 5, 0, (4, 2), "2g.10gb"),
        ("MIG-thirteen", 13, 2, (6, 1), "1g.5gb"),
    ]
    assert found.bare == (1,)
    assert [(each.name, each.id, len(each.placements), each.remaining) for each in found.profiles] == [
        ("1g.5gb", 19, 7, 0),
        ("2g.10gb", 14, 3, 0),
        ("1g.10gb", 15, 4, 0),
    ]
    assert found.error == ""


def test_slices_come_and_go_and_no_handle_of_before_is_used(lab: Make) -> None:
    node = lab(with_mig(SLICES, 1))
    node.library.read()
    node.stand_in.answer(with_mig([{**SLICES[1], "mig_index": 0}], 2))
    node.clock.now += 10
    found = node.library.read().gpus[1].mig
    assert [each.uuid for each in found.slices] == ["MIG-thirteen"], "its index moved, its name did not"
    assert found.bare == ()
    node.stand_in.answer(four())
    node.clock.now += 10
    assert node.library.read().gpus[1].mig == facts.Mig()


def test_a_change_of_mig_mode_makes_all_that_was_known_of_the_gpu_stale(lab: Make) -> None:
    off = {"mig.current": 0, "mig.pending": 0, "memory": 40960}
    node = lab({**four(), **stand_in.of_gpu(1, off)})
    assert node.library.read().gpus[1].memory == 40960
    node.stand_in.answer(with_mig(SLICES, 1, memory=40330))
    node.clock.now += 10
    gpu = node.library.read().gpus[1]
    assert (gpu.mig.current, gpu.memory) == (True, 40330), "memory is otherwise asked once"


@pytest.mark.parametrize("code", [999, 13])
def test_slices_that_cannot_be_listed_are_unknown_and_not_absent(code: int, lab: Make) -> None:
    node = lab(with_mig(SLICES, 1))
    node.stand_in.control({"code.nvmlDeviceGetMaxMigDeviceCount.1": code})
    gpu = node.library.read().gpus[1]
    assert gpu.mig.error.startswith("MigDevices: ")
    assert mig.offer(gpu).reason.startswith("MIG on, instances unknown: ")


def test_a_placement_that_may_not_be_read_is_unknown(lab: Make) -> None:
    node = lab(with_mig(SLICES, 1))
    node.stand_in.control({"code.nvmlDeviceGetGpuInstanceById.1": 4})
    gpu = node.library.read().gpus[1]
    assert [each.placement for each in gpu.mig.slices] == [None, None]
    offer = mig.offer(gpu)
    assert all(each.consumes == offer.capacity for each in offer.slices)


def test_an_unknown_mig_mode_offers_nothing(lab: Make) -> None:
    node = lab(with_mig(SLICES, 1))
    node.stand_in.control({"code.nvmlDeviceGetMigMode.1": 999})
    assert not mig.offer(node.library.read().gpus[1]).whole


def test_profiles_of_a_driver_without_names_have_numbers(lab: Make) -> None:
    node = lab(with_mig(SLICES, 1), absent=stand_in.OLD_DRIVER)
    found = node.library.read().gpus[1].mig.profiles
    assert [(each.id, each.name, each.placements[-1]) for each in found] == [
        (19, "profile-19", (6, 1)),
        (14, "profile-14", (4, 2)),
        (15, "profile-15", (6, 2)),
    ]
