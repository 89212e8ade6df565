"""The change stream: no gap, no overlap, one delta a turn, and bounds for who does not read."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.world import Agent, World, caught_up, follow, same, site
from xce.broker.core import changes
from xce.broker.core.changes import Changes
from xce.broker.core.effect import Send, SendBytes
from xce.model import message as m
from xce.model.configuration import BrokerFile
from xce.model.value import Absent, Presence


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


@pytest.mark.parametrize("last", [None, 5])
def test_a_report_of_all_values_and_the_next_one_are_told_together(last: int | None) -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(ut=0, pg=0)
    watcher = follow(world)
    world.turns = False
    agent.report(ut=1, pg=2)
    agent.report(ut=last)
    world.turns = True
    world.turn()
    (delta,) = world.got(watcher, m.Delta)
    assert delta.changes()["host:node1"] == m.LocationChange(values={"ut": last, "pg": 2})
    left = {"pg": 2} if last is None else {"ut": last, "pg": 2}
    assert world.see("host:node1").values == left


def test_a_withdrawal_is_told_although_a_report_of_all_that_is_left_follows_it() -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(ut=0, pg=0)
    watcher = follow(world)
    world.turns = False
    agent.report(ut=None)
    agent.report(pg=2)
    world.turns = True
    world.turn()
    (delta,) = world.got(watcher, m.Delta)
    assert delta.locations == {"host:node1": m.LocationChange(values={"ut": None, "pg": 2})}


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
    counters = world.ask(world.peer("alice", "admin"), m.StatusRequest(id="s")).counters
    assert (counters["watchers_cut"], counters["undelivered"]) == (1, 1)
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
