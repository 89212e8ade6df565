"""Snapshots and the change stream: one instant, no gap, and a mirror that equals the map whatever happens."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.test_core_values import follow, pools_site
from tests.broker.world import Agent, World, site
from xce.broker.core import changes, snapshots
from xce.broker.core.changes import Changes
from xce.broker.core.effect import Send, SendBytes
from xce.broker.mirror import Mirror
from xce.model import message as m
from xce.model.configuration import BrokerFile
from xce.model.instance import Instance, Inventory
from xce.model.value import Absent, Presence


def caught_up(world: World, watcher: str, mirror: Mirror, start: int) -> Mirror:
    """The mirror with every delta that its watcher got since `start`."""
    for delta in world.inbox(watcher)[start:]:
        if isinstance(delta, m.Delta):
            mirror.apply(delta)
    return mirror


def same(mirror: Mirror, snapshot: Mirror) -> None:
    """What one holds is what the other holds, field by field."""
    assert mirror.locations == snapshot.locations
    assert (mirror.claims, mirror.bindings) == (snapshot.claims, snapshot.bindings)
    assert (mirror.position, mirror.revision, mirror.types) == (
        snapshot.position,
        snapshot.revision,
        snapshot.types,
    )


# --------------------------------------------------------------------------------------------- snapshots


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


# ----------------------------------------------------------------------------------------------- watches


def test_a_watch_from_a_snapshot_has_no_gap_and_no_overlap() -> None:
    """C-MSG-05: a consumer that starts at any moment holds what the broker holds."""
    world = World()
    agents = [Agent(world, name) for name in ("node1", "node2", "node3")]
    for agent in agents:
        agent.join(fan=0)
    for start in range(20):
        name = f"late{start}"
        mirror = world.snapshot(name=name)
        begun = len(world.inbox(name))
        agents[start % 3].report(fan=start, lab=f"before {start}")
        world.say(name, m.WatchRequest(id="w", since=mirror.position, credit=1000))
        agents[(start + 1) % 3].report(lab=None)
        agents[start % 3].report(fan=start + 0.5)
        caught_up(world, name, mirror, begun)
        same(mirror, world.snapshot(name=name))


def test_a_watch_in_json_says_the_same() -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=0)
    world.peer("text", "controller")
    packed, text = world.snapshot(name="packed"), world.snapshot(name="text", json=True)
    for name, mirror in (("packed", packed), ("text", text)):
        world.say(name, m.WatchRequest(id="w", since=mirror.position, credit=1000))
    marks = {name: len(world.inbox(name)) for name in ("packed", "text")}
    agent.report(fan=1.5, lab="ä", tags=["x"], ok=Absent(Presence.UNKNOWN, "why"))
    caught_up(world, "packed", packed, marks["packed"])
    caught_up(world, "text", text, marks["text"])
    same(packed, text)
    assert isinstance(packed.locations["host:node1"].values["ok"], Absent)


def test_one_turn_is_one_delta_however_much_came() -> None:
    world = World()
    agents = [Agent(world, name) for name in ("node1", "node2", "node3")]
    for agent in agents:
        agent.join(fan=0)
    watcher = follow(world)
    for agent in agents:
        for value in (1, 2):
            agent.sequence += 1
            tick = m.Report(agent.sequence, [m.FeedTick("probe", 1, 0, {"fan": value})])
            world._take(world.broker.handle(world.peers[agent.name], tick, world.now))
    world.turn()
    (delta,) = world.got(watcher, m.Delta)
    assert delta.values == {f"host:node{number}": {"fan": 2} for number in (1, 2, 3)}


def test_nothing_new_is_no_delta() -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=0)
    watcher = follow(world)
    agent.report(fan=0, age_ms=10)
    agent.heartbeat(probe=5)
    world.wait(3)
    assert world.got(watcher, m.Delta) == []


def test_a_fact_alone_moves_the_revision_of_followers() -> None:
    world = World()
    watcher = follow(world)
    world.ask(world.peer("alice", "admin"), m.KeyAdd(id="1", name="x", role="agent", public="x" * 40))
    assert world.got(watcher, m.Delta)[-1].revision == world.facts[-1].revision


def test_without_credit_nothing_comes_and_with_it_everything() -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=0)
    peer = world.peer("slow", "controller")
    mirror = world.snapshot(name="slow")
    world.say(peer, m.WatchRequest(id="w", since=mirror.position, credit=2))
    for value in range(1, 200):
        agent.report(fan=value)
    assert [delta.values["host:node1"]["fan"] for delta in world.got("slow", m.Delta)] == [1, 2]
    world.say(peer, m.Credit(id="w", more=1000))
    deltas = world.got("slow", m.Delta)
    assert [delta.position.sequence for delta in deltas] == list(
        range(mirror.position.sequence + 1, mirror.position.sequence + 200)
    )
    for delta in deltas:
        mirror.apply(delta)
    same(mirror, world.snapshot(name="slow"))


def test_who_is_too_slow_for_the_ring_is_told_and_forgotten() -> None:
    world = World(config=BrokerFile(keep_deltas=10))
    agent = Agent(world, "node1")
    agent.join(fan=0)
    since = world.snapshot(name="slow").position
    world.say("slow", m.WatchRequest(id="w", since=since, credit=1))
    for value in range(1, 30):
        agent.report(fan=value)
    (lost,) = world.got("slow", m.Lost)
    assert "too slow" in lost.reason
    assert (world.broker.state.changes.cut, len(world.broker.state.changes)) == (1, 0)
    lost = world.ask("slow", m.WatchRequest(id="w2", since=since))
    assert isinstance(lost, m.Lost)
    assert "is not kept any more" in lost.reason


def test_the_ring_is_bounded_in_bytes_too() -> None:
    ring = Changes(1, "i", keep=1000, keep_bytes=10_000)
    for number in range(100):
        change = m.LocationChange(values={"lab": "x" * 1000})
        ring.publish({}, {f"host:n{number}": change}, [], None, revision=1, broker_ms=0)
    assert ring._bytes <= 10_000
    assert len(ring._ring) < 10


@pytest.mark.parametrize(
    ("since", "reason"),
    [
        (m.Position(epoch=1, incarnation="other", sequence=0), "another run of the broker"),
        (m.Position(epoch=9, incarnation="i1", sequence=0), "another run of the broker"),
        (m.Position(epoch=1, incarnation="i1", sequence=99), "there is no change 99 yet"),
        (m.Position(epoch=1, incarnation="i1", sequence=-1), "there is no change -1 yet"),
    ],
)
def test_a_position_that_is_not_of_this_stream_is_refused(since: m.Position, reason: str) -> None:
    world = World()
    lost = world.ask(world.peer("reader", "controller"), m.WatchRequest(id="w", since=since))
    assert isinstance(lost, m.Lost)
    assert reason in lost.reason


def test_unwatch_ends_a_stream_and_a_new_watch_with_its_id_replaces_it() -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=0)
    watcher = follow(world)
    since = world.broker.state.changes.position()
    world.ask(watcher, m.WatchRequest(id="w", since=since, credit=1000))
    agent.report(fan=1)
    assert len(world.got(watcher, m.Delta)) == 1
    world.say(watcher, m.Unwatch(id="w"))
    agent.report(fan=2)
    assert len(world.got(watcher, m.Delta)) == 1


def test_a_peer_that_does_not_read_loses_what_it_follows_and_is_told_when_it_reads() -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=0)
    watcher = follow(world)
    peer = world.peers[watcher]
    world._take(world.broker.undelivered(SendBytes(peer, b"")))
    assert len(world.broker.state.changes) == 0
    before = len(world.inbox(watcher))
    effects = world.broker.second(world.now + 1)
    (lost,) = [effect for effect in effects if isinstance(effect, Send)]
    world._take(world.broker.undelivered(lost))
    world.wait(2)
    assert [type(one) for one in world.inbox(watcher)[before:]] == [m.Lost], (
        "still owed while it does not read"
    )


def test_types_that_change_are_in_the_stream() -> None:
    world = World()
    mirror = world.snapshot(name="w")
    world.say("w", m.WatchRequest(id="w", since=mirror.position, credit=100))
    start = len(world.inbox("w"))
    world._take(world.broker.reload(site(types={}), world.now))
    world.turn()
    assert caught_up(world, "w", mirror, start).types == {}
    same(mirror, world.snapshot(name="w"))


@pytest.mark.parametrize("json", [False, True])
def test_a_location_that_cannot_be_encoded_costs_neither_the_others_nor_the_numbering(*, json: bool) -> None:
    world = World()
    for name in ("node1", "node2"):
        Agent(world, name).join(fan=1, lab="x")
    world.peer("reader", "controller")
    mirror = world.snapshot(name="w")
    follow(world, "w")
    start = len(world.inbox("w"))
    supply = world.broker.state.supply

    for round_number, text in enumerate(["half \ud800", "half \ud800 again", "whole", "whole again"]):
        supply.set_value(supply.hosts["node1"], "lab", text)
        supply.set_value(supply.hosts["node2"], "fan", 2 + round_number)
        world.turn()
        caught_up(world, "w", mirror, start)
        start = len(world.inbox("w"))
        assert ("host:node1" in mirror.locations) is ("half" not in text)
        assert mirror.locations["host:node2"].values["fan"] == 2 + round_number
        same(mirror, world.snapshot(json=json))
    assert world.broker.state.counts["unencodable"] == 2
    assert world.notes()[-1] == "cannot encode 1 locations, they are left out: 'host:node1'"


@given(st.text(max_size=200), st.text(max_size=200))
def test_an_id_is_put_into_encoded_answers(old: str, request_id: str) -> None:
    delta = m.Delta(
        id=old,
        position=m.Position(epoch=1, incarnation='"id":""', sequence=1),
        revision=1,
        broker_ms=1,
        locations={'host:"id":""': m.LocationChange(values={"id": ""})},
    )
    expected = msgspec.structs.replace(delta, id=request_id)
    packed = changes.with_id(msgspec.msgpack.encode(delta), old, request_id)
    text = changes.with_id_json(msgspec.json.encode(delta), old, request_id)
    assert msgspec.msgpack.decode(packed, type=m.Delta) == expected
    assert msgspec.json.decode(text, type=m.Delta) == expected


# ---------------------------------------------------------------------------------------- whatever happens


class Chaos:
    """Does one random thing after the other to a world."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.agents: dict[str, Agent] = {}
        self.orders = 0

    def step(self) -> None:
        self.random.choice(
            [self.report, self.report, self.report, self.rare, self.link, self.order, self.files, self.wait]
        )()

    def agent(self) -> Agent:
        name = self.random.choice(["node1", "node2", "node3", "stray"])
        agent = self.agents.get(name)
        if agent is None or self.world.peers[agent.peer].host is None:
            agent = self.agents[name] = Agent(
                self.world,
                name,
                peer=f"{name}-{self.random.random()}",
                key=name,
                nonce=str(self.random.random()),
            )
            if not isinstance(agent.hello(), m.Welcome):
                return self.agent_that_works()
        return agent

    def agent_that_works(self) -> Agent:
        for agent in self.agents.values():
            if self.world.peers[agent.peer].host is not None:
                return agent
        self.world.now += 100  # everybody who was there is silent by now
        return self.agent()

    def value(self) -> Any:
        return self.random.choice(
            [
                1,
                2.5,
                True,
                "a",
                "b\n",
                ["x"],
                ["b", "a"],
                None,
                9001,
                Absent(Presence.UNKNOWN, "broken"),
                float("nan"),
            ]
        )

    def report(self) -> None:
        names = ["fan", "lab", "ok", "tags", "r1m", "rack", "nonsense", "lic"]
        values = {self.random.choice(names): self.value() for _ in range(self.random.randint(0, 5))}
        reporter = self.random.choice(["probe", "other"])
        if self.random.random() < 0.3:  # enough numbers to be taken together
            values |= {
                name: self.random.choice([0, 1.5, 7]) for name in ("r15s", "r1m", "r15m", "ut", "pg", "io")
            }
        full = self.random.random() < 0.2
        self.agent().report(reporter, full=full, age_ms=self.random.choice([0, 15_000]), **values)

    def rare(self) -> None:
        agent = self.agent()
        reporter = self.random.choice(["probe", "other"])
        conditions = [m.ReportedCondition(name="bad", hold=True)] if self.random.random() < 0.3 else []
        state = m.ReporterState(state="waiting", ttl_ms=self.random.choice([0, 5000]), conditions=conditions)
        units = [Instance(id=str(number), kind="gpu") for number in range(self.random.randint(0, 3))]
        inventory = Inventory(reporter=reporter, generation=1, complete=True, instances=units)
        message: msgspec.Struct = self.random.choice(
            [
                m.ReporterNews(reporters={reporter: state}),
                m.ReporterNews(reporters={reporter: None}),
                m.ReporterNews(reporters={reporter: state}, full=True),
                m.InventoryNews(inventory=inventory),
                m.InventoryGone(reporter=reporter),
            ]
        )
        self.world.say(agent.peer, message)

    def link(self) -> None:
        agent = self.agent()
        if self.random.random() < 0.5:
            self.world.gone(agent.peer)
            del self.agents[agent.name]
        else:
            self.world.say(agent.peer, m.Goodbye(expected_s=self.random.choice([0, 5])))

    def order(self) -> None:
        self.orders += 1
        op_id = f"op{self.orders}"
        host = self.random.choice(["node1", "stray", "new"])
        place = self.random.choice([f"host:{host}", "pool:matlab", "group:gpu"])
        order: Any = self.random.choice(
            [
                m.HostAdd(id=op_id, host=host, groups=["gpu"], join_within_s=self.random.choice([0, 5])),
                m.HostAdmit(id=op_id, host=host),
                m.HostDrain(id=op_id, host=host, reason="x"),
                m.HostUndrain(id=op_id, host=host),
                m.HostRelease(id=op_id, host=host, reason="x"),
                m.HoldAdd(id=op_id, location=place, reason="x"),
                m.HoldRelease(id=op_id, location=place, owner="admin:chaos"),
                m.PoolSet(id=op_id, pool="matlab", resource="lic", borrowed=self.orders),
            ]
        )
        self.world.ask(self.world.peer("chaos", "admin"), order)

    def files(self) -> None:
        hosts = {name: ["gpu"] for name in ("node1", "node2", "node3") if self.random.random() < 0.7}
        values = {f"host:{name}": {"lab": "fixed"} for name in hosts if self.random.random() < 0.3}
        pools = {} if self.random.random() < 0.3 else pools_site().pools
        files = pools_site(groups_of=hosts, values=values, pools=pools, members={"gpu": []})
        self.world._take(self.world.broker.reload(files, self.world.now))
        self.world.turn()

    def wait(self) -> None:
        self.world.wait(self.random.choice([1, 7, 40]), step=2)


