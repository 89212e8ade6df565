"""The two ends of the agent link with each other: whatever is lost on the way, they agree in the end."""

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent.pair import Pair
from tests.broker.world import TYPES
from xce.agent.types import Types
from xce.model import message as m
from xce.model.builtin_types import BUILTIN_TYPES
from xce.model.instance import Instance
from xce.model.link import Phase
from xce.model.resource import Kind, ResourceType
from xce.model.value import Absent, Presence
from xce.reporters.inventory import Found

Step = Callable[[Pair], None]


def agree(pair: Pair) -> None:
    """The broker holds exactly what the node has: values, states, inventories."""
    held = pair.held()
    ours = pair.node.table.readings()
    assert held.values.keys() == ours.keys()
    for name, reading in ours.items():
        theirs = held.values[name]
        if isinstance(reading, Absent):
            assert isinstance(theirs, Absent)
            assert (theirs.presence, theirs.cause) == (reading.presence, reading.cause)
        else:
            assert (type(theirs), theirs) == (type(reading), reading)
    assert held.reporters.keys() == pair.node.states.keys()
    for name, state in pair.node.states.items():
        told = msgspec.structs.replace(held.reporters[name], runs=0, failures=0, overruns=0)
        assert told == msgspec.structs.replace(state, runs=0, failures=0, overruns=0)
    assert held.inventories == pair.node.references()


def test_a_first_sync_is_one_hello_one_report_and_one_list_of_states() -> None:
    pair = Pair()
    pair.types.learn(TYPES.values())
    pair.publish("r", fan=7, lab="x")
    pair.step()
    assert pair.core.phase is Phase.SYNCED
    assert [type(message).__name__ for message in pair.said] == ["Hello", "Report", "ReporterNews"]
    assert pair.held().state == "available"
    agree(pair)


def test_a_reconnect_without_a_change_sends_no_table() -> None:
    pair = Pair()
    pair.publish("r", fan=7)
    pair.step()
    pair.said.clear()
    pair.cut()
    pair.wait(5)
    assert [type(message).__name__ for message in pair.said] == ["Hello", "ReporterNews"]
    agree(pair)


def test_a_feed_with_a_short_time_to_live_is_not_stale_between_heartbeats() -> None:
    pair = Pair()
    pair.step()
    for _ in range(80):
        pair.publish("quick", ttl=2, fan=7)
        pair.wait(0.5)
        assert pair.held().values["fan"] == 7


def test_both_ends_let_a_value_grow_stale() -> None:
    pair = Pair()
    pair.step()
    pair.publish("r", ttl=20, fan=7)
    pair.wait(15)
    assert pair.held().values["fan"] == 7
    pair.wait(10)
    gone = pair.held().values["fan"]
    assert isinstance(gone, Absent)
    assert (gone.presence, gone.last) == (Presence.STALE, 7)
    agree(pair)
    pair.publish("r", ttl=20, fan=7)
    pair.step()
    assert pair.held().values["fan"] == 7


def test_types_that_the_cluster_learned_meanwhile_arrive_with_the_welcome() -> None:
    pair = Pair()
    pair.publish("r", fan=7)
    assert "fan" not in pair.types.in_force
    pair.step()
    assert "fan" in pair.types.in_force
    pair.publish("r", fan=7)
    pair.wait(1)
    agree(pair)


def test_a_declared_type_is_let_in_and_its_value_taken() -> None:
    pair = Pair()
    pair.types.declare("/r.yaml", [ResourceType(name="new_one", kind=Kind.STRING)])
    pair.step()
    assert pair.types.in_force["new_one"].kind is Kind.STRING
    pair.node.apply_types(pair.now)
    pair.publish("r", new_one="x")
    pair.wait(1)
    assert pair.held().values["new_one"] == "x"


def test_after_a_restart_of_the_broker_it_asks_for_the_inventories_that_it_lost() -> None:
    pair = Pair()
    pair.publish("r")
    pair.node.stock("r", Found([Instance(id="u", kind="k")], complete=True))
    pair.wait(1)
    agree(pair)
    pair.restart_broker()
    pair.wait(5)
    assert pair.held().inventories["r"].count == 1
    agree(pair)


