"""Readings: what is taken, what is refused and how that shows, and when it turns stale; inventories."""

import time
from typing import Any

import pytest

from tests.broker.world import TYPES, Agent, World, follow, joined, site
from xce.model import message as m
from xce.model.configuration import BrokerFile
from xce.model.instance import Instance, Inventory, reference
from xce.model.resource import Kind, ResourceType
from xce.model.value import Absent, Presence, digest

# ------------------------------------------------------------------------------------------------------ taken


def test_only_what_changed_is_told() -> None:
    world, agent = joined(fan=1, lab="a", ok=True)
    watcher = follow(world)
    agent.report(fan=1, lab="b", ok=True)
    assert [(delta.values, delta.locations) for delta in world.got(watcher, m.Delta)] == [
        ({"host:node1": {"lab": "b"}}, {})
    ]


def test_a_withdrawn_value_is_told_as_a_change_of_its_location() -> None:
    world, agent = joined(fan=1, lab="a")
    watcher = follow(world)
    agent.report(fan=2, lab=None)
    assert [(delta.values, delta.locations) for delta in world.got(watcher, m.Delta)] == [
        ({}, {"host:node1": m.LocationChange(values={"fan": 2, "lab": None})})
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [(1, 1.0), (1.5, 2), (0, 5.5), ("a", "b"), (True, False), (["a"], ["a", "b"])],
)
def test_a_value_of_another_class_or_amount_is_a_change(before: Any, after: Any) -> None:
    name = {str: "lab", bool: "ok", list: "tags"}.get(type(before), "fan")
    world, agent = joined(**{name: before})
    agent.report(**{name: after})
    held = world.see("host:node1").values[name]
    assert (held, type(held)) == (after, type(after))


@pytest.mark.parametrize(
    ("name", "bad", "why"),
    [
        ("fan", True, "expected a number, got a boolean"),
        ("fan", "12", "expected a number, got a string"),
        ("fan", -1, "below the minimum 0"),
        ("fan", 9001.0, "above the maximum 9000"),
        ("fan", float("nan"), "not a finite"),
        ("ok", 1, "expected true or false, got a number"),
        ("lab", "a\nb", "holds a control or invisible"),
        ("tags", "x", "expected a list of strings"),
        ("nonsense", 1, "no such resource type"),
        ("rack", "r1", "only static may report it"),
    ],
)
def test_a_bad_value_is_refused_and_its_neighbours_are_kept(name: str, bad: Any, why: str) -> None:
    good: dict[str, Any] = {"fan": 10, "ok": True, "lab": "a", "tags": ["x"]}
    world, agent = joined(**good)
    agent.state()
    agent.report(r1m=0.5, **{name: bad})
    seen = world.see("host:node1")
    assert seen.values == {**{key: value for key, value in good.items() if key != name}, "r1m": 0.5}
    assert f"broker refuses {name}: {why}" in seen.reporters["probe"].cause
    assert seen.reporters["probe"].refused == 1
    assert sum(world.broker.state.intake.refused.values()) == 1
    if name not in {"nonsense", "rack"}:
        agent.report(**{name: good[name]})
        seen = world.see("host:node1")
        assert (seen.values[name], seen.reporters["probe"].cause) == (good[name], "")


def test_a_float_beyond_the_integers_is_a_good_number() -> None:
    world = World(files=site(types={"big": ResourceType(name="big", kind=Kind.NUMERIC)}))
    agent = Agent(world, "node1")
    agent.join(big=1.0)
    agent.report(big=1e30)
    assert world.see("host:node1").values == {"big": 1e30}
    agent.report(big=2**64 - 1)
    assert world.see("host:node1").values == {}, "an integer that cannot travel is refused"


def test_a_null_withdraws_and_a_full_report_withdraws_what_it_lacks() -> None:
    world, agent = joined(fan=1, lab="a")
    agent.report(fan=None)
    assert world.see("host:node1").values == {"lab": "a"}
    agent.report(full=True, ok=True)
    assert world.see("host:node1").values == {"ok": True}


def test_absences_keep_their_cause_and_their_since() -> None:
    world, agent = joined(fan=1)
    agent.report(fan=Absent(Presence.UNKNOWN, "exit status 3", last=1))
    first = world.see("host:node1").values["fan"]
    assert first == Absent(Presence.UNKNOWN, "exit status 3", last=1, since_ms=1_000_000)
    world.now += 5
    agent.report(fan=Absent(Presence.UNKNOWN, "exit status 3", last=1))
    assert world.see("host:node1").values["fan"] == first
    agent.report(fan=Absent(Presence.UNKNOWN, "exit status 4"))
    assert world.see("host:node1").values["fan"] != first


def test_a_name_moves_to_the_reporter_that_reports_it_last() -> None:
    world, agent = joined(fan=1)
    agent.report("other", fan=2)
    agent.report("probe", fan=None)
    assert world.see("host:node1").values == {"fan": 2}
    assert world.snapshot(detail=True).locations["host:node1"].origins == {"fan": "other"}


