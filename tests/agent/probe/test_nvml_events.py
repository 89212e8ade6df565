"""XIDs as the library tells them, and handles that are let go and taken again."""

import os
import shutil
from pathlib import Path

import pynvml
import pytest

from tests.agent.probe.conftest import Make
from tests.agent.probe.gpus import four
from xce.agent.probe.nvml import Library


def test_an_xid_is_heard_with_the_gpu_it_is_of_and_told_in_each_reading_for_a_while(lab: Make) -> None:
    node = lab(four())
    node.library.read()
    assert node.library.wait_events(0.0) == 0
    node.stand_in.xid(2, 79)
    node.stand_in.xid(1, 13, gi=5, ci=0)
    assert node.library.wait_events(1.0) == 2
    node.clock.now += 40
    first, second = node.library.read().xids
    assert (first.xid, first.uuid, first.gi, first.at, first.age_s) == (
        *(79, "GPU-cccc0002-0000-4000-8000-000000000002"),
        *(None, 1000.0, 40.0),
    )
    assert (second.xid, second.uuid[-1], second.gi, second.ci) == (13, "1", 5, 0)
    assert [each.at for each in node.library.read().xids] == [1000.0, 1000.0]
    node.clock.now += 3600
    assert node.library.read().xids == ()


def test_an_xid_of_a_gpu_that_cannot_say_its_name_any_more_has_it(lab: Make) -> None:
    node = lab(four())
    node.library.read()
    node.stand_in.control({"code.*.3": 15})
    node.stand_in.xid(3, 79)
    assert node.library.wait_events(1.0) == 1
    (event,) = node.library.read().xids
    assert event.uuid == "GPU-cccc0003-0000-4000-8000-000000000003"


def test_an_xid_makes_the_next_reading_a_fresh_one(lab: Make) -> None:
    node = lab({**four(), "2.field.230": 0})
    assert node.library.read().gpus[2].recovery == "none"
    node.stand_in.answer({**four(), "2.field.230": 1})
    assert node.library.read().gpus[2].recovery == "none", "it is not due yet"
    node.stand_in.xid(2, 119)
    node.library.wait_events(1.0)
    assert node.library.read().gpus[2].recovery == "reset"


def test_a_gpu_that_came_back_is_heard_again_and_so_are_all_after_a_release(lab: Make) -> None:
    node = lab(four())
    node.library.read()
    node.stand_in.control({"code.*.3": 15})
    node.library.read()
    node.stand_in.control()
    node.library.read()
    node.library.release()
    node.library.read()
    node.stand_in.xid(3, 48)
    assert node.library.wait_events(1.0) == 1
    assert node.library.read().xids[0].uuid[-1] == "3"
    assert node.library.deaf == ""


def test_a_wait_that_fails_for_a_lost_gpu_is_made_good_with_a_new_set(lab: Make) -> None:
    node = lab(four())
    node.library.read()
    node.stand_in.control({"code.nvmlEventSetWait_v2.-1": 15})
    assert node.library.wait_events(0.1) == 0
    assert node.library.deaf == "waiting for events: GPU is lost (15)"
    node.stand_in.control()
    node.library.read()
    node.stand_in.xid(0, 79)
    assert node.library.wait_events(1.0) == 1
    assert node.library.wait_events(0.0) == 0
    assert node.library.deaf == ""


def test_a_driver_without_events_makes_it_deaf_and_nothing_else(lab: Make) -> None:
    node = lab(four(), absent=("nvmlEventSetCreate",))
    assert node.library.read().count == 4
    assert "Function Not Found" in node.library.deaf
    assert node.library.notes() == (f"XIDs cannot be heard: {node.library.deaf}",)
    assert node.library.wait_events(0.0) == 0


def test_released_handles_are_given_back_and_taken_again(lab: Make) -> None:
    node = lab(four())
    before = node.library.read()
    node.library.release()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    assert node.library.read() == before
    node.library.release()
    node.library.release()


def test_a_library_whose_file_was_replaced_needs_a_new_process(lab: Make, tmp_path: Path) -> None:
    """An update leaves the old file mapped: this process goes on as if nothing had happened."""
    node = lab(four())
    copy = tmp_path / "libnvidia-ml.so.1"
    shutil.copy(node.stand_in.library, copy)
    library = Library(str(copy))
    assert (library.read().count, library.fresh_process) == (4, False)
    shutil.copy(node.stand_in.library, tmp_path / "new")
    os.replace(tmp_path / "new", copy)
    assert (library.read().count, library.fresh_process) == (4, True)
    library.close()
