"""Broker and node that were apart, or have forgotten: claims stay, nobody is told twice or not at all."""

import msgspec

from tests.broker.cluster import READY, RELEASED, Cluster
from tests.broker.nodes import Node, place
from xce.broker.claim_rows import claim_rows
from xce.model import message as m
from xce.model.claim import (
    BindingState,
    ClaimForm,
)
from xce.model.fact import Checkpoint
from xce.model.supply import HostState


def test_a_lost_node_keeps_its_claims_and_comes_back_without_a_second_prepare() -> None:
    """C-MSG-02, the half of claims."""
    cluster = Cluster()
    claim = cluster.claim()
    (binding,) = cluster.bind(place(claim, "node1", "GPU-a"))
    cluster.node.to(READY)
    cluster.world.wait(100)
    seen = cluster.see()
    assert seen.locations["host:node1"].state == HostState.LOST.value
    assert seen.bindings[binding].binding.state is READY
    assert seen.bindings[binding].conditions == ["unreachable"]
    held = cluster.world.broker.state.journal.ledger.claims.held("node1")
    assert [chosen.id for chosen, _why in held] == ["GPU-a"]
    cluster.world.peers.pop("node1", None)
    welcome = cluster.node.arrive()
    assert not welcome.bindings, "the digest says that nothing has changed"
    seen = cluster.see()
    assert seen.locations["host:node1"].state == HostState.AVAILABLE.value
    assert seen.bindings[binding].conditions == []
    assert cluster.node.prepares == [binding]


def test_a_second_agent_of_a_name_is_given_no_orders_and_its_word_counts_for_nothing() -> None:
    """C-MSG-01, the half of claims: a prepare runs once, where the node is that serves the name."""
    cluster = Cluster()
    (binding,) = cluster.bind(place(cluster.claim(), "node1", "GPU-a"))
    rival = Node(cluster.world, "node1", peer="clone", key="node1", nonce="n2")
    assert isinstance(rival.hello(bindings=rival.holdings.digest()), m.Refused)
    report = m.BindingReport(state=READY)
    cluster.world.say("clone", m.BindingNews(reports={binding: report}, full=True))
    assert rival.listen() == []
    assert cluster.states() == {binding: "pending"}
    cluster.node.to(READY)
    assert cluster.states() == {binding: "ready"}
    assert cluster.node.prepares == [binding]


def test_after_a_restart_of_the_broker_bindings_are_rejoining_until_their_nodes_confirm() -> None:
    cluster = Cluster("node1", "node2")
    claim = cluster.claim()
    (binding,) = cluster.bind(place(claim, "node1", "GPU-a"))
    cluster.node.to(READY)
    cluster.world = cluster.world.restart()
    assert cluster.see().bindings[binding].conditions == ["rejoining"]
    assert cluster.see().claims[claim].state == "ready"
    for node in cluster.nodes.values():
        node.world = cluster.world
        assert not node.arrive().bindings
    assert cluster.see().bindings[binding].conditions == []


def test_a_node_whose_journal_was_lost_is_told_again_and_nothing_is_ready_meanwhile() -> None:
    cluster = Cluster()
    (binding,) = cluster.bind(place(cluster.claim(), "node1", "GPU-a"))
    cluster.node.to(READY)
    cluster.world.gone("node1")
    cluster.node.forget()
    assert cluster.node.arrive().bindings
    assert cluster.states() == {binding: "preparing"}
    assert "nothing of it any more" in cluster.see().bindings[binding].binding.reason
    assert cluster.node.prepares == [binding, binding]
    cluster.node.to(READY)
    assert cluster.states() == {binding: "ready"}


def test_an_order_that_a_node_did_not_take_is_given_again() -> None:
    cluster = Cluster()
    (binding,) = cluster.bind(place(cluster.claim(), "node1", "GPU-a"))
    cluster.node.read = len(cluster.world.inbox("node1"))  # lost on the way
    cluster.node.heartbeat()
    cluster.world.wait(12)
    (order,) = cluster.node.listen()
    assert order.binding.id == binding
    cluster.node.tell()
    cluster.world.wait(12)
    assert cluster.node.listen() == [], "it has begun"
    cluster.order(m.ClaimRelease, bindings=[binding])
    cluster.node.read = len(cluster.world.inbox("node1"))
    cluster.node.heartbeat()
    cluster.world.wait(12)
    assert [type(one) for one in cluster.node.listen()] == [m.BindingRelease]


