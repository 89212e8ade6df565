"""Orders: who may, what becomes of them, and that the same order is carried out once."""

from typing import Any

import pytest

from tests.broker.world import LICENCES, TYPES, Agent, World, joined, key_of, pools_site, site
from xce.broker.core import access
from xce.model import message as m
from xce.model.fact import KeyAdded
from xce.model.resource import Kind, ResourceType
from xce.model.role import Role
from xce.model.supply import Hold, HoldEnds, PoolAmount
from xce.wire import keys


def refused(answer: Any) -> str:
    assert isinstance(answer, m.Failed), answer
    return answer.code


# ------------------------------------------------------------------------------------------------ access


def test_every_message_to_the_broker_has_a_row_in_the_table() -> None:
    said = {*m.ToBroker.__args__, *m.Tick.__args__}
    assert set(access.ROLES) == said


@pytest.mark.parametrize("role", [role for role in Role if role not in access.NEEDS_HELLO])
def test_what_a_role_may_not_say_is_refused_counted_and_audited(role: Role) -> None:
    world = World()
    peer = world.peer("someone", role.value)
    orders = [
        m.HostAdmit(id="1", host="node1"),
        m.KeyRevoke(id="2", name="x", reason="y"),
        m.HostAdd(id="3", host="new"),
        m.PoolSet(id="4", pool="p", resource="r"),
        m.KeysRequest(id="5"),
        m.MineRequest(id="6"),
    ]
    for order in orders:
        answer = world.ask(peer, order)
        by_role = isinstance(answer, m.Failed) and "may not say" in answer.message
        assert by_role == (role not in access.ROLES[type(order)])
    count = sum(role not in access.ROLES[type(order)] for order in orders)
    assert world.broker.state.counts["refused.forbidden"] == count
    mutating = [
        order for order in orders if isinstance(order, m.Order) and role not in access.ROLES[type(order)]
    ]
    assert len([entry for entry in world.audit() if entry.result == "forbidden"]) == len(mutating)


def test_an_agent_cannot_give_orders_or_read_the_map() -> None:
    world = World()
    Agent(world, "node1").join(fan=1)
    for message in (m.HostDrain(id="1", host="node2", reason="x"), m.SnapshotRequest(id="2")):
        assert refused(world.ask("node1", message)) == "forbidden"


# ------------------------------------------------------------------------------------------------- op_id


def test_the_same_order_twice_is_carried_out_once_and_answered_the_same() -> None:
    world = World()
    admin = world.peer("alice", "admin")
    order = m.HostDrain(id="op1", host="node1", reason="fans")
    first = world.ask(admin, order)
    facts = len(world.facts)
    world.ask(admin, m.HostUndrain(id="op2", host="node1"))
    assert world.ask(admin, order) == first
    assert len(world.facts) == facts + 1
    assert world.see("host:node1").state == "expected", "the repeated drain did not drain again"
    world = world.restart()
    assert world.ask(world.peer("alice", "admin"), order) == first


def test_an_order_that_changes_nothing_is_remembered_too() -> None:
    world = World()
    admin = world.peer("alice", "admin")
    world.ask(admin, m.HostDrain(id="op1", host="node1", reason="fans"))
    noop = m.HostDrain(id="op2", host="node1", reason="fans")
    assert isinstance(world.ask(admin, noop), m.Done)
    world.ask(admin, m.HostUndrain(id="op3", host="node1"))
    world = world.restart()
    admin = world.peer("alice", "admin")
    assert isinstance(world.ask(admin, noop), m.Done)
    assert world.see("host:node1").state == "expected"


def test_an_id_that_was_given_to_another_order_is_a_conflict() -> None:
    world = World()
    admin = world.peer("alice", "admin")
    world.ask(admin, m.HostDrain(id="op1", host="node1", reason="fans"))
    for other in (m.HostDrain(id="op1", host="node2", reason="fans"), m.HostUndrain(id="op1", host="node1")):
        assert refused(world.ask(admin, other)) == "conflict"
    bob = world.peer("bob", "admin")
    assert isinstance(world.ask(bob, m.HostUndrain(id="op1", host="node1")), m.Done), (
        "ids are each peer's own"
    )


