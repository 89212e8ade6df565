"""The machine is started anew at every point: the right end, and nothing of the old boot is left.

The journal and what lies on disks is still there; mounts, control groups, device filters and /run are not,
and there is another boot id. At every other point the order is not given again if the node has it on record.
"""

import contextlib
from pathlib import Path

import pytest

from tests.prepare.points import (
    READY,
    SCENARIOS,
    Point,
    PowerCut,
    Scenario,
    Watch,
    again,
    assert_end,
    cut,
    passed,
    sample,
    worlds,
)
from tests.prepare.world import World
from xce.linux.cgroup import Cgroup

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.mark.parametrize("name", SCENARIOS)
def test_c_sta_05_rebooted_at_every_point_nothing_is_lost_and_nothing_left(
    fast: Path, world: World, name: str
) -> None:
    scenario = SCENARIOS[name]
    points = passed(fast / "whole", world.group.child("whole"), scenario)
    wrong = {}
    for number, at in enumerate(sample(points)):
        group = world.group.child(str(number))
        try:
            rebooted(fast / str(number), group, scenario, at, told=number % 2 == 0)
        except AssertionError as error:
            wrong[f"{at.name}#{at.turn}"] = str(error)[:600]
        group.remove()
    assert not wrong, "\n".join(f"{where}: {what}" for where, what in wrong.items())


def rebooted(place: Path, group: Cgroup, scenario: Scenario, at: Point, *, told: bool) -> None:
    watch = Watch(cut)
    with worlds(place, group, watch) as node:
        scenario.before(node)
        watch.begin(at)
        with contextlib.suppress(PowerCut):
            scenario.act(node)
        assert watch.at is None or at.turn, f"it was not rebooted at {at}"
        watch.begin()
        node.reboot()
        node.executor.advance()
        assert READY not in {report.state for report in node.executor.reports()}, "by the record alone"
        node.executor.resume(node.instances)
        for binding in scenario.end:
            if not told and binding in node.executor.entries:
                node.over(binding)
        again(node, scenario)
        assert_end(node, scenario)
