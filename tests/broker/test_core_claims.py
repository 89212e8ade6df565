"""Claims at the broker: what is bound, what is refused and in which words, and what nodes make of it."""

from typing import Any

import msgspec
import pytest

from tests.broker.nodes import GPUS, Node, claimed, gpus, pick, place
from tests.broker.world import World
from xce.model import message as m
from xce.model.claim import (
    AccessMode,
    Ask,
    BindingState,
    Chosen,
    Claim,
    ClaimForm,
    Consumer,
    InstanceAsk,
    PortsAsk,
    Reclaim,
)
from xce.model.configuration import BrokerFile, Orphans
from xce.model.fact import Checkpoint
from xce.model.instance import Health, Instance, Inventory
from xce.model.supply import HostState

ONE_GPU = Ask(instances=[InstanceAsk(kind="gpu")])
READY, RELEASED, FAILED = BindingState.READY, BindingState.RELEASED, BindingState.FAILED


class Cluster:
    """A broker with nodes that have three GPUs each, and a controller that follows."""

    def __init__(self, *hosts: str, config: BrokerFile | None = None) -> None:
        self.world = World(config=config)
        self.nodes = {name: Node(self.world, name) for name in hosts or ("node1",)}
        for node in self.nodes.values():
            node.arrive()
        self.count = 0

    @property
    def node(self) -> Node:
        return next(iter(self.nodes.values()))

    def order(self, kind: Any, *, role: str = "controller", **fields: Any) -> Any:
        self.count += 1
        name = {"controller": "sched", "admin": "alice", "provider": "store"}[role]
        return self.world.ask(self.world.peer(name, role), kind(id=f"op{self.count}", **fields))

    def claim(self, name: str = "job1", **fields: Any) -> str:
        self.count += 1
        plain: dict[str, Any] = {"id": name, "ask": ONE_GPU}
        return claimed(self.world, Claim(**{**plain, **fields}), op=f"op{self.count}")

    def bind(self, *places: m.Place, **fields: Any) -> list[str]:
        done = self.order(m.ClaimBind, places=list(places), **fields)
        assert isinstance(done, m.Done), done
        return done.made

    def refused(self, *places: m.Place) -> str:
        answer = self.order(m.ClaimBind, places=list(places))
        assert isinstance(answer, m.Failed), answer
        return answer.message

    def see(self) -> Any:
        return self.world.snapshot()

    def states(self) -> dict[str, str]:
        return {name: one.binding.state.value for name, one in self.see().bindings.items()}

    def restart(self) -> None:
        """A new broker on the same facts; the nodes come back to it."""
        self.world = self.world.restart()
        for node in self.nodes.values():
            node.world, node.read = self.world, 0
            node.arrive()


# ---------------------------------------------------------------------------------------- the way of one


def test_a_claim_is_bound_prepared_ready_and_released() -> None:
    cluster = Cluster()
    claim = cluster.claim(
        ask=Ask(instances=[InstanceAsk(kind="gpu", count=2)], ports=[PortsAsk(name="http")])
    )
    (binding,) = cluster.bind(place(claim, "node1", "GPU-a", "GPU-b"))
    (order,) = cluster.node.listen()
    assert order.epoch == cluster.world.broker.state.changes.epoch
    assert (order.op_id, order.claim.id, order.binding.id) == ("op2", claim, binding)
    assert [one.id for one in order.binding.instances] == ["GPU-a", "GPU-b"]
    assert cluster.states() == {binding: "pending"}
    cluster.node.to(BindingState.PREPARING)
    assert cluster.see().claims[claim].state == "preparing"
    cluster.node.to(READY, evidence="e1", ports={"http": [20000]})
    seen = cluster.see()
    assert seen.claims[claim].state == "ready"
    assert (seen.bindings[binding].binding.evidence, seen.bindings[binding].binding.ports) == (
        "e1",
        {"http": [20000]},
    )
    cluster.order(m.ClaimRelease, claim=claim)
    (order,) = cluster.node.listen()
    assert isinstance(order, m.BindingRelease)
    assert order.binding == binding
    assert cluster.see().bindings[binding].binding.ports == {"http": [20000]}, "its own until it has gone"
    cluster.node.to(RELEASED)
    seen = cluster.see()
    assert (seen.claims, seen.bindings) == ({}, {}), "a template claim ends with its last binding"
    assert cluster.node.holds == {}, "the node was told that it may forget it"


