"""The agent is killed at every point of staging, publishing, unpublishing and unstaging: C-CSI-05.

The restarted node goes on by itself, with a new helper; the plugin goes on with what it was asked. The same
where the machine is started anew, and on a full disk.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.csi_node_helper.world import Plugin
from tests.prepare.csi_world import SIZE, WORDS, CsiWorld, asked
from tests.prepare.points import WHOLE, Point, PowerCut, Scenario, Watch, cut, sample
from tests.prepare.test_crash_matrix import die
from tests.prepare.test_full_disk_matrix import Disk, Shortage
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
    points = points_of(fast, world, plugin, name)
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
                came_to_its_end(csi, name)
        except AssertionError as error:
            wrong[at.name] = str(error)[:600]
        group.remove()
    assert not wrong, "\n".join(f"{where}: {what}" for where, what in wrong.items())


def came_to_its_end(csi: CsiWorld, name: str) -> None:
    """By itself, and after a release nothing is left."""
    end = SCENARIOS[name][2]
    csi.until(lambda: csi.report("b1").state is end)
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


def points_of(fast: Path, world: World, plugin: Plugin, name: str) -> list[Point]:
    """Those of the steps with a plugin; the others are in other scenarios."""
    watch = Watch(lambda: None)
    whole = world.group.child("whole")
    whole.create()
    run(CsiWorld(fast / "whole", whole, plugin=plugin, mark=watch), watch, name, None)
    wanted = ("block.", "filter.") if "device" in name else "csi."
    points = [point for point in watch.passed if point.name.startswith(wanted) and point.turn == 0]
    assert PASSED[name] <= {point.name for point in points}
    return points


@pytest.mark.parametrize("name", SCENARIOS)
def test_c_csi_05_rebooted_at_every_point_it_is_staged_anew_or_gone(
    fast: Path, world: World, plugin: Plugin, name: str
) -> None:
    """The plugin's processes and mounts have gone with the old boot, too."""
    wrong = {}
    for number, at in enumerate(sample(points_of(fast, world, plugin, name))):
        group = world.group.child(str(number))
        group.create()
        watch = Watch(cut)
        with closing(CsiWorld(fast / str(number), group, plugin=plugin, mark=watch)) as csi:
            SCENARIOS[name][0](csi)
            watch.begin(at)
            with contextlib.suppress(PowerCut):
                SCENARIOS[name][1](csi)
            csi.reboot()
            try:
                if name == "grow":
                    provide(csi)  # what the provider says is nowhere on disk
                came_to_its_end(csi, name)
            except AssertionError as error:
                wrong[at.name] = str(error)[:600]
        group.remove()
    assert not wrong, "\n".join(f"{where}: {what}" for where, what in wrong.items())


@pytest.mark.parametrize("name", SCENARIOS)
def test_c_sta_04_with_a_full_disk_at_every_point_a_volume_is_not_lost(
    fast: Path, world: World, plugin: Plugin, name: str
) -> None:
    before, act, end = SCENARIOS[name]
    wrong, seen = {}, []
    for number, at in enumerate(sample(points_of(fast, world, plugin, name))):
        place, group = fast / str(number), world.group.child(str(number))
        group.create()
        place.mkdir()
        shortage = Shortage(Disk(place / "state"))
        with closing(CsiWorld(place, group, plugin=plugin, mark=shortage.watch)) as csi:
            try:
                shortage.play(csi, Scenario(before, act, {"b1": end}), at)  # type: ignore[arg-type]
                came_to_its_end(csi, name)
            except AssertionError as error:
                wrong[at.name] = str(error)[:600]
        shortage.disk.close()
        seen.append(shortage.held or shortage.refused)
        group.remove()
    assert not wrong, "\n".join(f"{where}: {what}" for where, what in wrong.items())
    assert any(seen) or not WHOLE, "the disk was never full"