def test_an_order_repeated_while_it_waits_for_the_disk_is_answered_with_it() -> None:
    world = World()
    admin = world.peer("alice", "admin")
    world.commits = False
    order = m.HostDrain(id="op1", host="node1", reason="fans")
    world.say(admin, order)
    world.say(admin, order)
    assert world.inbox(admin) == []
    world.commit()
    assert world.inbox(admin) == [m.Done(id="op1", revision=world.facts[-1].revision)] * 2
    assert len(world.waiting) == 0


@pytest.mark.parametrize("bad", ["", "x" * 129])
def test_an_order_needs_an_id_that_can_be_kept(bad: str) -> None:
    world = World()
    order = m.HostDrain(id=bad, host="node1", reason="x")
    assert refused(world.ask(world.peer("alice", "admin"), order)) == "invalid"


# -------------------------------------------------------------------------------------------- durability


def test_nothing_is_answered_or_shown_before_it_is_durable() -> None:
    world = World()
    admin = world.peer("alice", "admin")
    world.snapshot()
    world.commits = False
    world.say(admin, m.HostDrain(id="op1", host="node1", reason="fans"))
    assert world.inbox(admin) == []
    assert world.see("host:node1").state == "expected"
    world.commit()
    assert isinstance(world.inbox(admin)[-1], m.Done)
    assert world.see("host:node1").state == "draining"


def test_orders_are_judged_by_what_is_on_its_way() -> None:
    world = World()
    admin = world.peer("alice", "admin")
    world.commits = False
    world.say(admin, m.HostAdd(id="1", host="new"))
    world.say(admin, m.HostDrain(id="2", host="new", reason="x"))
    world.say(admin, m.HoldAdd(id="3", location="host:new", reason="y"))
    world.commit()
    world.commits = True
    assert [type(answer) for answer in world.inbox(admin)] == [m.Done] * 3
    seen = world.see("host:new")
    assert (seen.state, [hold.reason for hold in seen.holds]) == ("draining", ["y"])


def test_when_the_disk_refuses_callers_are_told_and_nothing_has_changed() -> None:
    """C-STA-04, the core's half."""
    world = World()
    admin = world.peer("alice", "admin")
    world.snapshot()
    before = world.snapshot().locations
    world.commits = False
    order = m.HostDrain(id="op1", host="node1", reason="fans")
    world.say(admin, order)
    world.say(admin, m.HoldAdd(id="op2", location="host:node1", reason="y"))
    world.fail()
    assert [refused(answer) for answer in world.inbox(admin)] == ["not-durable"] * 2
    assert world.snapshot().locations == before
    assert world.broker.state.journal.draft == world.broker.state.journal.ledger
    assert refused(world.ask(admin, m.HostUndrain(id="op3", host="node2"))) == "not-durable"
    assert world.waiting == [], "while the store says no, nothing is tried"
    status = world.ask(admin, m.StatusRequest(id="s"))
    assert status.trouble == ["no space left on device"]
    world._take(world.broker.fault(""))
    world.commits = True
    assert isinstance(world.ask(admin, order), m.Done), (
        "the same order with the same id works when there is room"
    )
    assert world.see("host:node1").state == "draining"
    assert [note for note in world.notes() if "durable" in note or "space" in note] == [
        "no space left on device",
        "facts can be made durable again",
    ]


def test_a_fact_that_is_on_the_disk_after_all_counts() -> None:
    world = World()
    admin = world.peer("alice", "admin")
    world.commits = False
    order = m.HostDrain(id="op1", host="node1", reason="fans")
    world.say(admin, order)
    (persist,) = world.waiting
    world.waiting.clear()
    world.commits = True
    assert persist.answer is not None
    world.facts += persist.facts
    world._take(world.broker.not_durable(persist.facts, [persist.answer], world.now))
    world.turn()
    assert refused(world.inbox(admin)[-1]) == "not-durable"
    assert world.see("host:node1").state == "draining"
    assert isinstance(world.ask(admin, order), m.Done), "asked again, it is the same order"