def test_the_controller_learns_of_readiness_by_one_event_with_its_revision() -> None:
    cluster = Cluster()
    claim = cluster.claim()
    (binding,) = cluster.bind(place(claim, "node1", "GPU-a"))
    cluster.node.listen()
    reader = cluster.world.peer("follower", "controller")
    here = cluster.see().position
    cluster.world.say(reader, m.WatchRequest(id="w", since=here))
    cluster.node.to(BindingState.PREPARING)
    cluster.node.to(READY)
    deltas = [one for one in cluster.world.got(reader, m.Delta) if one.claims]
    states = [view.state for one in deltas if (view := one.claims[claim]) is not None]
    assert states == ["preparing", "ready"]
    last = deltas[-1]
    seen = last.bindings[binding]
    assert seen is not None
    assert last.revision == seen.binding.revision == cluster.world.facts[-1].revision


def test_a_failed_binding_says_why_frees_its_instances_and_stays_until_it_is_released() -> None:
    cluster = Cluster()
    claim = cluster.claim()
    (binding,) = cluster.bind(place(claim, "node1", "GPU-a"))
    cluster.node.listen()
    cluster.node.to(BindingState.PREPARING, conditions=["undoing"], note="cannot mount scratch")
    seen = cluster.see()
    assert (seen.bindings[binding].conditions, seen.bindings[binding].note) == (
        ["undoing"],
        "cannot mount scratch",
    )
    other = cluster.claim("job2")
    assert "has it (preparing)" in cluster.refused(place(other, "node1", "GPU-a")), "it is not undone yet"
    cluster.node.to(FAILED, reason="cannot mount scratch: no space")
    seen = cluster.see()
    assert seen.claims[claim].state == "failed"
    assert seen.bindings[binding].binding.reason == "cannot mount scratch: no space"
    cluster.bind(place(other, "node1", "GPU-a"))
    cluster.order(m.ClaimRelease, claim=claim)
    assert claim not in cluster.see().claims


def test_a_node_that_refuses_outright_has_failed_too() -> None:
    cluster = Cluster()
    claim = cluster.claim()
    cluster.bind(place(claim, "node1", "GPU-a"))
    cluster.node.listen()
    cluster.node.to(FAILED, reason="GPU-a is gone")
    assert cluster.see().claims[claim].state == "failed"


# --------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("inventory", "words"),
    [
        (gpus(generation=2), "was chosen from generation 1 of nvidia, now it is 2"),
        (gpus(complete=False), "the inventory of nvidia is not complete"),
        (gpus(complete=False, health=Health.UNKNOWN, reason="mismatch"), "GPU-a is unknown: mismatch"),
        (gpus("GPU-b"), "nvidia has no 'GPU-a'"),
        (gpus(health=Health.UNKNOWN), "GPU-a is unknown"),
        (gpus(health=Health.UNAVAILABLE, reason="XID 79"), "GPU-a is unavailable: XID 79"),
        (gpus(health=Health.LOST), "GPU-a is lost"),
        (gpus(health=Health.QUARANTINED), "GPU-a is quarantined"),
    ],
)
def test_a_choice_that_is_not_what_the_node_has_now_is_refused_in_words(
    inventory: Inventory, words: str
) -> None:
    cluster = Cluster()
    claim = cluster.claim()
    cluster.world.say("node1", m.InventoryNews(inventory=inventory))
    assert words in cluster.refused(place(claim, "node1", "GPU-a"))
    assert cluster.see().bindings == {}


