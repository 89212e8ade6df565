"""The way back of a CSI volume: what plugins say and leave, releases that are interrupted, and last words."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.prepare.csi_world import FAILED, READY, RELEASED, CsiWorld, asked, gone, ready
from tests.prepare.world import Disk
from xce.model.claim import BindingState
from xce.prepare import orphans
from xce.prepare.step import Csi

pytestmark = pytest.mark.root


def test_a_release_during_a_call_that_hangs_is_its_opposite(csi: CsiWorld) -> None:
    csi.plugin.control(faults={"NodeStageVolume": {"delay_s": 1.0, "times": 1}})
    order = csi.order(asked())
    csi.executor.prepare(op_id="o", epoch=1, binding=order[0], claim=order[1], instances={})
    csi.until(lambda: csi.rpcs() == ["stage"])
    gone(csi, order[0].id)
    assert csi.rpcs()[-1] == "unstage"
    assert csi.at(csi.staging()) == []


@pytest.mark.parametrize("habits", [["stacks"], ["says-unmounted"]], ids=str)
def test_ok_to_unpublish_is_believed_when_nothing_is_mounted(csi: CsiWorld, habits: list[str]) -> None:
    csi.plugin.control(behaviours=habits)
    binding = ready(csi)
    assert len(csi.at(csi.target())) == 1
    gone(csi, binding)
    assert csi.at(csi.target()) == []


def test_several_mounts_at_the_target_are_all_taken_off(csi: CsiWorld) -> None:
    binding = ready(csi)
    for _ in range(2):
        subprocess.run(["mount", "--bind", csi.staging(), csi.target()], check=True)
    gone(csi, binding)


@pytest.mark.parametrize(
    "habits", [["picky-absent"], ["picky-present"], ["forgets"], ["keeps-leaf"]], ids=str
)
def test_an_error_to_unpublish_does_not_mean_that_it_is_mounted(csi: CsiWorld, habits: list[str]) -> None:
    binding = ready(csi)
    csi.plugin.stop()
    subprocess.run(["umount", csi.target()], check=True)  # e.g. it was taken off with the plugin's container
    csi.plugin.control(behaviours=habits)
    csi.plugin.start()
    gone(csi, binding)


def test_the_last_words_of_a_plugin_that_is_not_content_stay_with_the_binding(csi: CsiWorld) -> None:
    binding = ready(csi)
    csi.plugin.stop()
    subprocess.run(["umount", csi.target()], check=True)
    csi.plugin.control(behaviours=["forgets"])
    csi.plugin.start()
    gone(csi, binding)
    stone = csi.executor.journal.tombstone(binding)
    assert stone is not None
    assert "unpublish of volume vol1: no volume vol1; nothing is mounted there any more" in stone.reason
    assert csi.report(binding).reason == stone.reason


def test_a_silence_does_not_unsay_what_a_plugin_said(csi: CsiWorld) -> None:
    """It says why it cannot, then hangs; then the helper dies in the middle of its answer."""
    binding = ready(csi)
    sick = {"code": 13, "message": "the array is sick", "times": 1}
    csi.plugin.control(faults={"NodeUnpublishVolume": sick})
    csi.executor.release(op_id="end", epoch=1, binding=binding)
    csi.until(lambda: "the array is sick" in csi.report(binding).note)
    csi.plugin.control(faults={"NodeUnpublishVolume": {"hang": True}})
    before = "; it said before: the array is sick"
    csi.until(lambda: csi.report(binding).note.endswith(before))
    csi.kill_helper()
    csi.until(lambda: "helper is not there" in csi.report(binding).note)
    assert csi.report(binding).note.endswith(before)
    csi.plugin.stop()
    csi.plugin.control()
    csi.plugin.start()
    csi.until(lambda: csi.report(binding).state is RELEASED)


def test_a_plugin_that_has_forgotten_the_volume_does_not_keep_it_mounted(csi: CsiWorld) -> None:
    binding = ready(csi)
    csi.plugin.stop()
    csi.plugin.control(behaviours=["forgets"])
    csi.plugin.start()
    gone(csi, binding)


@pytest.mark.parametrize("habit", ["wants-target", "wants-no-target", "deletes-target", "keeps-leaf"])
def test_a_target_may_be_wanted_or_not(csi: CsiWorld, habit: str) -> None:
    csi.plugin.control(behaviours=[habit])
    gone(csi, ready(csi))
    assert (csi.plugin.folder / "backing/vol1/data").exists()


def test_what_a_plugin_left_in_the_target_is_not_removed(csi: CsiWorld) -> None:
    os.makedirs(csi.target())
    csi.node.owner.take(os.path.dirname(csi.target()), "b0", recorded=True)
    Path(csi.target(), "precious").write_text("x")
    report = csi.bind(asked())
    assert "not empty" in (report.reason or report.note)
    assert Path(csi.target(), "precious").read_text() == "x"
    assert "publish" not in csi.rpcs()


def test_a_plugin_that_was_never_reached_holds_up_no_release(csi: CsiWorld) -> None:
    csi.plugin.stop()
    order = csi.order(asked())
    csi.executor.prepare(op_id="o", epoch=1, binding=order[0], claim=order[1], instances={})
    csi.until(lambda: "plugin fake" in csi.report(order[0].id).note)
    gone(csi, order[0].id)
    assert csi.rpcs() == []


def test_a_dead_plugin_harms_no_job_and_nothing_is_released_before_it_is_gone(csi: CsiWorld) -> None:
    binding = ready(csi)
    csi.plugin.stop()
    csi.executor.check()
    assert csi.report(binding).note == ""
    assert (csi.place_of(binding) / "data").read_text() == "payload of vol1"
    report = csi.release(binding)
    assert report.state is BindingState.RELEASING
    assert "plugin fake, unpublish" in report.note
    csi.plugin.start()
    csi.until(lambda: csi.report(binding).state is RELEASED, 20)
    assert csi.leftovers() == []


def test_the_last_one_leaves_while_another_comes(csi: CsiWorld) -> None:
    """The newcomer waits until the volume is unstaged, and then has the volume, not the node's disk."""
    first = ready(csi)
    csi.plugin.control(faults={"NodeUnstageVolume": {"delay_s": 0.4}}, behaviours=["blind"])
    csi.executor.release(op_id="end", epoch=1, binding=first)
    csi.until(lambda: "unstage" in csi.rpcs())
    second = ready(csi)
    assert (csi.place_of(second) / "data").read_text() == "payload of vol1"
    assert csi.report(first).state is RELEASED
    assert csi.rpcs() == ["stage", "publish", "unpublish", "unstage", "stage", "publish"]
    gone(csi, second)