def test_a_node_that_has_lost_the_providers_words_is_told_them_again() -> None:
    """They are in no journal of the node; the binding goes on where it was."""
    cluster = Cluster()
    claim = cluster.claim(provider="store")
    words = {"volume_context/share": "/v/7"}
    cluster.order(m.ClaimProvide, role="provider", claim=claim, state=READY, volume=words)
    (binding,) = cluster.bind(place(claim, "node1", "GPU-a"))
    assert [one.volume for one in cluster.node.listen()] == [words]
    cluster.node.tell()
    cluster.node.move(binding, BindingState.PREPARING, wants_words=True)
    cluster.node.tell()
    assert [one.volume for one in cluster.node.listen()] == [words]
    assert cluster.states() == {binding: "preparing"}
    cluster.node.heartbeat()
    cluster.world.wait(12)
    assert [one.volume for one in cluster.node.listen()] == [words], "until it says that it has them"
    cluster.node.to(READY)
    cluster.node.heartbeat()
    cluster.world.wait(12)
    assert cluster.node.listen() == []


def test_what_a_provider_says_later_reaches_the_nodes_that_have_the_claim() -> None:
    """Its volume may have grown; whoever leaves need not know."""
    cluster = Cluster("node1", "node2")
    claim = cluster.claim(provider="store", form=ClaimForm.STANDALONE)
    cluster.order(m.ClaimProvide, role="provider", claim=claim, state=READY, volume={"capacity_bytes": "1"})
    cluster.bind(place(claim, "node1", "GPU-a"))
    (leaving,) = cluster.bind(place(claim, "node2", "GPU-a"))
    for node in cluster.nodes.values():
        node.to(READY)
        node.listen()
    cluster.order(m.ClaimRelease, bindings=[leaving])
    larger = {"capacity_bytes": "2"}
    cluster.order(m.ClaimProvide, role="provider", claim=claim, state=READY, volume=larger)
    assert [one.volume for one in cluster.nodes["node1"].listen()] == [larger]
    assert [type(one) for one in cluster.nodes["node2"].listen()] == [m.BindingRelease]
    assert cluster.nodes["node1"].prepares == [name for name in cluster.states() if name != leaving]


def test_a_release_while_the_node_is_away_reaches_it_when_it_is_back() -> None:
    cluster = Cluster()
    (binding,) = cluster.bind(place(cluster.claim(), "node1", "GPU-a"))
    cluster.node.to(READY)
    cluster.world.gone("node1")
    cluster.order(m.ClaimRelease, bindings=[binding])
    assert cluster.states() == {binding: "releasing"}
    cluster.node.arrive()
    cluster.node.to(RELEASED)
    assert cluster.states() == {binding: "released"}


def test_what_a_node_says_is_not_heard_while_the_disk_refuses_and_is_recorded_later() -> None:
    cluster = Cluster()
    (binding,) = cluster.bind(place(cluster.claim(), "node1", "GPU-a"))
    cluster.node.listen()
    cluster.see()
    cluster.world.commits = False
    cluster.world.fail()
    cluster.node.to(READY)
    cluster.node.holdings.again()
    assert cluster.node.holdings.pending(), "it says it again"
    assert cluster.states() == {binding: "pending"}
    cluster.world.commits = True
    cluster.world._take(cluster.world.broker.fault(""))
    cluster.node.tell()
    cluster.node.listen()
    cluster.node.holdings.again()
    assert not cluster.node.holdings.pending()
    assert cluster.states() == {binding: "ready"}


