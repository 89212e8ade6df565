"""Snapshots: one instant, in parts, for several readers at a time."""

import pytest

from tests.broker.world import Agent, World, pools_site, site
from xce.broker.core import snapshots
from xce.broker.mirror import Mirror
from xce.model import message as m
from xce.model.value import Absent, Presence


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(0, []), (1, [1]), (100, [100]), (500, [100, 200, 200]), (1301, [100, 200, 400, 500, 101])],
)
def test_parts_of_a_snapshot_grow_up_to_a_bound(count: int, sizes: list[int]) -> None:
    assert snapshots.sizes_of(count) == sizes


def test_a_snapshot_shows_one_instant_although_it_takes_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PART", 3)
    names: dict[str, list[str]] = {f"n{number:02}": [] for number in range(20)}
    world = World(files=site(groups_of=names))
    agents = [Agent(world, name) for name in names]
    for agent in agents:
        agent.join(fan=1)
    before = world.snapshot().locations
    reader = world.peer("reader", "controller")
    start = len(world.inbox(reader))
    world._take(world.broker.handle(reader, m.SnapshotRequest(id="s"), world.now))
    for round_number in range(12):
        world._take(world.broker.turn(world.now))
        for agent in agents:
            agent.sequence += 1
            feed = m.FeedTick("probe", 1, 0, {"fan": 100 + round_number, "lab": "new"})
            world._take(
                world.broker.handle(world.peers[agent.name], m.Report(agent.sequence, [feed]), world.now)
            )
    world._take(world.broker.handle(world.peers["n19"], m.Goodbye(), world.now))
    world.turn()
    begin, *parts, end = world.inbox(reader)[start:]
    assert isinstance(begin, m.SnapshotBegin)
    assert isinstance(end, m.SnapshotEnd)
    assert begin.parts == len(parts) == 7
    mirror = Mirror(begin)
    for part in parts:
        assert isinstance(part, m.SnapshotPart)
        mirror.part(part)
    assert mirror.locations == before
    assert world.broker.state.supply.keep is None, "nothing is kept once it is over"


def test_several_snapshots_are_sent_side_by_side() -> None:
    world = World()
    Agent(world, "node1").join(fan=1)
    for name in ("a", "b", "c"):
        world.peer(name, "controller")
    world.turn()
    for name in ("a", "b", "c"):
        world._take(world.broker.handle(world.peers[name], m.SnapshotRequest(id=name), world.now))
    world.turn()
    parts = [world.got(name, m.SnapshotPart)[0].locations for name in ("a", "b", "c")]
    assert parts[0] == parts[1] == parts[2]


def test_too_many_snapshots_at_a_time_are_told_to_come_again() -> None:
    world = World()
    reader = world.peer("reader", "controller")
    for number in range(17):
        world._take(world.broker.handle(reader, m.SnapshotRequest(id=str(number)), world.now))
    world.turn()
    assert [failed.code for failed in world.got("reader", m.Failed)] == ["busy"]
    assert len(world.got("reader", m.SnapshotEnd)) == 16


def test_a_snapshot_of_some_locations_has_just_those() -> None:
    world = World()
    reader = world.peer("reader", "controller")
    world.say(reader, m.SnapshotRequest(id="s", only=["host:node2", "host:nowhere"]))
    (part,) = world.got("reader", m.SnapshotPart)
    assert list(part.locations) == ["host:node2"]


def test_a_snapshot_in_json_says_the_same() -> None:
    world = World()
    Agent(world, "node1").join(fan=1, lab="ä", tags=["x"], ok=True)
    packed, text = world.snapshot(), world.snapshot(json=True)
    assert packed.locations == text.locations


def test_a_reader_that_is_gone_costs_nothing_more() -> None:
    world = World()
    reader = world.peer("reader", "controller")
    world._take(world.broker.handle(reader, m.SnapshotRequest(id="s"), world.now))
    world._take(world.broker.turn(world.now))
    world.gone("reader")
    assert len(world.broker.state.snapshots) == 0
    assert world.broker.state.supply.keep is None


def test_quality_counts_readings_and_hosts() -> None:
    world = World(files=pools_site())
    agent = Agent(world, "node1")
    agent.join(
        fan=1,
        lab="a",
        ok=Absent(Presence.UNKNOWN),
        tags=Absent(Presence.NOT_APPLICABLE),
        r1m=Absent(Presence.NEVER_SEEN),
    )
    agent.state(ttl_ms=5000)
    world.wait(8)
    quality = world.snapshot().quality
    assert (quality.value, quality.unknown, quality.stale) == (0, 1, 2)
    assert (quality.never_seen, quality.not_applicable) == (2, 1)
    assert quality.hosts == {"available": 1, "expected": 2}