@given(st.integers(0, 2**32), st.integers(5, 50))
@settings(max_examples=25, deadline=None)
def test_a_mirror_equals_the_map_whatever_happens(seed: int, steps: int) -> None:
    """G13: snapshot, deltas, and the next snapshot agree in every field, with every kind of change mixed."""
    world = World(files=pools_site())
    chaos = Chaos(world, seed)
    mirror = world.snapshot(name="watcher")
    world.say("watcher", m.WatchRequest(id="w", since=mirror.position, credit=1 << 20))
    start = len(world.inbox("watcher"))
    for _ in range(steps):
        chaos.step()
    world.turn()
    caught_up(world, "watcher", mirror, start)
    same(mirror, world.snapshot(name="watcher"))
    assert world.broker.state.counts["internal_errors"] == 0


@given(st.integers(0, 2**32))
@settings(max_examples=12, deadline=None)
def test_after_a_restart_the_map_shows_what_is_durable(seed: int) -> None:
    """Replay equals state field by field, and everything that a restart must keep is shown as before."""
    world = World(files=pools_site())
    chaos = Chaos(world, seed)
    for _ in range(40):
        chaos.step()
    before = world.snapshot()
    again = world.restart()
    ledger, replayed = world.broker.state.journal.ledger, again.broker.state.journal.ledger
    assert replayed.epoch == ledger.epoch + 1
    for name in ("hosts", "holds", "pools", "types"):
        assert getattr(replayed, name) == getattr(ledger, name)
    after = again.snapshot()
    assert after.types == before.types
    for key, view in before.locations.items():
        if key not in after.locations:
            assert view.source.value in {"discovered", "reporter"} or key.startswith("host:")
            continue
        now = after.locations[key]
        durable = {hold.owner for hold in view.holds if not hold.owner.startswith(("reporter:", "broker:"))}
        assert durable == {
            hold.owner for hold in now.holds if not hold.owner.startswith(("reporter:", "broker:"))
        }
        assert (now.source, now.groups, now.amounts) == (view.source, view.groups, view.amounts)
        assert now.about.get("drained") == view.about.get("drained")
        if view.state in {"draining", "released"}:
            assert now.state == view.state
