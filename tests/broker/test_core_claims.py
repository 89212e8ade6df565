"""The way of a claim at the broker: made, bound, ready or failed, released, provided for, asked for."""

import msgspec
import pytest

from tests.broker.cluster import FAILED, READY, RELEASED, Cluster, gang, volume
from tests.broker.nodes import pick, place
from xce.model import message as m
from xce.model.claim import (
    AccessMode,
    Ask,
    BindingState,
    Claim,
    ClaimForm,
    Consumer,
    InstanceAsk,
    MountAsk,
    PortsAsk,
    Reclaim,
    SharedAsk,
)


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
        (Claim(ask=Ask(ports=[PortsAsk(name="a"), PortsAsk(name="a")])), "both be XCE_PORTS_A"),
        (
            Claim(ask=Ask(mounts=[MountAsk(name="a-b", source="x"), MountAsk(name="A_b", source="y")])),
            "ask.mounts: 'a-b' and 'A_b' would both be XCE_DIR_A_B; give one of them another name",
        ),
        (
            Claim(ask=Ask(shared=[SharedAsk(volume="home"), SharedAsk(volume="fast")])),
            "ask.shared: 'in' and 'in' would both be XCE_DIR_IN",
        ),
        (
            Claim(ask=Ask(mounts=[MountAsk(name="out", source="x")], shared=[SharedAsk(volume="home")])),
            "ask.mounts, ask.shared: 'out' and 'out' would both be XCE_DIR_OUT",
        ),
        (
            Claim(ask=Ask(mounts=[MountAsk(name="scratch", source="x")], scratch_bytes=1 << 20)),
            "ask.scratch, ask.mounts: ",
        ),
        (Claim(ask=Ask(mounts=[MountAsk(name="claim.json", source="x")])), "beside the mounts; take another"),
        (Claim(ask=Ask(environment={"A B": "x"})), "'A B' cannot name a variable"),
        (Claim(ask=Ask(environment={"A": "x\rB=y"})), "A: may not have a zero byte or a line end"),
        (Claim(ask=Ask(environment={"A": "\N{SNOWMAN}" * 11_000})), "more than 32768 bytes"),
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


@pytest.mark.parametrize("field", ["user", "job", "index"])
def test_one_consumer_is_not_two_jobs_that_could_open_each_others_devices(field: str) -> None:
    """Two controllers that number their jobs alike; what one does not say is not different."""
    cluster = Cluster()

    def asked(claim: str, card: str, **consumer: str) -> m.Place:
        one: m.Place = place(cluster.claim(claim), "node1", card)
        return msgspec.structs.replace(one, consumer=Consumer(name="7", **consumer))

    first = asked("a", "GPU-a", **{field: "x"})
    (made,) = cluster.bind(first)
    other = asked("b", "GPU-b", **{field: "y"})
    words = f"for {field} 'y': consumer 7 is there with {field} 'x' (binding {made})"
    assert words in cluster.refused(other)
    cluster.bind(asked("c", "GPU-c"))
    cluster.order(m.ClaimRelease, claim="a")
    assert words in cluster.refused(other), "not before nothing of it is left"
    cluster.bind(msgspec.structs.replace(other, consumer=first.consumer))


def test_two_jobs_of_one_order_are_not_one_consumer() -> None:
    cluster = Cluster()
    two = [
        msgspec.structs.replace(
            place(cluster.claim(claim), "node1", card), consumer=Consumer(name="7", user=user)
        )
        for claim, card, user in (("a", "GPU-a", "x"), ("b", "GPU-b", "y"))
    ]
    assert "for user 'y': consumer 7 is there with user 'x'" in cluster.refused(*two)
    cluster.bind(two[1])
