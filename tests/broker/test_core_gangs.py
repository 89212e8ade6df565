"""Bindings that are ready together: one fact and one event, and what one member does to the others."""

import pytest

from tests.broker.cluster import FAILED, READY, RELEASED, Cluster, gang
from tests.broker.nodes import place
from xce.model import message as m
from xce.model.claim import (
    BindingState,
)
from xce.model.supply import HostState


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


@pytest.mark.parametrize("hosts", [("node1",), ("node1", "node2")], ids=["alone", "gang"])
def test_what_was_ready_in_time_has_all_the_time_to_be_ready_again(hosts: tuple[str, ...]) -> None:
    """The time was for the begin: a power cut of nodes and broker releases no job's binding."""
    cluster = Cluster(*hosts)
    gang(cluster, ready_within_s=30)
    for node in cluster.nodes.values():
        node.to(READY)
    for node in cluster.nodes.values():
        node.to(BindingState.PREPARING, reason="the host was rebooted")
    assert set(cluster.states().values()) == {"preparing"}
    cluster.restart()
    for _ in range(5):
        cluster.world.wait(9, step=3)
        for node in cluster.nodes.values():
            node.heartbeat()
    assert set(cluster.states().values()) == {"preparing"}
    for node in cluster.nodes.values():
        node.to(READY)
    assert set(cluster.states().values()) == {"ready"}


def test_a_gang_is_judged_whole_two_of_it_cannot_have_the_same() -> None:
    cluster = Cluster("node1", "node2")
    claim = cluster.claim("train")
    words = cluster.refused(
        place(claim, "node1", "GPU-a", consumer="j1"), place(claim, "node1", "GPU-a", consumer="j2")
    )
    assert "it is picked twice" in words
    assert cluster.see().bindings == {}