def test_an_agent_that_joins_while_the_disk_is_full_is_served() -> None:
    world = World()
    world._take(world.broker.fault("no space left on device"))
    Agent(world, "node1", key="")
    world.connect("node1", uid=0)
    agent = Agent(world, "node1")
    agent.join(fan=1)
    assert world.see("host:node1").values == {"fan": 1}
    assert world.ask("node1", m.Declare(types={"x.yaml": [LICENCES["slots"]]})).types["slots"]


# -------------------------------------------------------------------------------------- drains and holds


def test_only_its_owner_or_an_admin_ends_a_drain() -> None:
    world = World()
    scheduler, other = world.peer("sched", "controller"), world.peer("other", "controller")
    world.ask(scheduler, m.HostDrain(id="1", host="node1", reason="x"))
    assert refused(world.ask(other, m.HostUndrain(id="2", host="node1"))) == "forbidden"
    assert refused(world.ask(other, m.HostDrain(id="3", host="node1", reason="y"))) == "conflict"
    assert isinstance(world.ask(scheduler, m.HostUndrain(id="4", host="node1")), m.Done)
    world.ask(scheduler, m.HostDrain(id="5", host="node1", reason="x"))
    admin = world.peer("alice", "admin")
    assert isinstance(world.ask(admin, m.HostDrain(id="6", host="node1", reason="mine now")), m.Done)
    assert world.see("host:node1").about["drained"] == "mine now (admin:alice)"


def test_holds_stand_side_by_side_and_only_their_owners_end_them() -> None:
    world = World()
    scheduler, admin = world.peer("sched", "controller"), world.peer("alice", "admin")
    world.ask(scheduler, m.HoldAdd(id="1", location="host:node1", reason="full disk", label="disk"))
    world.ask(admin, m.HoldAdd(id="2", location="host:node1", reason="look at it"))
    assert world.see("host:node1").holds == [
        Hold(owner="admin:alice", reason="look at it", ends=HoldEnds.MANUAL, since="2026-01-01T00:00:00Z"),
        Hold(
            owner="controller:sched/disk",
            reason="full disk",
            ends=HoldEnds.OWNER,
            since="2026-01-01T00:00:00Z",
        ),
    ]
    foreign = m.HoldRelease(id="3", location="host:node1", owner="admin:alice")
    assert refused(world.ask(scheduler, foreign)) == "forbidden"
    own = m.HoldRelease(id="4", location="host:node1", owner="controller:sched/disk")
    assert isinstance(world.ask(scheduler, own), m.Done)
    assert refused(
        world.ask(scheduler, m.HoldRelease(id="5", location="host:node1", owner="controller:sched"))
    ) == ("not-found")
    assert isinstance(
        world.ask(admin, m.HoldRelease(id="6", location="host:node1", owner="admin:alice")), m.Done
    )
    assert world.see("host:node1").holds == []


def test_groups_and_pools_can_be_held() -> None:
    world = World(files=pools_site(members={"gpu": ["node1"]}))
    admin = world.peer("alice", "admin")
    for key in ("group:gpu", "pool:matlab"):
        assert isinstance(world.ask(admin, m.HoldAdd(id=key, location=key, reason="x")), m.Done)
        assert [hold.reason for hold in world.see(key).holds] == ["x"]
    assert world.restart().see("pool:matlab").holds == world.see("pool:matlab").holds