def test_what_cannot_be_reached_or_is_not_known_is_never_free() -> None:
    cluster = Cluster("node1", "node2")
    claim = cluster.claim()
    assert "there is no host 'node9'" in cluster.refused(place(claim, "node9", "GPU-a"))
    assert "host node3 is expected" in cluster.refused(place(claim, "node3", "GPU-a"))
    cluster.order(m.HoldAdd, location="host:node2", reason="fans")
    assert "is held by controller:sched: fans" in cluster.refused(place(claim, "node2", "GPU-a"))
    cluster.order(m.HoldRelease, location="host:node2", owner="controller:sched")
    cluster.order(m.HostDrain, host="node2", reason="fans")
    assert "host node2 is draining" in cluster.refused(place(claim, "node2", "GPU-a"))
    cluster.world.gone("node1")
    assert "the agent of host node1 is not connected" in cluster.refused(place(claim, "node1", "GPU-a"))
    cluster.world.wait(200)
    assert "host node1 is lost" in cluster.refused(place(claim, "node1", "GPU-a"))
    world = cluster.world = cluster.world.restart()
    assert "has not confirmed itself" in cluster.refused(place(claim, "node1", "GPU-a"))
    unwilling = Node(world, "node1")
    unwilling.join()
    assert world.see("host:node1").about["claims"] == "no"
    assert "host node1 takes no claims" in cluster.refused(place(claim, "node1", "GPU-a"))
    silent = Node(world, "node1")
    silent.hello(bindings="something")
    silent.report(full=True)
    assert world.see("host:node1").about["claims"] == "yes"
    assert "has not said what it has bound" in cluster.refused(place(claim, "node1", "GPU-a"))


def test_an_instance_is_in_one_live_binding_whatever_its_state() -> None:
    cluster = Cluster()
    first, second = cluster.claim("job1"), cluster.claim("job2")
    (binding,) = cluster.bind(place(first, "node1", "GPU-a"))
    wanted = place(second, "node1", "GPU-a", consumer="j2")
    assert f"binding {binding} of claim job1 has it (pending)" in cluster.refused(wanted)
    cluster.node.to(BindingState.PREPARING)
    assert "has it (preparing)" in cluster.refused(wanted)
    cluster.node.to(READY)
    assert "has it (ready)" in cluster.refused(wanted)
    cluster.order(m.ClaimRelease, bindings=[binding])
    assert "has it (releasing)" in cluster.refused(wanted)
    cluster.restart()
    assert "has it (releasing)" in cluster.refused(wanted)
    cluster.node.to(RELEASED)
    cluster.bind(wanted)


def test_two_orders_that_want_the_same_are_judged_one_after_the_other_before_either_is_durable() -> None:
    cluster = Cluster()
    first, second = cluster.claim("job1"), cluster.claim("job2")
    sched = cluster.world.peer("sched", "controller")
    cluster.world.commits = False
    cluster.world.say(sched, m.ClaimBind(id="x", places=[place(first, "node1", "GPU-a")]))
    cluster.world.say(sched, m.ClaimBind(id="y", places=[place(second, "node1", "GPU-a")]))
    assert cluster.node.listen() == [], "no order leaves before it is durable"
    cluster.world.commit()
    (done,), (failed,) = cluster.world.got(sched, m.Done)[-1:], cluster.world.got(sched, m.Failed)
    assert (done.id, failed.id) == ("x", "y")
    assert len(cluster.node.listen()) == 1


def test_a_claim_gets_what_it_asks_for_no_more_and_no_less() -> None:
    cluster = Cluster()
    claim = cluster.claim(ask=Ask(instances=[InstanceAsk(kind="gpu", count=2)]))
    assert "asks for 2 of kind 'gpu', 1 are picked" in cluster.refused(place(claim, "node1", "GPU-a"))
    assert "asks for 2 of kind 'gpu', 3 are picked" in cluster.refused(place(claim, "node1", *GPUS))
    assert "is picked twice" in cluster.refused(place(claim, "node1", "GPU-a", "GPU-a"))
    exact = cluster.claim("exact", ask=Ask(instances=[InstanceAsk(kind="gpu", ids=["GPU-b"])]))
    assert "asks for GPU-b" in cluster.refused(place(exact, "node1", "GPU-a"))
    cluster.bind(place(exact, "node1", "GPU-b"))


# --------------------------------------------------------------------------------------------- partitions


def mig() -> Inventory:
    """One GPU with seven slices of compute and eight of memory, and profiles that overlap."""
    gpu = Instance(id="GPU-m", kind="gpu", capacity={"slices": 7, "memory": 8})
    profiles = {"1g": 1, "3g": 4, "4g": 4}
    slices = [
        Instance(
            id=f"MIG-{name}-{number}",
            kind="mig",
            parent="GPU-m",
            consumes={"slices": int(name[0]), "memory": memory},
        )
        for name, memory in profiles.items()
        for number in range(2)
    ]
    return Inventory(reporter="nvidia", generation=1, complete=True, instances=[gpu, *slices])


