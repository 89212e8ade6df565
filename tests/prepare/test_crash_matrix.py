"""Killed at every point, the same order leads to the same end, and nothing is left.

The points are those that a run without a kill passes: before and after each write to the journal, and before,
in and after each step. Nothing names them here, so a new kind of step is covered when it is in the order.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.prepare.quota_disk import KINDS, mounted
from tests.prepare.world import FULL_ASK, World
from xce.linux.cgroup import Cgroup
from xce.model.claim import Ask, BindingState, Consumer, MountAsk, SharedAsk
from xce.prepare.execute import Refused
from xce.prepare.journal import Work
from xce.prepare.step import Bind, Evidence, Scratch

pytestmark = [pytest.mark.root, pytest.mark.slow]

READY, RELEASED, FAILED = BindingState.READY, BindingState.RELEASED, BindingState.FAILED
TURNS = 4
"""Of one point in one run: more are looks at a child that is still at work."""
IMPOSSIBLE = Ask(
    mounts=FULL_ASK.mounts,
    scratch_bytes=1 << 20,
    ports=FULL_ASK.ports,
    shared=[SharedAsk(volume="home"), SharedAsk(volume="foreign")],
)
"""Fails late: on the last volume the user's directory is somebody else's."""


class Point(NamedTuple):
    """The `turn`th time that `name` is passed."""

    name: str
    turn: int


class Scenario(NamedTuple):
    """What is done with a node, in a process that is killed; and what must be true in the end."""

    before: Callable[[World], None]
    act: Callable[[World], None]
    end: dict[str, BindingState]


def prepare(world: World) -> None:
    world.bind(FULL_ASK, cards=["full"], binding="b1")


def release(world: World) -> None:
    world.executor.release(op_id="end-b1", epoch=1, binding="b1")
    world.until(lambda: world.report("b1").state is RELEASED, within=30)  # busy for a moment is not the end


def make_impossible(world: World) -> None:
    place = world.place / "foreign/alice"
    place.mkdir(parents=True)
    os.chown(place, 4712, 4712)


def prepare_impossible(world: World) -> None:
    world.bind(IMPOSSIBLE, cards=["full"], binding="b1")


TWIN = Consumer(name="both", user="alice")
SHARING = Ask(mounts=[MountAsk(name="cache", source="staged")])
"""What two bindings of one consumer have in common: group, filter, staged volume."""


def prepare_twin(world: World) -> None:
    """A second binding of the same consumer, on the same staged volume."""
    world.bind(SHARING, cards=["zero"], binding="b1", consumer=TWIN)


def prepare_first_twin(world: World) -> None:
    world.bind(SHARING, cards=["full"], binding="b0", consumer=TWIN)


def prepare_twins(world: World) -> None:
    prepare_first_twin(world)
    prepare_twin(world)


def nothing(_world: World) -> None:
    """The node is new."""


def prepare_disk(world: World) -> None:
    world.bind(Ask(scratch_bytes=2 << 20, scratch="disk"), cards=["full"], binding="b1")


def prepare_quota(world: World) -> None:
    world.bind(Ask(scratch_bytes=2 << 20, scratch="quota"), cards=["full"], binding="b1")


SCENARIOS = {
    "prepare": Scenario(nothing, prepare, {"b1": READY}),
    "release": Scenario(prepare, release, {"b1": RELEASED}),
    "prepare scratch on disk": Scenario(nothing, prepare_disk, {"b1": READY}),
    "release scratch on disk": Scenario(prepare_disk, release, {"b1": RELEASED}),
    "prepare that fails": Scenario(make_impossible, prepare_impossible, {"b1": FAILED}),
    "prepare beside another of the consumer": Scenario(
        prepare_first_twin, prepare_twin, {"b0": READY, "b1": READY}
    ),
    "release beside another of the consumer": Scenario(prepare_twins, release, {"b0": READY, "b1": RELEASED}),
}
QUOTA_SCENARIOS = {
    "prepare": Scenario(nothing, prepare_quota, {"b1": READY}),
    "release": Scenario(prepare_quota, release, {"b1": RELEASED}),
}


class Watch:
    """Called at every point; kills the process at one of them."""

    def __init__(self, at: Point | None) -> None:
        self.at = at
        self.passed: list[Point] = []

    def __call__(self, name: str) -> None:
        point = Point(name, sum(1 for passed in self.passed if passed.name == name))
        self.passed.append(point)
        if point == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def worlds(place: Path, group: Cgroup, mark: Callable[[str], None]) -> Iterator[World]:
    group.create()
    quota = place.parent / "quota"
    world = World(place, group, mark=mark, quota=quota if quota.exists() else None)
    try:
        yield world
    finally:
        world.close()


def killed(place: Path, group: Cgroup, scenario: Scenario, at: Point) -> None:
    """Act in a process of its own, which is killed at a point."""
    pid = os.fork()  # noqa: TID251 - starting an interpreter 300 times would take minutes
    if pid == 0:
        try:
            watch = Watch(None)
            with worlds(place, group, watch) as world:
                scenario.before(world)
                watch.passed.clear()
                watch.at = at
                scenario.act(world)
                os._exit(0)  # as a kill would, without tidying up
        finally:
            os._exit(3)
    _, status = os.waitpid(pid, 0)
    # How often it looks at a child that is still at work is a matter of time.
    assert os.WIFSIGNALED(status) or (status == 0 and at.turn), f"it was not killed at {at}"


def passed(place: Path, group: Cgroup, scenario: Scenario) -> list[Point]:
    """The points of a run without a kill."""
    watch = Watch(None)
    with worlds(place, group, watch) as world:
        scenario.before(world)
        watch.passed.clear()
        scenario.act(world)
        points = [point for point in watch.passed if point.turn < TURNS]
        assert_end(world, scenario)
    return points


def assert_end(world: World, scenario: Scenario) -> None:
    """Everybody is where he should be, and after a release of all nothing is left."""
    for binding, state in scenario.end.items():
        report = world.settled(binding, within=30)
        assert (report.state, report.note) == (state, ""), report
        if state is READY:
            assert world.evidence(binding, "filter")["devices"]
            world.executor.check()
            assert world.executor.entries[binding].drift == "", (
                "the killed one's last child has done nothing since"
            )
            points = [point for work in world.executor.entries[binding].works for point in point_of(work)]
            assert sorted(points) == sorted(point for point in world.mounts() if f"/{binding}/" in point)
    for binding, state in scenario.end.items():
        world.executor.release(op_id=f"end-{binding}", epoch=1, binding=binding)
        last = FAILED if state is FAILED else RELEASED
        world.until(partial(ended, world, binding, last), within=30)
    assert world.leftovers() == []
    assert world.journal.orders() == {}
    assert not any(world.node.groups.children())


def ended(world: World, binding: str, state: BindingState) -> bool:
    return world.report(binding).state is state


def point_of(work: Work) -> list[str]:
    """Where a step mounts something of the binding's own."""
    return [work.step.point] if isinstance(work.step, Bind | Scratch) else []


def again(world: World, scenario: Scenario) -> None:
    """The same order once more, as its caller would give it."""
    with contextlib.suppress(Refused):  # it has ended already
        scenario.act(world)


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
    """All points; or those of some kinds of step, where the others are the same in another scenario."""
    points = passed(fast / "whole", world.group.child("whole"), scenario)
    assert len(points) > 15
    if only:
        points = [point for point in points if point.name.partition(".")[0] in only]
    wrong: Evidence = {}
    for number, at in enumerate(points):
        place, group = fast / str(number), world.group.child(str(number))
        group.create()
        killed(place, group, scenario, at)
        try:
            with worlds(place, group, lambda _: None) as restarted:
                again(restarted, scenario)
                assert_end(restarted, scenario)
        except AssertionError as error:
            wrong[f"{at.name}#{at.turn}"] = str(error)[:600]
        group.remove()
    assert wrong == {}, f"{len(wrong)} of {len(points)} points"


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
        with worlds(place, group, lambda _: None) as restarted:
            report = restarted.settled("b1", within=30)
            assert report.state is (RELEASED if releasing else READY)
            restarted.release("b1")
            assert restarted.leftovers() == []
        group.remove()
