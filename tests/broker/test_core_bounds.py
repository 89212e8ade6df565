"""What one agent's key may fill: its own place, within bounds. Everybody else's snapshot stays whole."""

import msgspec
import pytest

from tests.broker.nodes import Node, claimed, place
from tests.broker.world import Agent, World
from xce.broker.commits import answered
from xce.broker.core import intake, links, strays
from xce.broker.core.machine import LINKS
from xce.broker.core.orders import HOLDS
from xce.broker.core.state import REFUSALS
from xce.model import message as m
from xce.model.claim import Ask, BindingState, Chosen, Claim, PortsAsk
from xce.model.configuration import BrokerFile
from xce.model.fact import TypeAdmitted
from xce.model.instance import Instance, Inventory
from xce.model.resource import Kind, ResourceType
from xce.model.value import Absent, Presence
from xce.wire import codec
from xce.wire.dealer import FROM_BROKER_BYTES


def size(world: World) -> int:
    """Bytes of the largest message of a snapshot."""
    reader = world.peer("sizer", "controller")
    before = len(world.inbox(reader))
    world.say(reader, m.SnapshotRequest(id="s"))
    return max(len(codec.encode(message)) for message in world.inbox(reader)[before:])


@pytest.mark.parametrize(
    "wrong",
    [
        {"description": "x" * 501},
        {"unit": "x" * 64},
        {"provider": "x" * 254},
        {"reporter": "x" * 254},
        {"minimum": float("nan")},
        {"maximum": float("inf")},
        {"max_step": float("nan")},
    ],
)
def test_a_type_that_would_burden_everybody_cannot_be_said(wrong: dict[str, object]) -> None:
    """All types go to every agent and controller in one message, and admitted ones are facts."""
    with pytest.raises(ValueError, match="t: "):
        ResourceType(name="t", kind=Kind.NUMERIC, **wrong)  # type: ignore[arg-type]
    declared = {"type": "declare", "types": {"F": [{"name": "t", "kind": "numeric", **wrong}]}}
    with pytest.raises(codec.CodecError):
        codec.decode_for_broker(msgspec.msgpack.encode(declared))


def test_thousands_of_types_of_one_batch_are_shown_once() -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=1)
    other = Agent(world, "node2")
    other.join(fan=2)
    kinds = [ResourceType(name=f"t{number}", kind=Kind.NUMERIC) for number in range(3000)]
    world.say("node1", m.Declare(types={"many.yaml": kinds}))
    assert sum(isinstance(fact.change, TypeAdmitted) for fact in world.facts) == 3000
    assert len(world.got("node2", m.TypesNews)) == 1
    assert len(world.got("node2", m.TypesNews)[0].types) >= 3000


def test_states_with_endless_texts_leave_the_snapshot_small_and_the_host_in_it() -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=1)
    for number in range(400):
        conditions = [m.ReportedCondition(name=f"c{one}", reason="r" * 9000) for one in range(100)]
        agent.state(f"r{number}", cause="c" * 500_000, conditions=conditions[: 100 if number < 3 else 0])
    view = world.see("host:node1")
    assert len(view.reporters) >= 400
    assert len(view.reporters["r0"].cause) <= links.STATE_TEXT
    assert len(view.reporters["r0"].conditions) == links.CONDITIONS
    assert "left out" in view.reporters["r399"].cause
    assert size(world) < 8 << 20 < FROM_BROKER_BYTES


def test_conditions_of_a_host_are_as_many_as_can_be_looked_at_each_time_it_is_shown() -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=1)
    conditions = [m.ReportedCondition(name=f"c{one}", reason="r", hold=True) for one in range(64)]
    state = m.ReporterState(state="waiting", conditions=conditions)
    world.say("node1", m.ReporterNews(reporters={f"r{number}": state for number in range(1000)}))

    def shown() -> int:
        return sum(len(one.conditions) for one in world.see("host:node1").reporters.values())

    assert 512 < shown() <= links.STATES_BYTES // links.CONDITION
    world.say("node1", m.ReporterNews(reporters={f"r{number}": None for number in range(1000)}))
    agent.state("r999", conditions=conditions)
    assert shown() == 64, "what is gone leaves room"


def test_a_host_changes_its_types_seldom_and_all_of_them_together() -> None:
    """Each change is a fact and news for everybody: by flipping one a host made all others stale."""
    world = World()
    Agent(world, "node1").join(fan=1)
    Agent(world, "node2").join(fan=2)

    def declare(*, most: float, host: str = "node1") -> dict[str, str]:
        kinds = [
            ResourceType(name=f"t{number}-{host}".replace("-", "_"), kind=Kind.NUMERIC, maximum=most)
            for number in range(3)
        ]
        world.say(host, m.Declare(types={"f.yaml": kinds}))
        return world.got(host, m.Declared)[-1].types

    assert not any(declare(most=1).values())
    assert not any(declare(most=2).values())
    told, facts = len(world.got("node2", m.TypesNews)), len(world.facts)
    for most in range(3, 100):
        assert all("asked again in a minute" in why for why in declare(most=most).values())
    assert (len(world.got("node2", m.TypesNews)), len(world.facts)) == (told, facts)
    assert not any(declare(most=2).values()), "what holds may be said as often as one likes"
    assert not any(declare(most=1, host="node2").values())
    assert not any(declare(most=2, host="node2").values()), "others are not kept from it"
    world.now += links.RETYPED_S
    assert not any(declare(most=100).values())