@pytest.mark.parametrize(
    ("order", "code", "words"),
    [
        (m.HostDrain(id="1", host="nowhere", reason="x"), "not-found", "there is no such host"),
        (m.HostDrain(id="1", host="node1", reason=" "), "invalid", "give a reason"),
        (m.HostDrain(id="1", host="node1", reason="a\nb"), "invalid", "one printable line"),
        (m.HostAdd(id="1", host="bad host"), "invalid", "letters, digits"),
        (m.HostAdd(id="1", host="a", join_within_s=-1), "invalid", "31 days"),
        (m.HostAdmit(id="1", host="nowhere"), "not-found", "no such host"),
        (m.HostRelease(id="1", host="node1", reason="x"), "conflict", "it is in hosts.yaml"),
        (m.HoldAdd(id="1", location="node1", reason="x"), "invalid", "expected host:NAME"),
        (m.HoldAdd(id="1", location="host:nowhere", reason="x"), "not-found", "no such location"),
        (m.HoldAdd(id="1", location="host:node1", reason="x", label="a b"), "invalid", "label"),
        (m.PoolSet(id="1", pool="nowhere", resource="lic"), "not-found", "no such pool"),
        (m.PoolSet(id="1", pool="matlab", resource="nothing"), "not-found", "no such resource type"),
        (m.PoolSet(id="1", pool="matlab", resource="fan", base=1), "invalid", "scope host"),
        (m.PoolSet(id="1", pool="matlab", resource="lic", base=-1), "invalid", "0 or more"),
        (m.KeyAdd(id="1", name="x", role="king", public="a" * 40), "invalid", "must be one of"),
        (m.KeyAdd(id="1", name="x", role="agent", public="short"), "invalid", "40 characters"),
        (m.KeyAdd(id="1", name="x", role="agent", public=key_of("broker")), "conflict", "the broker's own"),
        (m.KeyRevoke(id="1", name="nobody", reason="x"), "not-found", "there is none"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_in_words(order: Any, code: str, words: str) -> None:
    world = World(files=pools_site())
    facts = len(world.facts)
    answer = world.ask(world.peer("alice", "admin"), order)
    assert (refused(answer), words in answer.message) == (code, True), answer.message
    assert len(world.facts) == facts + 1, "the admin's key and nothing else"


def test_a_provider_has_a_say_only_in_its_own_hosts() -> None:
    world = World()
    provider = world.peer("cloud", "provider")
    world.ask(world.peer("alice", "admin"), m.HostAdd(id="1", host="own"))
    assert refused(world.ask(provider, m.HostAdd(id="2", host="node1"))) == "conflict"
    assert refused(world.ask(provider, m.HostAdd(id="3", host="own", groups=["x"]))) == "conflict"
    assert refused(world.ask(provider, m.HostRelease(id="4", host="own", reason="x"))) == "forbidden"


# ------------------------------------------------------------------------------------------------- pools


def test_a_pools_amounts_come_from_the_file_and_are_replaced_by_orders() -> None:
    world = World(files=pools_site())
    provider = world.peer("cloud", "provider")
    assert world.see("pool:matlab").amounts == {"lic": PoolAmount(base=12)}
    world.ask(provider, m.PoolSet(id="1", pool="matlab", resource="lic", borrowed=3))
    assert world.see("pool:matlab").amounts == {"lic": PoolAmount(base=12, borrowed=3)}
    world.ask(provider, m.PoolSet(id="2", pool="matlab", resource="slots", base=100))
    world = world.restart()
    assert world.see("pool:matlab").amounts == {
        "lic": PoolAmount(base=12, borrowed=3),
        "slots": PoolAmount(base=100),
    }


def test_a_pool_that_leaves_the_files_leaves_the_map() -> None:
    world = World(files=pools_site())
    world._take(world.broker.reload(site(), world.now))
    world.turn()
    assert "pool:matlab" not in world.snapshot().locations


@pytest.mark.parametrize(
    "order",
    [
        m.PoolSet(id="1", pool="matlap", resource="lic", base=1),
        m.HoldAdd(id="1", location="pool:matlap", reason="x"),
    ],
)
def test_who_mistypes_a_pool_is_told_what_is_like_it(order: m.Order) -> None:
    world = World(files=pools_site())
    admin = world.peer("alice", "admin")
    assert world.ask(admin, order).hint == "did you mean 'matlab'?"
    world._take(world.broker.reload(pools_site(pools={}), world.now))
    assert world.ask(admin, order).hint == "declare it under 'pools:' in resources.yaml"


# -------------------------------------------------------------------------------------------------- keys


def test_a_key_can_be_added_listed_and_revoked_and_its_connection_is_cut() -> None:
    world = World()
    admin = world.peer("alice", "admin")
    public = keys.new("node1", "agent").public.decode()
    world.ask(admin, m.KeyAdd(id="1", name="node1", role="agent", public=public))
    assert world.broker.accepts(public.encode()) == public
    world.connect("node1", public)
    Agent(world, "node1").join(fan=1)
    world.ask(admin, m.KeyRevoke(id="2", name="node1", reason="stolen"))
    assert world.broker.accepts(public.encode()) is None
    refusal = world.got("node1", m.Refused)[-1]
    assert "this key was revoked: stolen" in refusal.message
    assert world.peers["node1"].cut
    assert "refused.role" not in world.ask(admin, m.StatusRequest(id="s")).counters, "nobody has come with it"
    listed = {key.public: key.revoked for key in world.ask(admin, m.KeysRequest(id="3")).keys}
    assert listed[public] == "stolen"
    answer = world.ask(admin, m.KeyAdd(id="4", name="node1", role="agent", public=public))
    assert (refused(answer), "revoked (stolen)" in answer.message) == ("conflict", True)
    world = world.restart()
    assert world.broker.accepts(public.encode()) is None, "a revocation survives a restart"


def test_the_host_of_a_revoked_key_is_lost_at_once() -> None:
    """Nothing may be placed on a machine that was stolen, not even until it has been silent for long."""
    world = World()
    admin, agent = world.peer("alice", "admin"), Agent(world, "node1")
    agent.join(fan=1)
    Agent(world, "node2").join(fan=2)
    world.ask(admin, m.KeyRevoke(id="1", name="node1", reason="stolen"))
    seen = world.see("host:node1")
    assert (seen.state, seen.conditions, seen.values) == ("lost", ["silent"], {"fan": 1})
    assert "host node1 is lost: its key was revoked: stolen" in world.notes()
    assert world.see("host:node2").state == "available"
    world.ask(admin, m.KeyRevoke(id="2", name="node1", reason="stolen"))
    world.gone("node1")
    assert len([note for note in world.notes() if "node1 is lost" in note]) == 1


def test_a_host_whose_key_was_revoked_while_the_broker_waits_for_it_is_not_waited_for() -> None:
    world, _ = joined(fan=1)
    world = world.restart()
    assert world.see("host:node1").conditions == ["rejoining"]
    world.ask(world.peer("alice", "admin"), m.KeyRevoke(id="1", name="node1", reason="stolen"))
    seen = world.see("host:node1")
    assert (seen.state, seen.conditions) == ("lost", ["silent"])


def test_a_host_whose_old_key_ends_in_a_rotation_is_not_lost() -> None:
    world = World()
    admin = world.peer("alice", "admin")
    agent = Agent(world, "node1")
    agent.join(fan=1)
    world.ask(admin, m.KeyAdd(id="1", name="node1", role="agent", public=key_of("new")))
    world.ask(admin, m.KeyRevoke(id="2", name=key_of("agent-node1"), reason="rotated"))
    assert world.peers["node1"].cut
    assert world.see("host:node1").state == "available"
    world.connect("again", key_of("new"))
    Agent(world, "node1", peer="again").join(fan=2)
    assert (world.see("host:node1").state, world.see("host:node1").values) == ("available", {"fan": 2})


def test_one_of_two_keys_of_a_name_can_be_revoked_by_itself() -> None:
    world = World()
    admin = world.peer("alice", "admin")
    for public in (key_of("old"), key_of("new")):
        world.ask(admin, m.KeyAdd(id=public, name="node1", role="agent", public=public))
    world.ask(admin, m.KeyRevoke(id="3", name=key_of("old"), reason="rotated"))
    assert world.broker.accepts(key_of("old").encode()) is None
    assert world.broker.accepts(key_of("new").encode()) is not None


def test_a_key_file_does_not_bring_a_revoked_key_back() -> None:
    world = World()
    world.peer("node1")
    world.ask(world.peer("alice", "admin"), m.KeyRevoke(id="1", name="node1", reason="x"))
    world._take(world.broker.add_keys([KeyAdded(name="node1", role="agent", public=key_of("agent-node1"))]))
    assert world.broker.accepts(key_of("agent-node1").encode()) is None


# ------------------------------------------------------------------------------------------------- audit


def test_every_order_leaves_a_line_in_the_audit() -> None:
    world = World()
    admin = world.peer("alice", "admin")
    world.ask(admin, m.HostDrain(id="op1", host="node1", reason="fans"))
    world.ask(admin, m.HostDrain(id="op2", host="nowhere", reason="fans"))
    done, failed = world.audit()
    assert (done.who, done.role, done.operation, done.target) == (
        "alice",
        "admin",
        "host.drain",
        "node1: fans",
    )
    assert (done.op_id, done.result, done.revision) == ("op1", "ok", world.facts[-1].revision)
    assert (failed.op_id, failed.result, failed.revision) == ("op2", "not-found", 0)


def test_a_type_that_a_hosts_reporter_brings_along_leaves_a_line_in_the_audit() -> None:
    """It holds in the whole cluster from then on."""
    world, _ = joined()
    gap = ResourceType(name="gap", kind=Kind.NUMERIC)
    world.commits = False
    world.say("node1", m.Declare(types={"gap.yaml": [gap, TYPES["fan"]]}))
    assert world.audit() == []
    world.commit()
    (line,) = world.audit()
    assert (line.who, line.role, line.operation) == ("node1", "agent", "declare")
    assert line.target == "gap of gap.yaml of agent:node1"
    assert (line.result, line.revision, line.address) == ("ok", world.facts[-1].revision, "node1.example:1")


def test_a_key_that_is_put_into_the_directory_leaves_a_line_in_the_audit() -> None:
    world = World()
    key = KeyAdded(name="eve", role="admin", public=key_of("eve"))
    world._take(world.broker.add_keys([key, KeyAdded(name="bob", role="agent", public=key_of("bob"))]))
    world._take(world.broker.add_keys([key]))
    eve, bob = world.lines()
    assert (eve.who, eve.operation, eve.result) == ("", "key.add", "ok")
    assert eve.target == f"admin eve {key_of('eve')}, from the directory of accepted keys"
    assert (eve.revision, bob.revision) == (world.facts[-2].revision, world.facts[-1].revision)


def test_the_audit_names_what_was_set_of_a_pool_and_nothing_else() -> None:
    world = World(files=pools_site())
    admin = world.peer("alice", "admin")
    world.ask(admin, m.PoolSet(id="1", pool="matlab", resource="lic", base=20))
    assert world.audit()[-1].target == "matlab lic base=20"


def test_a_disk_that_does_not_answer_is_named_by_the_status_and_in_the_log_until_it_does() -> None:
    """It hung, the orders waited, and nobody was told: status said that all was well."""
    world, _agent = joined()
    admin = world.peer("admin", "admin")
    world.commits = False
    world.say(admin, m.HostAdd(id="d", host="new"))
    world.wait(2)
    assert world.ask(admin, m.StatusRequest(id="s")).trouble == []
    world.wait(5)
    assert ["does not answer" in words for words in world.ask(admin, m.StatusRequest(id="s")).trouble] == [
        True
    ]
    world.commits = True
    world.commit()
    world.wait(1)
    assert world.ask(admin, m.StatusRequest(id="s")).trouble == []
    assert [note for note in world.notes() if "disk of the state directory" in note][-1].endswith(
        "answers again"
    )