def test_a_reporter_that_is_gone_takes_its_values_along() -> None:
    world, agent = joined(fan=1)
    agent.report("other", lab="a")
    agent.state()
    world.say("node1", m.ReporterNews(reporters={"probe": None}))
    seen = world.see("host:node1")
    assert (seen.values, seen.reporters) == ({"lab": "a"}, {})


def test_full_news_of_reporters_forget_those_they_lack() -> None:
    world, agent = joined(fan=1)
    agent.report("other", lab="a")
    world.say("node1", m.ReporterNews(reporters={"other": m.ReporterState(state="waiting")}, full=True))
    assert world.see("host:node1").values == {"lab": "a"}


def test_static_values_win_over_reporters_and_uncover_them_again() -> None:
    files = site(values={"host:node1": {"lab": "fixed", "rack": "r7"}})
    world = World(files=files)
    agent = Agent(world, "node1")
    agent.join(lab="reported", fan=1)
    agent.state()
    seen = world.see("host:node1")
    assert seen.values == {"lab": "fixed", "rack": "r7", "fan": 1}
    assert "lab: has a static value in hosts.yaml, which wins" in seen.reporters["probe"].cause
    replies = agent.heartbeat(digest=digest({"probe": {"lab": "reported", "fan": 1}}))
    assert [type(reply) for reply in replies] == [m.Pulse], "what is refused is a part of the agent's table"
    world._take(world.broker.reload(site(values={"host:node1": {"rack": "r8"}}), world.now))
    world._take(world.broker.links.state.out)
    world.turn()
    agent.report(lab="reported")
    assert world.see("host:node1").values == {"lab": "reported", "rack": "r8", "fan": 1}


def test_a_value_that_was_there_before_gives_way_to_a_new_static_one() -> None:
    world, agent = joined(lab="reported")
    world._take(world.broker.reload(site(values={"host:node1": {"lab": "fixed"}}), world.now))
    world.turn()
    agent.report(lab="again")
    assert world.see("host:node1").values == {"lab": "fixed"}


def test_conditions_of_reporters_hold_their_host_as_long_as_they_stand() -> None:
    world, agent = joined(fan=1)
    bad = m.ReportedCondition(name="disk", reason="sda is failing", hold=True)
    agent.state(conditions=[bad, m.ReportedCondition(name="dusty")])
    (hold,) = world.see("host:node1").holds
    assert (hold.owner, hold.reason) == ("reporter:probe", "disk: sda is failing")
    assert world.got("node1", m.Standing)[-1].holds == [hold]
    refused = world.ask(
        world.peer("alice", "admin"), m.HoldRelease(id="1", location="host:node1", owner="reporter:probe")
    )
    assert (refused.code, "goes with its cause" in refused.message) == ("conflict", True)
    agent.state(conditions=[m.ReportedCondition(name="disk", hold=True)])
    (hold,) = world.see("host:node1").holds
    assert hold.reason == "disk, without a reason"
    agent.state()
    assert world.see("host:node1").holds == []


# -------------------------------------------------------------------------------------------------- freshness


def test_a_reading_that_is_not_refreshed_turns_stale_and_comes_back() -> None:
    world, agent = joined(fan=1200)
    agent.state(ttl_ms=20_000)
    world.wait(15)
    agent.heartbeat()
    assert world.see("host:node1").values == {"fan": 1200}
    world.wait(7)
    stale = world.see("host:node1").values["fan"]
    assert stale == Absent(Presence.STALE, "not refreshed within 20 s", last=1200, since_ms=1_020_000)
    assert world.snapshot().quality.stale == 1
    agent.heartbeat(probe=0)
    assert world.see("host:node1").values == {"fan": 1200}
    assert world.snapshot().quality.stale == 0


def test_the_types_time_to_live_wins_over_the_reporters() -> None:
    files = site(types={**TYPES, "fan": ResourceType(name="fan", kind=Kind.NUMERIC, ttl=100)})
    world = World(files=files, config=BrokerFile(heartbeat=300))
    agent = Agent(world, "node1")
    agent.join(fan=1, lab="a")
    agent.state(ttl_ms=20_000)
    world.wait(50)
    assert sorted(type(reading).__name__ for reading in world.see("host:node1").values.values()) == [
        "Absent",
        "int",
    ]
    world.wait(60)
    assert all(isinstance(reading, Absent) for reading in world.see("host:node1").values.values())


def test_a_known_fault_makes_it_unknown_with_the_fault_as_cause() -> None:
    world, agent = joined(fan=1)
    agent.state(state="backoff", cause="exit status 3: no fan", ttl_ms=10_000)
    world.wait(12)
    reading = world.see("host:node1").values["fan"]
    assert isinstance(reading, Absent)
    assert (reading.presence, reading.cause) == (Presence.UNKNOWN, "exit status 3: no fan")