def test_a_location_has_so_many_holds_and_its_snapshot_stays_small() -> None:
    world = World()
    controller = world.peer("sched", "controller")
    for number in range(HOLDS):
        world.ask(
            controller, m.HoldAdd(id=f"o{number}", location="host:node1", label=f"l{number}", reason="x")
        )
    more = m.HoldAdd(id="more", location="host:node1", label="more", reason="x")
    answer = world.ask(controller, more)
    assert isinstance(answer, m.Failed)
    assert answer.code == "busy"
    again = m.HoldAdd(id="again", location="host:node1", label="l0", reason="another")
    assert isinstance(world.ask(controller, again), m.Done)
    world.ask(controller, m.HoldRelease(id="r", location="host:node1", owner="controller:sched/l1"))
    assert isinstance(world.ask(controller, msgspec.structs.replace(more, id="once more")), m.Done)
    assert len(world.see("host:node1").holds) == HOLDS


def test_a_key_of_one_host_has_a_few_connections_and_keeps_nobody_out() -> None:
    """By opening as many as the broker serves, one host kept all others from coming back."""
    world = World(config=BrokerFile(max_peers=30))
    agent = Agent(world, "node1")
    agent.join(fan=1)
    for number in range(200):
        other = Agent(world, "node1", peer=f"p{number}", nonce=f"n{number}", key="node1")
        assert isinstance(other.hello(), m.Refused | m.Welcome)
        assert len(world.broker.state.peers) <= LINKS
    assert world.broker.state.counts["replaced"] > 150
    Agent(world, "node2").join(fan=2)
    assert world.see("host:node2").values["fan"] == 2
    fleet = world.peer("sim", hosts=["sim*"])
    for number in range(20):
        world.connect(f"sim{number}", fleet.key)
    assert len(world.broker.state.peers) == LINKS + 1 + 21


def test_who_may_order_nothing_has_some_lines_of_the_audit_and_is_counted_for_the_rest() -> None:
    """An agent's key filled the disk of the audit log with 34 MB a second."""
    world = World()
    Agent(world, "node1").join(fan=1)
    Agent(world, "node2").join(fan=1)

    def lines(name: str) -> int:
        return sum((line.who, line.result) == (name, "forbidden") for line in world.audit())

    for number in range(500):
        world.ask("node1", m.HoldAdd(id=f"o{number}", location="host:node2", reason="x"))
    world.ask("node2", m.HoldAdd(id="o", location="host:node2", reason="x"))
    assert (lines("node1"), lines("node2")) == (REFUSALS, 1)
    assert world.broker.state.counts["audit.left_out"] == 500 - REFUSALS
    assert world.broker.state.counts["refused.forbidden"] == 501
    world.now += 10
    for number in range(500):
        world.ask("node1", m.KeyRotate(id=f"k{number}", public="no key"))
    assert len([line for line in world.audit() if line.who == "node1"]) == REFUSALS + 10
    controller = world.peer("sched", "controller")
    for number in range(2 * REFUSALS):
        world.ask(controller, m.HostDrain(id=f"d{number}", host="nobody", reason="x"))
    assert len([line for line in world.audit() if line.who == "sched"]) == 2 * REFUSALS


def test_more_reporters_than_a_host_can_have_are_counted_and_not_kept() -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=1)
    state = m.ReporterState(state="waiting")
    world.say("node1", m.ReporterNews(reporters={f"r{number}": state for number in range(5000)}))
    assert len(world.see("host:node1").reporters) <= intake.FEEDS
    assert world.broker.state.counts["refused.feed"] > 3000


@pytest.mark.parametrize("absent", [Absent(Presence.UNKNOWN, cause="c" * 5000)])
def test_an_absence_with_an_endless_cause_is_refused_and_its_neighbours_are_taken(absent: Absent) -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=1)
    agent.state()
    agent.report(lab=absent, fan=2)
    view = world.see("host:node1")
    assert "lab" not in view.values
    assert view.values["fan"] == 2
    assert "5000 characters" in view.reporters["probe"].cause