def test_drift_is_shown_at_once_and_is_no_fact() -> None:
    cluster = Cluster()
    (binding,) = cluster.bind(place(cluster.claim(), "node1", "GPU-a"))
    cluster.node.to(READY)
    assert cluster.states() == {binding: "ready"}
    facts = len(cluster.world.facts)
    cluster.node.to(READY, conditions=["degraded", "rubbish"], note="mount 812 is gone")
    view = cluster.see().bindings[binding]
    assert (view.conditions, view.note) == (["degraded"], "mount 812 is gone")
    assert len(cluster.world.facts) == facts


def test_after_many_facts_all_is_one_and_a_start_from_it_knows_the_same() -> None:
    """Jobs come and go for ever; what the broker keeps of them does not."""
    cluster = Cluster()
    for number in range(30):
        claim = cluster.claim(f"job{number}")
        cluster.bind(place(claim, "node1", "GPU-a"))
        cluster.node.to(READY)
        cluster.order(m.ClaimRelease, claim=claim)
        cluster.node.to(RELEASED)
    kept = cluster.claim("kept", form=ClaimForm.STANDALONE)
    (binding,) = cluster.bind(place(kept, "node1", "GPU-b"))
    cluster.see()
    world = cluster.world
    world.broker.checkpoint_every = 100
    world.wait(1)
    (mark,) = [number for number, one in enumerate(world.facts) if isinstance(one.change, Checkpoint)]
    world.wait(5)
    assert mark == len(world.facts) - 1, "once is enough"
    before = msgspec.structs.asdict(world.broker.state.journal.ledger)
    del world.facts[:mark]
    world = cluster.world = world.restart()
    after = msgspec.structs.asdict(world.broker.state.journal.ledger)
    assert after | {"revision": 0, "epoch": 0} == before | {"revision": 0, "epoch": 0}
    assert cluster.see().bindings[binding].binding.claim == "kept"
    order = m.ClaimRelease(id="op2", claim="other")
    assert world.ask(world.peer("sched", "controller"), order).code == "conflict", "op_ids outlive it"


def test_a_store_that_is_younger_than_its_nodes_uses_no_number_twice_and_is_obeyed() -> None:
    """C-STA-01: it was restored from a copy, or started empty; nodes know of later reigns and bindings."""
    cluster = Cluster("node1", "node2")
    cluster.node.arrive(epoch=7, newest=500)
    (made,) = cluster.bind(place(cluster.claim("a"), "node1", "GPU-a"))
    assert made == "b501"
    (order,) = cluster.node.listen()
    assert order.epoch == 7
    both = cluster.claim("b")
    two = cluster.bind(*(place(both, name, "GPU-b") for name in cluster.nodes))
    assert two == ["b502", "b503"]
    assert [one.epoch for one in cluster.nodes["node2"].listen()] == [1], "it has seen no other"
    cluster.order(m.ClaimRelease, claim="a")
    (order,) = (one for one in cluster.node.listen() if isinstance(one, m.BindingRelease))
    assert order.epoch == 7
    cluster.restart()
    assert cluster.bind(place(cluster.claim("c"), "node2", "GPU-c")) == ["b504"], "the store remembers it"


def test_a_node_that_is_heard_and_serves_no_claims_is_shown_as_what_keeps_its_bindings() -> None:
    """Its journal cannot be read, for instance: nothing has changed, and nobody releases what is to go."""
    cluster = Cluster()
    claim = cluster.claim()
    (binding,) = cluster.bind(place(claim, "node1", "GPU-a"))
    cluster.node.to(READY)
    cluster.world.gone("node1")
    cluster.node.holdings.serving = False
    cluster.node.arrive()
    seen = cluster.see()
    view = seen.bindings[binding]
    assert (view.binding.state, view.conditions) == (READY, ["unreachable"])
    assert "its agent serves no claims" in view.note
    assert [row.is_problem for row in claim_rows(seen.claims, seen.bindings)] == [True]
    cluster.world.gone("node1")
    cluster.node.holdings.serving = True
    assert not cluster.node.arrive().bindings
    view = cluster.see().bindings[binding]
    assert (view.conditions, view.note) == ([], "")