VALUES = {"fan": st.integers(0, 3), "lab": st.sampled_from(["x", "y"]), "ok": st.booleans()}
READINGS = st.fixed_dictionaries(
    {},
    optional={
        name: st.one_of(kind, st.just(Absent(Presence.UNKNOWN, "null"))) for name, kind in VALUES.items()
    },
)
REPORTERS = st.sampled_from(["a", "b", "builtin"])


def publishes(reporter: str, values: dict[str, Any], ttl: float) -> Step:
    return lambda pair: pair.publish(reporter, ttl=ttl, **values)


def fails(reporter: str, cause: str) -> Step:
    def step(pair: Pair) -> None:
        if reporter in pair.node.states:
            pair.node.table.fault(reporter, cause)
            state = msgspec.structs.replace(pair.node.states[reporter], state="backoff", cause=cause)
            pair.node.set_state(reporter, state)

    return step


def stocks(reporter: str, count: int, complete: bool) -> Step:
    def step(pair: Pair) -> None:
        if reporter in pair.node.states:
            units = [Instance(id=f"{reporter}{number}", kind="k") for number in range(count)]
            pair.node.stock(reporter, Found(units, complete))

    return step


def reaches(reachable: bool) -> Step:
    def step(pair: Pair) -> None:
        pair.reachable = reachable
        if not reachable:
            pair.cut()

    return step


STEPS = st.lists(
    st.one_of(
        st.builds(publishes, REPORTERS, READINGS, st.sampled_from([3.0, 30.0])),
        st.builds(fails, REPORTERS, st.sampled_from(["exit status 1", "hung"])),
        st.builds(lambda reporter: lambda pair: pair.remove(reporter), REPORTERS),
        st.builds(stocks, REPORTERS, st.integers(0, 3), st.booleans()),
        st.just(Pair.cut),
        st.builds(reaches, st.booleans()),
        st.builds(lambda count: lambda pair: setattr(pair, "vanish", count), st.integers(1, 4)),
        st.just(Pair.restart_broker),
        st.just(Pair.restart_agent),
        st.builds(lambda seconds: lambda pair: pair.wait(seconds), st.sampled_from([0.1, 1.0, 5.0, 40.0])),
    ),
    max_size=25,
)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_whatever_is_lost_they_agree_in_the_end(steps: list[Step]) -> None:
    pair = Pair()
    pair.types.learn({**BUILTIN_TYPES, **TYPES}.values())
    pair.node.apply_types(pair.now)
    for step in steps:
        step(pair)
        pair.step()
    pair.settle()
    agree(pair)


def test_a_node_alone_needs_nobody() -> None:
    types = Types(alone=True)
    types.declare("/r.yaml", [ResourceType(name="x", kind=Kind.NUMERIC)])
    assert "x" in types.in_force
    assert m.PROTOCOL == 1


def test_an_agent_that_starts_anew_withdraws_nothing_before_all_reporters_were_heard() -> None:
    pair = Pair()
    pair.types.learn({**BUILTIN_TYPES, **TYPES}.values())
    pair.node.apply_types(pair.now)
    pair.publish("r", ttl=600, fan=7, lab="x")
    pair.publish("s", ttl=600, ok=True)
    pair.node.stock("r", Found([Instance(id="u", kind="k")], complete=True))
    pair.wait(1)
    pair.restart_agent()
    pair.node.table.expect("r", ["fan"], pair.now)
    pair.wait(1)
    held = pair.held()
    assert held.state == "joining"
    assert held.values == {"fan": 7, "lab": "x", "ok": True}
    assert held.reporters.keys() == {"r", "s"}
    assert held.inventories["r"].count == 1
    pair.publish("r", ttl=600, fan=8)
    pair.wait(1)
    assert pair.held().values == {"fan": 8, "lab": "x", "ok": True}
    pair.wait(70)
    assert pair.core.resyncs == 0, "a cold table has no digest"
    pair.node.warm_up()
    pair.wait(1)
    held = pair.held()
    assert held.state == "available"
    assert held.values == {"fan": 8}
    assert held.reporters.keys() == {"r"}
    assert held.inventories == {}
    agree(pair)
