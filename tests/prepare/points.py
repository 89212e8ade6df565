"""The points at which something can happen to a node: all that its work passes, and what is done there.

They are those that a run passes in which nothing happens: before and after each write to the journal, and
before, in and after each step. Nothing names them here, so a new kind of step is covered when it is in the
order. What happens there is the tests' business: a kill, a reboot, a full disk.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.prepare.world import FULL_ASK, World
from xce.linux.cgroup import Cgroup
from xce.model.claim import Ask, BindingState, Consumer, MountAsk, SharedAsk
from xce.prepare.execute import Refused
from xce.prepare.journal import Work
from xce.prepare.step import Bind, Scratch

READY, RELEASED, FAILED = BindingState.READY, BindingState.RELEASED, BindingState.FAILED
WHOLE = "XCE_TEST_FULL" in os.environ
SPREAD = 5
TURNS = 4
"""Of one point in one run: more are looks at a child that is still at work."""
IMPOSSIBLE = Ask(
    mounts=FULL_ASK.mounts,
    scratch_bytes=1 << 20,
    ports=FULL_ASK.ports,
    shared=[SharedAsk(volume="home"), SharedAsk(volume="foreign")],
)
"""Fails late: on the last volume the user's directory is somebody else's."""


class PowerCut(BaseException):
    """No code of the product sees it coming."""


def cut() -> None:
    """To be put at a point."""
    raise PowerCut


class Point(NamedTuple):
    """The `turn`th time that `name` is passed."""

    name: str
    turn: int


class Scenario(NamedTuple):
    """What is done with a node while something happens to it; and what must be true in the end."""

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
    world.over("b1")  # blocked for a moment is not the end


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
    """Called at every point; at one of them something happens."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then
        self.at: Point | None = None
        self.passed: list[Point] = []

    def __call__(self, name: str) -> None:
        point = Point(name, sum(1 for passed in self.passed if passed.name == name))
        self.passed.append(point)
        if point == self.at:
            self.at = None
            self.then()

    def begin(self, at: Point | None = None) -> None:
        """From here on, and it happens `at` that point."""
        self.passed.clear()
        self.at = at


def sample(points: Sequence[Point]) -> list[Point]:
    """Some of them, spread over all; with `XCE_TEST_FULL=1` all."""
    return list(points if WHOLE else points[1::SPREAD])


def nowhere(_name: str) -> None:
    """At no point anything happens."""


@contextlib.contextmanager
def worlds(place: Path, group: Cgroup, mark: Callable[[str], None]) -> Iterator[World]:
    group.create()
    quota = place.parent / "quota"
    world = World(place, group, mark=mark, quota=quota if quota.exists() else None)
    try:
        yield world
    finally:
        world.close()


def passed(place: Path, group: Cgroup, scenario: Scenario) -> list[Point]:
    """The points of a run in which nothing happens."""
    watch = Watch(lambda: None)
    with worlds(place, group, watch) as world:
        scenario.before(world)
        watch.begin()
        scenario.act(world)
        points = [point for point in watch.passed if point.turn < TURNS]
        assert_end(world, scenario)
    return points


def assert_end(world: World, scenario: Scenario) -> None:
    """Everybody is where he should be, and after a release of all nothing is left."""
    for binding, state in scenario.end.items():
        report = world.over(binding)
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