def test_a_whole_gpu_and_its_slices_exclude_each_other_both_ways() -> None:
    cluster = Cluster()
    cluster.world.say("node1", m.InventoryNews(inventory=mig()))
    whole = cluster.claim("whole")
    part = cluster.claim("part", ask=Ask(instances=[InstanceAsk(kind="mig")]))
    (binding,) = cluster.bind(place(part, "node1", "MIG-1g-0"))
    assert "MIG-1g-0 is a part of it" in cluster.refused(place(whole, "node1", "GPU-m", consumer="j2"))
    cluster.order(m.ClaimRelease, bindings=[binding])
    cluster.node.to(RELEASED)
    cluster.bind(place(whole, "node1", "GPU-m", consumer="j2"))
    again = cluster.claim("again", ask=Ask(instances=[InstanceAsk(kind="mig")]))
    assert "it is a part of GPU-m, and binding" in cluster.refused(place(again, "node1", "MIG-1g-0"))


def test_slices_draw_from_their_parent_until_it_has_no_more() -> None:
    cluster = Cluster()
    cluster.world.say("node1", m.InventoryNews(inventory=mig()))
    ask = Ask(instances=[InstanceAsk(kind="mig")])
    for number, name in enumerate(("MIG-3g-0", "MIG-3g-1")):
        cluster.bind(place(cluster.claim(f"c{name}", ask=ask), "node1", name, consumer=f"j{number}"))
    words = cluster.refused(place(cluster.claim("more", ask=ask), "node1", "MIG-1g-0", consumer="j9"))
    assert "GPU-m has 8 of memory, 9 would be used" in words


def test_a_counter_that_the_parent_does_not_have_is_unknown_and_not_free() -> None:
    cluster = Cluster()
    inventory = mig()
    bare = [Instance(id="GPU-m", kind="gpu", capacity={"slices": 7}), *inventory.instances[1:]]
    cluster.world.say(
        "node1",
        m.InventoryNews(inventory=Inventory(reporter="nvidia", generation=1, complete=True, instances=bare)),
    )
    claim = cluster.claim(ask=Ask(instances=[InstanceAsk(kind="mig")]))
    assert "nobody knows how much memory GPU-m has" in cluster.refused(place(claim, "node1", "MIG-1g-0"))


# ------------------------------------------------------------------------------------------ access modes


def volume(cluster: Cluster, access: AccessMode) -> str:
    return cluster.claim(f"v-{access.value}", form=ClaimForm.STANDALONE, access=access, ask=Ask())


@pytest.mark.parametrize(
    ("access", "same_host", "other_host"),
    [
        (AccessMode.RWO, "", "one host may have it, and node1 does"),
        (AccessMode.RWOP, "one consumer may have it, and j1 on node1 does", "one consumer may have it"),
        (AccessMode.ROX, "", ""),
        (AccessMode.RWX, "", ""),
    ],
)
def test_access_modes_hold_over_all_bindings(access: AccessMode, same_host: str, other_host: str) -> None:
    cluster = Cluster("node1", "node2")
    claim = volume(cluster, access)
    (first,) = cluster.bind(place(claim, "node1", consumer="j1"))
    for wanted, words in (
        (place(claim, "node1", consumer="j2"), same_host),
        (place(claim, "node2"), other_host),
    ):
        if words:
            assert words in cluster.refused(wanted)
        else:
            cluster.bind(wanted)
    assert all(one.binding.read_only == (access is AccessMode.ROX) for one in cluster.see().bindings.values())
    assert (
        "has it already" in cluster.refused(place(claim, "node1", consumer="j1")) or access is AccessMode.RWOP
    )
    cluster.order(m.ClaimRelease, bindings=[first])
    if other_host:
        assert other_host in cluster.refused(place(claim, "node2")), "while it is releasing it is still there"


def test_a_standalone_claim_outlives_its_bindings_and_is_not_worse_for_those_that_ended() -> None:
    cluster = Cluster()
    claim = volume(cluster, AccessMode.RWX)
    assert cluster.see().claims[claim].state == "ready"
    cluster.bind(place(claim, "node1"))
    assert cluster.see().claims[claim].state == "pending"
    answer = cluster.order(m.ClaimDelete, claim=claim)
    assert "cannot delete claim v-RWX: b" in answer.message
    cluster.node.listen()
    cluster.node.to(FAILED, reason="no such volume here")
    assert cluster.see().claims[claim].state == "ready"
    cluster.order(m.ClaimDelete, claim=claim)
    assert cluster.see().claims == {}


