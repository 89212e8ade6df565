"""Orders: the same again, stale ones, late ones, those for what somebody else has; restarts and reboots."""

import os
from pathlib import Path

import msgspec
import pytest

from tests.prepare.world import DENIED, FULL_ASK, OTHER, OWN, Disk, World
from xce.model.claim import Ask, BindingState, MountAsk, SharedAsk
from xce.model.instance import Health, Instance
from xce.prepare.entry import StepState
from xce.prepare.execute import Refused

pytestmark = pytest.mark.root

READY, FAILED, RELEASED = BindingState.READY, BindingState.FAILED, BindingState.RELEASED


def test_the_same_order_again_changes_nothing(world: World) -> None:
    first = world.bind(FULL_ASK, cards=["full"], binding="b1")
    evidence = [work.evidence for work in world.executor.entries["b1"].works]
    assert world.bind(FULL_ASK, cards=["full"], binding="b1") == first
    assert [work.evidence for work in world.executor.entries["b1"].works] == evidence


def test_an_order_of_an_older_reign_is_refused(world: World) -> None:
    world.bind(Ask(), epoch=5)
    stale = "order of epoch 4 is stale: this node has seen epoch 5"
    with pytest.raises(Refused, match=stale):
        world.bind(Ask(), epoch=4)
    with pytest.raises(Refused, match=stale):
        world.release("b1", epoch=4)
    world.restart()
    with pytest.raises(Refused, match="stale"):
        world.bind(Ask(), epoch=4)


def test_a_prepare_that_comes_after_its_release_is_refused(world: World) -> None:
    """Even for a binding that was never here: the release may have overtaken it."""
    assert world.release("b7").state is RELEASED
    world.bind(Ask(), binding="b8")
    world.release("b8")
    world.restart()
    for binding in ("b7", "b8"):
        with pytest.raises(Refused, match=f"binding {binding} has ended here: it is released"):
            world.bind(Ask(), binding=binding, epoch=9)
    assert world.leftovers() == []


def test_a_failed_order_gets_the_same_answer_again(world: World) -> None:
    ask = Ask(mounts=[MountAsk(name="x", source="nowhere")])
    first = world.bind(ask, binding="b1")
    assert (first.state, first.reason) == (FAILED, "mount x: the profile has no volume 'nowhere'")
    assert world.bind(ask, binding="b1") == first


def test_an_instance_belongs_to_one_binding_whatever_it_does(world: World) -> None:
    one = world.bind(Ask(), cards=["full"])
    with pytest.raises(Refused, match="instance card-full is held by binding b1, which is ready"):
        world.bind(Ask(), cards=["full"])
    world.executor.release(op_id="x", epoch=1, binding=one.binding)
    with pytest.raises(Refused, match="which is releasing"):
        world.bind(Ask(), cards=["full"])
    world.settled(one.binding)
    assert world.bind(Ask(), cards=["full"]).state is READY


@pytest.mark.parametrize(
    ("health", "reason"), [(Health.LOST, "GPU is lost"), (Health.UNKNOWN, "driver/library mismatch")]
)
def test_c_gpu_06_an_instance_that_is_not_well_fails_with_its_cause(
    world: World, health: Health, reason: str
) -> None:
    ready = world.bind(Ask(), cards=["zero"])
    for card in ("card-full", "card-zero"):
        world.instances[card] = msgspec.structs.replace(world.instances[card], health=health, reason=reason)
    report = world.bind(Ask(), cards=["full"])
    assert (report.state, report.reason) == (FAILED, f"instance card-full is {health}: {reason}")
    assert world.report(ready.binding).state is READY


def test_a_reporter_cannot_name_a_device_that_the_profile_does_not_let_it(world: World) -> None:
    evil = msgspec.structs.replace(
        world.instances["card-full"], attributes={"device_files": [f"{OWN}/../../mem"]}
    )
    world.instances["card-full"] = evil
    report = world.bind(Ask(), cards=["full"])
    assert report.state is FAILED
    assert "which the profile's device_paths do not allow" in report.reason


def test_what_its_reporter_says_has_no_device_file_is_given_to_one_consumer_too(world: World) -> None:
    """A seat of a licence: nobody opens it, and nobody else may have it."""
    seat = Instance(id="card-seat", kind="seat", attributes={"device_files": []})
    world.instances["card-seat"] = seat
    assert world.bind(Ask(), cards=["seat"]).state is READY
    with pytest.raises(Refused, match="instance card-seat is held by binding b1"):
        world.bind(Ask(), cards=["seat"])


def test_a_restart_redoes_nothing(world: World) -> None:
    report = world.bind(FULL_ASK, cards=["full"])
    before = [work.evidence for work in world.executor.entries[report.binding].works]
    world.restart()
    world.executor.advance()
    assert world.report(report.binding).state is READY
    assert [work.evidence for work in world.executor.entries[report.binding].works] == before
    assert world.executor.journal.orders()[report.binding][1] == world.executor.entries[report.binding].works


