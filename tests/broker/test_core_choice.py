"""What may be bound, and in which words the rest is refused: choices, partitions, access modes."""

import pytest

from tests.broker.cluster import READY, RELEASED, Cluster, mig, volume
from tests.broker.nodes import GPUS, Node, gpus, place
from xce.model import message as m
from xce.model.claim import (
    AccessMode,
    Ask,
    BindingState,
    InstanceAsk,
)
from xce.model.instance import Health, Instance, Inventory


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
    none = cluster.order(m.ClaimBind, places=[place(claim, "node1")])
    assert none.hint == "pick what it asks for by id; xce-broker instances node1 shows them"
    assert "is picked twice" in cluster.refused(place(claim, "node1", "GPU-a", "GPU-a"))
    exact = cluster.claim("exact", ask=Ask(instances=[InstanceAsk(kind="gpu", ids=["GPU-b"])]))
    assert "asks for GPU-b" in cluster.refused(place(exact, "node1", "GPU-a"))
    cluster.bind(place(exact, "node1", "GPU-b"))


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