def test_a_claim_of_a_provider_waits_for_it_and_is_forgotten_when_it_has_let_go() -> None:
    cluster = Cluster()
    claim = cluster.claim(
        "vol",
        form=ClaimForm.STANDALONE,
        provider="store",
        reclaim=Reclaim.DELETE,
        ask=Ask(),
        access=AccessMode.RWO,
    )
    assert cluster.see().claims[claim].state == "pending"
    assert "its provider store says pending" in cluster.refused(place(claim, "node1"))
    other = cluster.world.ask(
        cluster.world.peer("else", "provider"), m.ClaimProvide(id="p", claim=claim, state=READY)
    )
    assert other.code == "forbidden"
    cluster.order(m.ClaimProvide, role="provider", claim=claim, state=READY, volume={"path": "/v/7"})
    assert cluster.see().claims[claim].volume == {"path": "/v/7"}
    (binding,) = cluster.bind(place(claim, "node1"))
    (order,) = cluster.node.listen()
    assert order.volume == {"path": "/v/7"}
    cluster.order(m.ClaimRelease, bindings=[binding])
    cluster.node.to(RELEASED)
    cluster.order(m.ClaimDelete, claim=claim)
    assert cluster.see().claims[claim].conditions == ["ending"]
    cluster.order(m.ClaimProvide, role="provider", claim=claim, state=RELEASED)
    assert cluster.see().claims == {}


# ----------------------------------------------------------------------------------------------- op_ids


def test_the_same_order_gets_the_same_answer_with_the_same_ids_also_after_a_restart() -> None:
    cluster = Cluster()
    claim = cluster.claim()
    order = m.ClaimBind(id="bind-1", places=[place(claim, "node1", "GPU-a")])
    first = cluster.world.ask(cluster.world.peer("sched", "controller"), order)
    assert first.made[0].startswith("b")
    cluster.node.to(READY)
    assert cluster.world.ask(cluster.world.peer("sched", "controller"), order) == first
    cluster.restart()
    assert cluster.world.ask(cluster.world.peer("sched", "controller"), order) == first
    assert len(cluster.see().bindings) == 1
    assert cluster.node.prepares == first.made


# ----------------------------------------------------------------------------------------------- gangs


def gang(cluster: Cluster, **fields: Any) -> list[str]:
    claim = cluster.claim("train")
    places = [place(claim, host, "GPU-a", consumer="j1") for host in cluster.nodes]
    made = cluster.bind(*places, **fields)
    for node in cluster.nodes.values():
        node.listen()
    return made


def test_a_gang_is_ready_in_one_fact_and_one_event_when_every_node_has_verified() -> None:
    cluster = Cluster("node1", "node2", "node3")
    made = gang(cluster)
    here = cluster.see().position
    follower = cluster.world.peer("follower", "controller")
    cluster.world.say(follower, m.WatchRequest(id="w", since=here, credit=1000))
    *early, last = cluster.nodes.values()
    for node in early:
        node.to(READY, evidence=f"of {node.name}")
    seen = cluster.see()
    assert set(cluster.states().values()) == {"preparing", "pending"}
    assert seen.bindings[made[0]].conditions == ["verified"]
    assert {node.standing[name] for node in early for name in node.holds} == {"preparing"}
    facts = len(cluster.world.facts)
    last.to(READY, evidence="of node3")
    assert len(cluster.world.facts) == facts + 1, "one commit"
    assert set(cluster.states().values()) == {"ready"}
    ready = [
        one
        for one in cluster.world.got(follower, m.Delta)
        if any(view is not None and view.binding.state is READY for view in one.bindings.values())
    ]
    assert len(ready) == 1, "one event"
    assert ready[0].bindings.keys() == set(made)
    train = ready[0].claims["train"]
    assert train is not None
    assert train.state == "ready"
    assert {cluster.see().bindings[name].binding.evidence for name in made} == {
        "of node1",
        "of node2",
        "of node3",
    }
    for node in cluster.nodes.values():
        node.listen()
        assert set(node.standing.values()) == {"ready"}, "every node is told"


