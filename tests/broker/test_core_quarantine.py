"""What nobody may use: bindings that only a node knows, forced releases, instances given back dirty."""

from tests.broker.cluster import READY, RELEASED, Cluster, mig
from tests.broker.nodes import Node, place
from xce.model import message as m
from xce.model.claim import (
    BindingState,
    Chosen,
)
from xce.model.configuration import BrokerFile, Orphans


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