def test_heavy_readings_are_taken_until_the_place_is_full() -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=1)
    agent.state()
    kinds = [ResourceType(name=f"set{number}", kind=Kind.STRING_SET) for number in range(60)]
    world.say("node1", m.Declare(types={"sets.yaml": kinds}))
    full = [f"{item:0200d}" for item in range(1000)]
    for number in range(60):
        tick = m.FeedTick("probe", 1, 0, {f"set{number}": full})
        agent.sequence += 1
        world.say("node1", m.Report(agent.sequence, [tick]))
    values = world.see("host:node1").values
    assert 15 <= sum(name.startswith("set") for name in values) < 25
    assert "at most" in world.see("host:node1").reporters["probe"].cause
    assert size(world) < 8 << 20
    agent.report(set0=None)
    agent.report(set59=full)
    assert "set59" in world.see("host:node1").values


def test_inventories_of_more_reporters_than_a_host_has_are_counted_and_not_kept() -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=1)
    for number in range(40):
        unit = Instance(id=f"u{number}", kind="gpu")
        inventory = Inventory(reporter=f"r{number}", generation=1, complete=True, instances=[unit])
        world.say("node1", m.InventoryNews(inventory=inventory))
    assert len(world.see("host:node1").inventories) == links.INVENTORIES
    assert world.broker.state.counts["refused.inventory"] == 40 - links.INVENTORIES


def test_a_remembered_answer_that_cannot_be_read_is_left_out() -> None:
    """An answer is a memory: it must not keep the broker from starting."""
    good = codec.encode(m.Done(id="a", revision=7))
    found = answered({"admin:a": ("digest", b"\x00\xff"), "admin:b": ("digest", good)})
    assert [one.revision for one in found] == [7]


@pytest.mark.parametrize("wrong", ["", "x" * 129, "x" * 100_000])
def test_a_question_whose_id_cannot_be_kept_is_refused_in_words(wrong: str) -> None:
    world = World()
    reader = world.peer("reader", "controller")
    for question in (
        m.StatusRequest(id=wrong),
        m.SnapshotRequest(id=wrong),
        m.WatchRequest(id=wrong, since=world.broker.state.changes.position()),
        m.Unwatch(id=wrong),
    ):
        answer = world.ask(reader, question)
        assert isinstance(answer, m.Failed)
        assert (answer.code, answer.id) == ("invalid", wrong[:128])
        assert answer.message == "cannot answer without an id of at most 128 characters"
    assert not reader.watches
    assert isinstance(world.ask(reader, m.StatusRequest(id="x" * 128)), m.BrokerStatus)


def test_one_connection_follows_so_many_streams_and_no_more() -> None:
    world = World()
    reader = world.peer("reader", "controller")
    world.turn()
    here = world.broker.state.changes.position()
    answers = [world.ask(reader, m.WatchRequest(id=f"w{number}", since=here)) for number in range(65)]
    assert all(isinstance(answer, m.WatchBegin) for answer in answers[:64])
    assert isinstance(answers[64], m.Failed)
    assert "more than 64 streams" in answers[64].message
    world.say(reader, m.Unwatch(id="w3"))
    assert isinstance(world.ask(reader, m.WatchRequest(id="w64", since=here)), m.WatchBegin)


def test_what_a_node_claims_to_have_bound_fills_its_own_place_and_no_more() -> None:
    world = World()
    node = Node(world, "node1")
    node.arrive()
    huge = "x" * 100_000
    for turn in range(3):
        instances = [
            Chosen(id=f"GPU-{turn}-{number}", reporter=huge, generation=1, kind=huge, parents=["y"] * 100)
            for number in range(strays.INSTANCES)
        ]
        reports = {
            f"b9{turn}{number}": m.BindingReport(
                state=BindingState.READY, reason=huge, note=huge, instances=instances if number == 0 else []
            )
            for number in range(20)
        }
        world.broker.claims.news(node.world.peers["node1"], m.BindingNews(reports=reports), world.now)
    world.turn()
    ledger = world.broker.state.journal.ledger.claims
    assert len(ledger.quarantine["node1"]) == strays.INSTANCES
    assert world.broker.state.counts["refused.quarantine"] == 2 * strays.INSTANCES
    assert size(world) < 4 << 20


def test_what_a_node_says_of_its_own_binding_is_kept_within_bounds() -> None:
    world = World()
    node = Node(world, "node1")
    node.arrive()
    claim = claimed(world, Claim(id="c", ask=Ask(ports=[PortsAsk(name="http")])))
    done = world.ask(world.peer("sched", "controller"), m.ClaimBind(id="b", places=[place(claim, "node1")]))
    huge = "x" * 100_000
    ports = {"http": list(range(100_000)), **{f"p{number}": [1] for number in range(1000)}}
    node.to(
        BindingState.READY, reason=huge, evidence=huge, note=huge, conditions=[huge, "degraded"], ports=ports
    )
    view = world.snapshot().bindings[done.made[0]]
    assert view.conditions == ["degraded"]
    assert len(codec.encode(view)) < 16_384