def test_one_failure_in_a_gang_releases_the_rest() -> None:
    cluster = Cluster("node1", "node2", "node3")
    made = gang(cluster)
    first, second, third = cluster.nodes.values()
    first.to(READY)
    second.to(FAILED, reason="cannot mount")
    for node in (first, third):
        (order,) = node.listen()
        assert isinstance(order, m.BindingRelease)
        assert f"{made[1]} on node2: cannot mount" in order.reason
    assert sorted(cluster.states().values()) == ["failed", "releasing", "releasing"]
    first.to(RELEASED)
    third.to(RELEASED)
    assert cluster.see().claims["train"].state == "failed"
    other = cluster.claim("next")
    cluster.bind(*(place(other, host, "GPU-a", consumer="j2") for host in cluster.nodes))


def test_a_gang_that_is_ready_does_not_fall_with_one_of_its_nodes() -> None:
    cluster = Cluster("node1", "node2")
    made = gang(cluster)
    for node in cluster.nodes.values():
        node.to(READY)
    first = cluster.nodes["node1"]
    first.to(BindingState.PREPARING, reason="the host was rebooted")
    assert cluster.states() == {made[0]: "preparing", made[1]: "ready"}
    first.to(READY)
    assert set(cluster.states().values()) == {"ready"}
    first.to(BindingState.PREPARING)
    first.to(FAILED, reason="GPU-a is gone")
    assert cluster.states() == {made[0]: "failed", made[1]: "ready"}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_gang_that_was_ready_comes_back_after_all_its_nodes_were_rebooted_though_one_is_released(
    restarted: bool,
) -> None:
    cluster = Cluster("node1", "node2", "node3")
    made = gang(cluster)
    for node in cluster.nodes.values():
        node.to(READY)
    for node in cluster.nodes.values():
        node.to(BindingState.PREPARING, reason="the host was rebooted")
    assert set(cluster.states().values()) == {"preparing"}
    cluster.order(m.ClaimRelease, bindings=made[:1])
    if restarted:
        cluster.restart()
    _, second, third = cluster.nodes.values()
    second.to(READY)
    assert cluster.states() == {made[0]: "releasing", made[1]: "ready", made[2]: "preparing"}
    second.to(BindingState.PREPARING)
    third.to(FAILED, reason="GPU-a is gone")
    second.to(READY)
    assert cluster.states() == {made[0]: "releasing", made[1]: "ready", made[2]: "failed"}


def test_a_gang_whose_node_is_lost_before_it_is_ready_waits_and_is_ready_when_it_is_back() -> None:
    cluster = Cluster("node1", "node2")
    gang(cluster)
    first, second = cluster.nodes.values()
    first.to(READY)
    cluster.world.gone("node1")
    for _ in range(12):
        cluster.world.wait(9, step=3)
        second.heartbeat()
    assert cluster.see().locations["host:node1"].state == HostState.LOST.value
    second.to(READY)
    assert "ready" not in cluster.states().values(), "what a lost node verified is not known to hold"
    first.arrive()
    assert set(cluster.states().values()) == {"ready"}
    assert len(first.prepares) == 1


def test_a_gang_that_is_not_ready_in_time_is_released() -> None:
    cluster = Cluster("node1", "node2")
    gang(cluster, ready_within_s=30)
    cluster.nodes["node1"].to(READY)
    cluster.world.wait(20)
    cluster.restart()
    for _ in range(4):
        cluster.world.wait(9, step=3)
        for node in cluster.nodes.values():
            node.heartbeat()
    assert set(cluster.states().values()) == {"releasing"}
    assert {one.binding.reason for one in cluster.see().bindings.values()} == {"not ready in time"}


def test_a_gang_is_judged_whole_two_of_it_cannot_have_the_same() -> None:
    cluster = Cluster("node1", "node2")
    claim = cluster.claim("train")
    words = cluster.refused(
        place(claim, "node1", "GPU-a", consumer="j1"), place(claim, "node1", "GPU-a", consumer="j2")
    )
    assert "it is picked twice" in words
    assert cluster.see().bindings == {}


# -------------------------------------------------------------------------------------- nodes come and go


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


# ------------------------------------------------------------------------------ orphans, force, quarantine


