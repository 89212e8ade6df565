"""Killed at every point, the same order leads to the same end, and nothing is left.

The points are those of `points.py`: a new kind of step is covered without being named.
"""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.prepare.points import (
    QUOTA_SCENARIOS,
    READY,
    RELEASED,
    SCENARIOS,
    WHOLE,
    Point,
    Scenario,
    Watch,
    again,
    assert_end,
    nowhere,
    passed,
    worlds,
)
from tests.prepare.quota_disk import KINDS, mounted
from tests.prepare.world import World
from xce.linux.cgroup import Cgroup
from xce.prepare.step import Evidence
from xce.prepare.steps import HANDLERS

pytestmark = [pytest.mark.root, pytest.mark.slow]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(place: Path, group: Cgroup, scenario: Scenario, at: Point) -> None:
    """Act in a process of its own, which is killed at a point."""
    pid = os.fork()  # noqa: TID251 - starting an interpreter 300 times would take minutes
    if pid == 0:
        try:
            watch = Watch(die)
            with worlds(place, group, watch) as world:
                scenario.before(world)
                watch.begin(at)
                scenario.act(world)
                os._exit(0)  # as a kill would, without tidying up
        finally:
            os._exit(3)
    _, status = os.waitpid(pid, 0)
    # How often it looks at a child that is still at work is a matter of time.
    assert os.WIFSIGNALED(status) or (status == 0 and at.turn), f"it was not killed at {at}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_c_sta_03_killed_at_every_point_nothing_is_lost_and_nothing_left(
    fast: Path, world: World, name: str
) -> None:
    kill_at_every_point(fast, world, SCENARIOS[name])


@pytest.mark.parametrize("name", QUOTA_SCENARIOS)
@pytest.mark.parametrize("kind", KINDS)
def test_c_sta_03_killed_at_every_point_no_limit_is_left_on_a_disk_with_quotas(
    fast: Path, world: World, kind: str, name: str
) -> None:
    disks = mounted(kind, fast)
    disk = next(disks)
    kill_at_every_point(fast, world, QUOTA_SCENARIOS[name], only=("scratch", "order"))
    assert disk.limits() == {}
    next(disks, None)


def kill_at_every_point(fast: Path, world: World, scenario: Scenario, only: Sequence[str] = ()) -> None:
    """All points; or those of some kinds of step, where the others are the same in another scenario.

    By default each the first time that it is passed; with `XCE_TEST_FULL=1` each time.
    """
    points = passed(fast / "whole", world.group.child("whole"), scenario)
    assert len(points) > 15
    points = [point for point in points if WHOLE or point.turn == 0]
    if only:
        points = [point for point in points if point.name.partition(".")[0] in only]
    wrong: Evidence = {}
    for number, at in enumerate(points):
        place, group = fast / str(number), world.group.child(str(number))
        group.create()
        killed(place, group, scenario, at)
        try:
            with worlds(place, group, nowhere) as restarted:
                again(restarted, scenario)
                assert_end(restarted, scenario)
        except AssertionError as error:
            wrong[f"{at.name}#{at.turn}"] = str(error)[:600]
        group.remove()
    assert not wrong, "\n".join(f"{where}: {what}" for where, what in wrong.items())


def test_every_kind_of_step_is_done_and_undone_in_some_scenario(fast: Path, world: World) -> None:
    """A new kind has to be in an order here, or in one of those with a plugin (`test_csi_crash.py`)."""
    made = [
        passed(fast / name, world.group.child(name.replace(" ", "-")), scenario)
        for name, scenario in SCENARIOS.items()
    ]
    words = {point.name for points in made for point in points}
    kinds = {str(kind.__struct_config__.tag) for kind in HANDLERS} - {"csi", "block"}
    assert {f"{kind}.{word}" for kind in kinds for word in ("after-do", "after-undo")} <= words


def test_c_csi_05_killed_between_two_steps_of_a_mount_ends_without_any_new_order(
    fast: Path, world: World
) -> None:
    """Nobody repeats the order here: the restarted node goes on by itself."""
    for number, name in enumerate(
        ("bind.after-do", "stage.after-do", "bind.after-undo", "group.before-undo")
    ):
        place, group = fast / str(number), world.group.child(str(number))
        group.create()
        releasing = "undo" in name
        scenario = SCENARIOS["release" if releasing else "prepare"]
        killed(place, group, scenario, Point(name, 0))
        with worlds(place, group, nowhere) as restarted:
            report = restarted.over("b1")  # busy for a moment is not the end
            assert report.state is (RELEASED if releasing else READY)
            restarted.release("b1")
            assert restarted.leftovers() == []
        group.remove()