def test_an_unstage_that_was_interrupted_goes_on_after_a_restart(csi: CsiWorld) -> None:
    """The volume is unpublished already; only the journal knows that it is still staged."""
    binding = ready(csi)
    csi.plugin.control(faults={"NodeUnstageVolume": {"hang": True}})
    csi.executor.release(op_id="end", epoch=1, binding=binding)
    csi.until(lambda: "unstage" in csi.rpcs())
    assert csi.at(csi.target()) == []
    csi.stop()
    csi.plugin.stop()
    csi.plugin.control()
    csi.plugin.start()
    csi.start()
    csi.until(lambda: csi.report(binding).state is RELEASED, 20)
    assert csi.leftovers() == []


def test_a_volume_waits_for_the_disk_before_the_plugin_is_asked_first_and_not_again(csi: CsiWorld) -> None:
    """What Stage has mounted and where is of this boot alone."""
    disk = Disk(csi)
    binding = ready(csi)
    assert disk.syncs == ["start", "order.after-intent", "csi.note.after-write"]
    gone(csi, binding)


def test_a_machine_that_fails_knows_that_the_plugin_has_to_take_the_volume_back(csi: CsiWorld) -> None:
    disk = Disk(csi)
    report = csi.bind(asked(), cards=["full"])
    assert report.state is READY
    csi.instances = {}  # the card is gone, so it cannot be had again
    csi.reboot(disk.state)
    csi.until(lambda: csi.report(report.binding).state is FAILED)
    assert csi.rpcs() == ["stage", "publish", "unpublish", "unstage"]
    assert csi.leftovers() == []


def test_a_release_that_a_reboot_interrupts_goes_on(csi: CsiWorld) -> None:
    """Its mounts are gone with the boot; whether the plugin holds more than those, only the plugin knows."""
    binding = ready(csi)
    csi.plugin.stop()
    csi.executor.release(op_id="end", epoch=1, binding=binding)
    csi.until(lambda: "plugin fake, unpublish" in csi.report(binding).note)
    csi.reboot()
    csi.until(lambda: csi.report(binding).state is RELEASED, 20)
    assert csi.rpcs()[-2:] == ["unpublish", "unstage"]
    assert csi.leftovers() == []


def test_volumes_that_bindings_have_are_no_orphans_and_others_are_not_just_unmounted(csi: CsiWorld) -> None:
    csi.plugin.control(stage="below")
    binding = ready(csi)
    steps = [work.step for work in csi.executor.entries[binding].works]
    assert orphans.find(csi.node, steps) == []
    found = orphans.find(csi.node, [step for step in steps if not isinstance(step, Csi)])
    assert {(one.kind, one.path) for one in found} == {
        ("volume", csi.target()),
        ("volume", csi.staging() + "/inner"),
    }
    assert "by hand" in orphans.clean(found[0], csi.node)
    assert csi.at(csi.target()) != []
    theirs = Path(csi.settings.directory, ".csi/s/theirs/inner")
    theirs.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "theirs", str(theirs)], check=True)
    [foreign] = orphans.find(csi.node, steps)
    assert str(foreign) == f"volume {theirs} (tmpfs theirs): not ours: no agent has written its name on it"
    subprocess.run(["umount", str(theirs)], check=True)
    theirs.rmdir()
    theirs.parent.rmdir()
    gone(csi, binding)