def orphan(cluster: Cluster) -> None:
    """The node has a binding that the broker has never heard of."""
    chosen = [Chosen(id="GPU-b", reporter="nvidia", generation=1, kind="gpu")]
    cluster.world.gone("node1")
    cluster.node.instances["b9999"] = chosen
    cluster.node.move("b9999", READY)
    cluster.node.arrive()


def test_what_only_a_node_knows_is_told_and_not_free_and_left_alone() -> None:
    cluster = Cluster()
    orphan(cluster)
    assert cluster.node.holds["b9999"].state is READY
    assert cluster.node.standing == {"b9999": "unknown"}
    claim = cluster.claim()
    assert "bound by b9999, which the broker does not know" in cluster.refused(place(claim, "node1", "GPU-b"))
    assert cluster.see().locations["host:node1"].quarantined.keys() == {"GPU-b"}
    status = cluster.world.ask(cluster.world.peer("sched", "controller"), m.StatusRequest(id="s"))
    assert status.trouble == ["host node1 has bindings that the broker does not know: b9999"]
    cluster.node.to(RELEASED)
    assert cluster.see().locations["host:node1"].quarantined == {}
    cluster.bind(place(claim, "node1", "GPU-b"))
    assert "b9999" not in cluster.node.holds, "the node was told that it may forget it"


def test_by_policy_what_only_a_node_knows_is_released() -> None:
    cluster = Cluster(config=BrokerFile(orphans=Orphans.CLEAN))
    orphan(cluster)
    assert cluster.node.holds["b9999"].state is BindingState.RELEASING
    cluster.node.to(RELEASED)
    assert cluster.see().locations["host:node1"].quarantined == {}


def test_a_forced_release_needs_an_admin_and_a_reason_and_leads_to_quarantine() -> None:
    cluster = Cluster()
    claim = cluster.claim()
    (binding,) = cluster.bind(place(claim, "node1", "GPU-a"))
    cluster.node.to(READY)
    cluster.world.gone("node1")
    assert cluster.order(m.BindingForce, binding=binding, reason="burnt").code == "forbidden"
    assert cluster.order(m.BindingForce, role="admin", binding=binding, reason=" ").code == "invalid"
    done = cluster.order(m.BindingForce, role="admin", binding=binding, reason="the host burnt")
    assert isinstance(done, m.Done)
    assert cluster.states() == {binding: "released"}
    cluster.node.arrive()
    assert cluster.node.holds[binding].state is BindingState.RELEASING, (
        "the node takes it back when it returns"
    )
    other = cluster.claim("job2")
    assert "it is quarantined: forced by admin:alice: the host burnt" in cluster.refused(
        place(other, "node1", "GPU-a")
    )
    cluster.restart()
    assert "it is quarantined" in cluster.refused(place(other, "node1", "GPU-a"))
    cluster.node.to(RELEASED)
    assert "it is quarantined" in cluster.refused(place(other, "node1", "GPU-a"))
    assert cluster.order(
        m.QuarantineClear, role="admin", host="node1", instance="GPU-x", reason="ok"
    ).code == ("not-found")
    cluster.order(m.QuarantineClear, role="admin", host="node1", instance="GPU-a", reason="tested")
    cluster.bind(place(other, "node1", "GPU-a"))


def test_what_a_node_gives_back_dirty_is_quarantined() -> None:
    cluster = Cluster()
    (binding,) = cluster.bind(place(cluster.claim(), "node1", "GPU-a"))
    cluster.node.to(READY)
    cluster.order(m.ClaimRelease, claim="job1")
    cluster.node.to(RELEASED, quarantine={"GPU-a": "a process of its is left in the driver"})
    kept = cluster.see().locations["host:node1"].quarantined["GPU-a"]
    assert (kept.by, kept.binding) == ("agent:node1", binding)
    assert "left in the driver" in cluster.refused(place(cluster.claim("job2"), "node1", "GPU-a"))