def test_ages_travel_so_a_late_report_is_not_young() -> None:
    world, agent = joined(fan=1)
    agent.state(ttl_ms=20_000)
    agent.report(fan=2, age_ms=15_000)
    world.wait(7)
    assert isinstance(world.see("host:node1").values["fan"], Absent)


def test_a_stale_reading_is_still_what_the_agent_holds() -> None:
    world, agent = joined(fan=1)
    agent.state(ttl_ms=5_000)
    world.wait(8)
    assert [type(reply) for reply in agent.heartbeat(digest=digest({"probe": {"fan": 1}}))] == [m.Pulse]


def test_the_wall_clock_has_no_say_in_freshness() -> None:
    """C-STA-02: nothing in the core reads a clock; only `now` moves readings and hosts."""
    world, agent = joined(fan=1)
    agent.state(ttl_ms=20_000)
    world.broker.state.wall = lambda: "1970-01-01T00:00:00Z"
    for _ in range(5):
        world.wait(10)
        agent.heartbeat(probe=0)
    seen = world.see("host:node1")
    assert (seen.state, seen.values) == ("available", {"fan": 1})


def test_ten_thousand_hosts_are_looked_over_in_a_moment() -> None:
    many: dict[str, list[str]] = {f"n{number}": [] for number in range(10_000)}
    world = World(files=site(groups_of=many))
    world.wait(1)
    began = time.thread_time()
    world.broker.second(world.now + 1)
    assert time.thread_time() - began < 0.05


# ----------------------------------------------------------------------------------------------------- resync


def test_a_missing_tick_makes_the_broker_ask_for_everything_once() -> None:
    world, agent = joined(fan=1)
    agent.sequence += 1
    agent.report(fan=2)
    agent.sequence += 1
    agent.report(fan=3)
    assert [one.reason for one in world.got("node1", m.Resync)] == ["tick 3 came after 1"]


def test_a_lost_report_is_asked_for_at_the_heartbeat_behind_it_not_at_the_next_digest() -> None:
    world, agent = joined(fan=1)
    agent.sequence += 1  # a report that went missing
    replies = agent.heartbeat()
    assert [type(reply) for reply in replies] == [m.Resync, m.Pulse]
    assert [one.reason for one in world.got("node1", m.Resync)] == ["tick 3 came after 1"]
    agent.report(full=True, fan=3)
    assert world.see("host:node1").values == {"fan": 3}


def test_another_digest_makes_the_broker_ask_for_everything() -> None:
    _, agent = joined(fan=1)
    replies = agent.heartbeat(digest=digest({"probe": {"fan": 2}}))
    assert [type(reply) for reply in replies] == [m.Resync, m.Pulse]
    agent.report(full=True, fan=2)
    assert [type(reply) for reply in agent.heartbeat(digest=digest({"probe": {"fan": 2}}))] == [m.Pulse]


# ------------------------------------------------------------------------------------------------ inventories


def gpus(generation: int = 1, count: int = 2) -> Inventory:
    instances = [Instance(id=f"GPU-{number}", kind="gpu") for number in range(count)]
    return Inventory(reporter="gpu", generation=generation, complete=True, instances=instances)


def test_inventories_are_named_in_views_and_given_when_asked_for() -> None:
    world, _ = joined(fan=1)
    world.say("node1", m.InventoryNews(inventory=gpus()))
    assert world.see("host:node1").inventories == {"gpu": reference(gpus())}
    for json in (False, True):
        reader = world.peer("reader", "controller")
        reader.json = json
        wanted = {"host:node1": ["gpu", "nic"], "host:nowhere": ["gpu"]}
        answer = world.ask(reader, m.InventoriesRequest(id="1", wanted=wanted))
        assert answer == m.InventoryBodies(id="1", bodies={"host:node1": {"gpu": gpus()}})


def test_an_agent_that_comes_back_sends_only_inventories_that_are_new() -> None:
    world, agent = joined(fan=1)
    world.say("node1", m.InventoryNews(inventory=gpus()))
    world.gone("node1")
    assert agent.hello(inventories={"gpu": reference(gpus(2))}).inventories == [], "same units, same digest"
    world.gone("node1")
    assert agent.hello(inventories={"gpu": reference(gpus(3, count=3))}).inventories == ["gpu"]
    world.gone("node1")
    agent.hello()
    assert world.see("host:node1").inventories == {}


# ------------------------------------------------------------------------------------------------------- mine


def test_an_agent_sees_what_the_broker_holds_of_it() -> None:
    world, agent = joined(fan=1)
    agent.state()
    world.now += 2
    mine = world.ask("node1", m.MineRequest(id="1"))
    assert mine.location.values == {"fan": 1}
    assert (mine.location.origins, mine.location.ages_ms) == ({"fan": "probe"}, {"probe": 2000})