def test_c_sta_05_after_a_reboot_nothing_is_ready_by_the_record_alone(world: World) -> None:
    one = world.bind(FULL_ASK, cards=["full"])
    two = world.bind(Ask(), cards=["zero"])
    kept = Path(world.variables(one.binding)["XCE_DIR_OUT"], "result")
    kept.write_text("precious")
    world.reboot()
    world.executor.advance()
    for report in (one, two):
        assert world.report(report.binding).state is BindingState.PREPARING
    del world.instances["card-zero"]
    world.executor.resume(world.instances)
    assert world.settled(one.binding).state is READY
    assert world.report(one.binding).ports == one.ports
    assert kept.read_text() == "precious"
    assert world.opened(one.binding, OWN, OTHER) == ["ok", DENIED]
    failed = world.settled(two.binding)
    assert (failed.state, failed.reason) == (FAILED, "instance card-zero is not on this node now")
    world.release(one.binding)
    assert world.leftovers() == []


def test_a_machine_that_fails_has_lost_nothing_that_a_reboot_leaves(world: World) -> None:
    """What was written for its last boot alone need not be on the disk: a binding that was ready is void."""
    disk = Disk(world)
    one = world.bind(FULL_ASK, cards=["full"])
    assert disk.syncs == ["start", "order.after-intent"]
    kept = Path(world.variables(one.binding)["XCE_DIR_OUT"], "result")
    kept.write_text("precious")
    world.reboot(disk.state)
    assert world.executor.recovering == ""
    assert world.report(one.binding).state is BindingState.PREPARING
    world.executor.resume(world.instances)
    assert world.settled(one.binding).state is READY
    assert world.report(one.binding).ports == one.ports
    assert kept.read_text() == "precious"
    world.release(one.binding)
    assert disk.syncs[-2:] == ["order.releasing.after-write", "order.after-end"]
    assert world.leftovers() == []


def test_a_release_that_a_failure_of_the_machine_interrupts_leaves_nothing(world: World) -> None:
    """It was ready, and the disk knows only that it was begun."""
    disk = Disk(world)
    report = world.bind(FULL_ASK, cards=["full"])
    world.reboot(disk.state)
    assert world.release(report.binding).state is RELEASED
    assert world.leftovers() == []


def test_what_cannot_be_made_ready_again_after_a_reboot_keeps_its_results_for_as_long_as_any_other(
    world: World,
) -> None:
    """It was ready, and its job ran: it is no attempt that came to nothing."""
    one = world.bind(Ask(shared=[SharedAsk(volume="home")]), cards=["full"], retention_s=3600)
    result = Path(world.variables(one.binding)["XCE_DIR_OUT"], "result")
    result.write_text("precious")
    world.reboot()
    world.executor.resume({})
    assert world.settled(one.binding).state is FAILED
    assert result.read_text() == "precious"
    assert len(world.journal.kept) == 1
    world.ahead += 4000
    world.until(lambda: not world.journal.kept)
    assert not result.exists()
    assert world.leftovers() == []


def test_what_waits_for_the_inventory_after_a_reboot_can_be_released(world: World) -> None:
    report = world.bind(FULL_ASK, cards=["full"])
    world.reboot()
    world.release(report.binding)
    assert world.over(report.binding).state is RELEASED
    assert world.leftovers() == []


def test_a_release_goes_on_after_a_reboot(world: World) -> None:
    report = world.bind(FULL_ASK, cards=["full"])
    world.executor.release(op_id="end", epoch=1, binding=report.binding)
    world.reboot()
    assert world.over(report.binding).state is RELEASED
    assert world.leftovers() == []


def test_a_release_in_the_middle_of_a_prepare_takes_back_what_was_done(world: World) -> None:
    order = world.order(FULL_ASK, cards=["full"], binding="b1")
    world.executor.prepare(op_id="o", epoch=1, binding=order[0], claim=order[1], instances=world.instances)
    assert {work.state for work in world.executor.entries["b1"].works} == {StepState.BEGUN}
    assert world.release("b1").state is RELEASED
    assert world.leftovers() == []


def test_a_fault_of_one_binding_does_not_reach_another(world: World) -> None:
    """Its mount point is a file: it fails, and the other one is ready."""
    place = Path(world.settings.directory, "b1")
    place.mkdir(parents=True)
    (place / "input").write_text("in the way")
    assert world.bind(FULL_ASK, binding="b1").state is FAILED
    assert world.bind(FULL_ASK, binding="b2").state is READY
    os.unlink(place / "input")


def test_news_tell_each_change_once(world: World) -> None:
    report = world.bind(Ask())
    assert [(news.binding, news.state) for news in world.executor.news()] == [("b1", READY)]
    assert world.executor.news() == []
    world.release(report.binding)
    assert [news.state for news in world.executor.news()] == [RELEASED]