def test_what_is_in_use_while_it_is_released_is_quarantined_until_its_node_finds_it_clean() -> None:
    cluster = Cluster()
    (binding,) = cluster.bind(place(cluster.claim(), "node1", "GPU-a"))
    cluster.node.to(READY)
    cluster.order(m.ClaimRelease, bindings=[binding])
    held = {"conditions": ["blocked"], "note": "pid 7 holds it", "quarantine": {"GPU-a": "pid 7 holds it"}}
    cluster.node.to(BindingState.RELEASING, **held)
    view = cluster.see().bindings[binding]
    assert (view.conditions, view.note) == (["blocked"], "pid 7 holds it")
    assert cluster.see().locations["host:node1"].quarantined.keys() == {"GPU-a"}
    cluster.node.to(RELEASED)
    assert cluster.see().locations["host:node1"].quarantined == {}


def test_an_admin_quarantines_a_slice_and_the_whole_gpu_is_not_free() -> None:
    cluster = Cluster()
    cluster.world.say("node1", m.InventoryNews(inventory=mig()))
    cluster.order(m.QuarantineSet, role="admin", host="node1", instance="MIG-1g-0", reason="odd")
    assert "MIG-1g-0 is a part of it" in cluster.refused(place(cluster.claim(), "node1", "GPU-m"))
    assert (
        cluster.order(m.QuarantineSet, role="admin", host="node1", instance="X", reason="odd").code
        == "not-found"
    )


def test_a_host_with_live_bindings_is_not_released() -> None:
    cluster = Cluster()
    cluster.order(m.HostAdd, role="provider", host="cloud1")
    node = cluster.nodes["cloud1"] = Node(cluster.world, "cloud1")
    node.arrive()
    (binding,) = cluster.bind(place(cluster.claim(), "cloud1", "GPU-a"))
    words = cluster.order(m.HostRelease, role="provider", host="cloud1", reason="cheap").message
    assert f"binding {binding} of claim job1 is on it" in words


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


# ----------------------------------------------------------------------------------------------- asking


def test_a_claim_is_asked_for_by_name_host_or_gang() -> None:
    cluster = Cluster("node1", "node2")
    one = cluster.claim("one")
    (single,) = cluster.bind(place(one, "node1", "GPU-b", consumer="j2"))
    made = gang(cluster)
    whole = cluster.see()
    by_claim = cluster.order(m.ClaimsRequest, claim="one")
    assert (by_claim.claims, by_claim.bindings) == (
        {"one": whole.claims["one"]},
        {single: whole.bindings[single]},
    )
    assert cluster.order(m.ClaimsRequest, host="node1").bindings.keys() == {single, made[0]}
    of_gang = cluster.order(m.ClaimsRequest, gang=whole.bindings[made[0]].binding.gang)
    assert (of_gang.bindings.keys(), of_gang.claims.keys()) == (set(made), {"train"})


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (Claim(id="../x"), "letters, digits"),
        (Claim(owner="a\nb"), "printable characters only"),
        (Claim(reclaim=Reclaim.DELETE), "only a standalone claim has data to delete"),
        (Claim(ask=Ask(instances=[InstanceAsk(kind="gpu", count=0)])), "ask.instances[0].count"),
        (
            Claim(ask=Ask(ports=[PortsAsk(name="a", count=3, low=10, high=11)])),
            "3 ports do not fit in 10 to 11",
        ),
        (Claim(ask=Ask(ports=[PortsAsk(name="a"), PortsAsk(name="a")])), "ask.ports: a name occurs twice"),
        (Claim(ask=Ask(environment={"A B": "x"})), "'A B' cannot name a variable"),
    ],
)
def test_a_claim_that_makes_no_sense_is_refused_with_the_field(claim: Claim, words: str) -> None:
    answer = Cluster().order(m.ClaimCreate, claim=claim)
    assert answer.code == "invalid"
    assert words in answer.message


def test_the_broker_makes_an_id_for_a_claim_without_one_and_names_its_creator() -> None:
    cluster = Cluster()
    name = cluster.claim("")
    view = cluster.see().claims[name]
    assert (name[0], view.claim.owner, view.by, view.state) == ("c", "sched", "controller:sched", "pending")
    assert "cannot create claim same: it exists" in (
        cluster.order(m.ClaimCreate, claim=Claim(id=cluster.claim("same"))).message
    )


def test_a_consumer_with_a_name_that_cannot_be_kept_is_refused() -> None:
    cluster = Cluster()
    bad = m.Place(claim=cluster.claim(), host="node1", consumer=Consumer(name=""), instances=pick("GPU-a"))
    assert "consumer.name ''" in cluster.refused(bad)
