"""The agent is killed at every point of staging, publishing, unpublishing and unstaging: C-CSI-05.

The restarted node goes on by itself, with a new helper; the plugin goes on with what it was asked.
"""

import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.csi_node_helper.world import Plugin
from tests.prepare.csi_world import SIZE, WORDS, CsiWorld, asked
from tests.prepare.points import Point, Watch
from tests.prepare.test_crash_matrix import die
from tests.prepare.world import World
from xce.model.claim import BindingState
from xce.prepare.csi.survey import in_use

pytestmark = [pytest.mark.root, pytest.mark.slow]
READY, RELEASED = BindingState.READY, BindingState.RELEASED


def prepare(csi: CsiWorld) -> None:
    csi.bind(asked(), binding="b1")


def prepare_device(csi: CsiWorld) -> None:
    csi.bind(asked("raw"), binding="b1")


def release(csi: CsiWorld) -> None:
    csi.release("b1")
    csi.until(lambda: csi.report("b1").state is RELEASED)


def provide(csi: CsiWorld) -> None:
    csi.provide(WORDS, binding="b1")
    csi.settled("b1")


def grow(csi: CsiWorld) -> None:
    csi.provide(WORDS | {"capacity_bytes": str(SIZE)}, binding="b1")
    csi.until(lambda: next(iter(in_use(csi.executor))).bytes == SIZE)


def nothing(csi: CsiWorld) -> None:
    """The node is new."""


Act = Callable[[CsiWorld], None]
SCENARIOS: dict[str, tuple[Act, Act, BindingState]] = {
    "prepare": (nothing, prepare, READY),
    "release": (prepare, release, RELEASED),
    "prepare a device": (nothing, prepare_device, READY),
    "release a device": (prepare_device, release, RELEASED),
    "grow": (provide, grow, READY),
}
PASSED = {
    "prepare": {"csi.staged", "csi.published"},
    "release": {"csi.unpublished", "csi.unstaged"},
    "prepare a device": {"block.point-made", "block.mounted", "filter.attached"},
    "release a device": {"block.before-undo", "filter.before-undo"},
    "grow": {"csi.tended.before-write", "csi.tended.after-write"},
}
"""Without these the scenario is not what it says."""


def run(made: CsiWorld, watch: Watch, name: str, at: Point | None) -> None:
    before, act, _ = SCENARIOS[name]
    with closing(made) as csi:
        before(csi)
        watch.begin(at)
        act(csi)


@pytest.mark.parametrize("name", SCENARIOS)
def test_c_csi_05_killed_at_every_point_it_goes_on_by_itself(
    fast: Path, world: World, plugin: Plugin, name: str
) -> None:
    watch = Watch(die)
    whole = world.group.child("whole")
    whole.create()
    run(CsiWorld(fast / "whole", whole, plugin=plugin, mark=watch), watch, name, None)
    wanted = ("block.", "filter.") if "device" in name else "csi."
    points = [point for point in watch.passed if point.name.startswith(wanted) and point.turn == 0]
    passed = {point.name for point in points}
    assert PASSED[name] <= passed
    end = SCENARIOS[name][2]
    wrong = {}
    for number, at in enumerate(points):
        place, group = fast / str(number), world.group.child(str(number))
        group.create()
        pid = os.fork()  # noqa: TID251 - it is killed, and this is what it takes
        if pid == 0:
            try:
                watch = Watch(die)
                run(CsiWorld(place, group, plugin=plugin, mark=watch), watch, name, at)
            finally:
                os._exit(3)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"it was not killed at {at}"
        assert os.WTERMSIG(status) == signal.SIGKILL
        try:
            with closing(CsiWorld(place, group, plugin=plugin)) as csi:
                csi.until(lambda csi=csi: csi.report("b1").state is end)  # type: ignore[misc]
                if name == "grow":
                    grow(csi)
                if end is READY:
                    assert len(csi.at(csi.target())) == 1
                    if "device" in name:
                        rdev = os.stat(csi.target()).st_rdev
                        assert (csi.place_of("b1") / "device").stat().st_rdev == rdev
                    else:
                        assert (csi.place_of("b1") / "data").read_text() == "payload of vol1"
                        assert len(csi.at(csi.staging())) == 1
                    release(csi)
                assert csi.leftovers() == []
        except AssertionError as error:
            wrong[at.name] = str(error)[:600]
        group.remove()
    assert wrong == {}, f"{len(wrong)} of {len(points)} points"
