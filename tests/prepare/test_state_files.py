"""Every file that the node keeps for claims emptied, torn or lost, one by one, in the middle of things.

By default each file in one of these ways; with `XCE_TEST_FULL=1` in all of them, and at more points.

Which files there are is what is found there, at points spread over prepare and release, and while a job runs.
A node that does not know any more what it holds says so, takes no order, ends and deletes nothing; it goes on
once the cluster has said what is there. Nobody's job notices.
"""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.damage import Damage, to_each
from tests.prepare.points import (
    READY,
    RELEASED,
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
from tests.prepare.test_journal import as_killed
from tests.prepare.world import DENIED, FULL_ASK, OTHER, OWN, World
from xce.linux.cgroup import Cgroup
from xce.model.claim import ENDED, Ask
from xce.prepare.execute import Known, Refused

pytestmark = [pytest.mark.root, pytest.mark.slow]

FEWER = 2
"""Points than elsewhere: each is passed with every file and every damage."""


def files_of(world: World) -> list[str]:
    """All that it keeps, but for what is the jobs' own."""
    found = []
    for name in ("state", "run", "cdi"):
        for path in sorted((world.place / name).rglob("*")):
            mounted = any(path.is_relative_to(point) for point in world.mounts())
            if path.is_file() and not mounted:
                found.append(str(path.relative_to(world.place)))
    return found


def damage(world: World, done: Damage) -> None:
    """The agent was killed, and this is what the disk has made of its file."""
    as_killed(world)
    done.to(world.place)
    world.start()


def taken_up(world: World) -> None:
    """The cluster says what it knows of this node, and the node is whole again."""
    order = world.order(FULL_ASK, cards=["full"], binding="b1")
    world.take_up(Known("op-b1", 1, *order, {}))


def holds_on(world: World) -> None:
    """Recovering: it says why, takes no order, and says of nothing that it has ended."""
    assert "the journal was damaged" in world.executor.recovering
    for _ in range(3):
        world.executor.advance()
    with pytest.raises(Refused, match="recovering"):
        world.bind(Ask(), cards=["full"], binding="b99")
    if world.journal.tombstone("b1") is None:
        with pytest.raises(Refused, match="recovering"):
            world.executor.release(op_id="end-b1", epoch=1, binding="b1")
    told = [*world.executor.reports(), *world.executor.news()]
    assert not [report for report in told if report.state in ENDED]


@contextlib.contextmanager
def struck(place: Path, group: Cgroup, scenario: Scenario, at: Point | None) -> Iterator[World]:
    """A node that was struck at a point; None: when all was done."""
    watch = Watch(cut)
    with worlds(place, group, watch) as node:
        scenario.before(node)
        watch.begin(at)
        with contextlib.suppress(PowerCut):
            scenario.act(node)
        watch.begin()
        yield node


def every_damage(
    fast: Path, world: World, scenario: Scenario, at: Point | None
) -> Iterator[tuple[Damage, World]]:
    """The node at this point, once for each file and damage."""
    group = world.group.child("look")
    with struck(fast / "look", group, scenario, at) as node:
        files = files_of(node)
    group.remove()
    for number, found in enumerate(to_each(files)):
        group = world.group.child(str(number))
        with struck(fast / str(number), group, scenario, at) as node:
            yield found, node
        group.kill()
        group.remove()


@pytest.mark.parametrize("name", ["prepare", "release"])
def test_c_sta_01_a_damaged_file_in_the_middle_of_things_loses_nothing(
    fast: Path, world: World, name: str
) -> None:
    scenario = SCENARIOS[name]
    points = passed(fast / "whole", world.group.child("whole"), scenario)
    wrong, count = {}, 0
    for at in sample(points)[::FEWER]:
        for found, node in every_damage(fast / f"{at.name}-{at.turn}", world, scenario, at):
            count += 1
            try:
                goes_on(node, scenario, found)
            except (AssertionError, Refused) as error:
                wrong[f"{found} at {at}"] = repr(error)[:600]
    assert not wrong, "\n".join(f"{where}: {what}" for where, what in wrong.items())
    assert count >= 10, "journal and head at some points"


def goes_on(node: World, scenario: Scenario, found: Damage) -> None:
    damage(node, found)
    if node.executor.recovering:
        holds_on(node)
        taken_up(node)
        if node.journal.tombstone("b1") is None:
            node.over("b1")
    again(node, scenario)
    assert_end(node, scenario)


FRAME = 24 + 4096
"""Of SQLite's log, whose head has 32 bytes."""


def test_c_sta_01_a_log_that_ends_early_leaves_no_mount_behind_a_release(fast: Path, world: World) -> None:
    """What was noted for a volume's mount was not waited for, so nobody sees that it is missing."""
    for count in range(8):
        group = world.group.child(str(count))
        with struck(fast / str(count), group, SCENARIOS["prepare"], None) as node:
            as_killed(node)
            log = node.place / "state/claims.sqlite-wal"
            log.write_bytes(log.read_bytes()[: 32 + count * FRAME])
            node.start()
            if node.executor.recovering:
                taken_up(node)
                node.over("b1")
            again(node, SCENARIOS["release"])
            assert node.report("b1").state is RELEASED
            assert node.leftovers() == []
        group.remove()


@contextlib.contextmanager
def job(node: World) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the consumer's."""
    process = subprocess.Popen(node.inside("b1", ["sleep", "60"]))
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def test_c_sta_01_a_damaged_file_under_a_job_harms_it_in_nothing(fast: Path, world: World) -> None:
    scenario = SCENARIOS["prepare"]
    wrong, count = {}, 0
    for found, node in every_damage(fast, world, scenario, None):
        count += 1
        with job(node) as process:
            try:
                unharmed(node, process, found)
            except (AssertionError, Refused) as error:
                wrong[str(found)] = repr(error)[:600]
    assert not wrong, "\n".join(f"{where}: {what}" for where, what in wrong.items())
    assert count >= 6, "journal, its log, its head, and what the job was given as files"


def unharmed(node: World, process: "subprocess.Popen[bytes]", found: Damage) -> None:
    results = [Path(node.variables("b1")[f"XCE_DIR_{name}"], "result") for name in ("OUT", "SCRATCH")]
    files = [node.place / path for path in files_of(node) if not path.startswith("state")]
    texts = {path: path.read_bytes() for path in files}
    for result in results:
        result.write_text("precious")

    def as_it_was() -> None:
        assert process.poll() is None
        assert [result.read_text() for result in results] == ["precious", "precious"]
        assert node.opened_in("job-b1", OWN, OTHER) == ["ok", DENIED]

    damage(node, found)
    if node.executor.recovering:
        holds_on(node)
        as_it_was()
        taken_up(node)
    assert node.over("b1").state is READY
    as_it_was()
    node.executor.check()
    assert node.report("b1").note == ""
    assert {path: path.read_bytes() for path in files} == texts
    process.kill()
    process.wait(10)
    assert_end(node, SCENARIOS["prepare"])
