"""Hosts: who is let in, who is told what, who is lost, and that down is not drained."""

import pytest

from tests.broker.world import Agent, World, key_of, site
from xce.broker.core.effect import CutOff
from xce.model import message as m
from xce.model.configuration import BrokerFile, Discovered
from xce.model.fact import HostJoined
from xce.model.supply import Source
from xce.model.value import digest


def test_a_host_of_the_files_is_expected_until_its_agent_comes() -> None:
    world = World()
    assert world.see("host:node1") == m.LocationView(source=Source.CONFIG, state="expected")
    agent = Agent(world, "node1")
    welcome = agent.hello()
    assert (welcome.resync, welcome.heartbeat_ms, welcome.silent_after_ms) == (True, 10_000, 30_000)
    assert world.see("host:node1").state == "joining"
    agent.report(full=True, fan=1200)
    seen = world.see("host:node1")
    assert (seen.state, seen.values) == ("available", {"fan": 1200})
    assert seen.about["machine_id"] == "machine-of-node1"


def test_the_first_hello_is_a_fact_and_the_second_is_not() -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join()
    agent.hello()
    joined = [fact.change for fact in world.facts if isinstance(fact.change, HostJoined)]
    assert joined == [HostJoined(host="node1", key=key_of("agent-node1"), machine_id="machine-of-node1")]


def test_an_agent_that_holds_what_the_broker_holds_sends_nothing_again() -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=1200, lab="north")
    world.gone("node1")
    welcome = agent.hello(digest=digest({"probe": {"fan": 1200, "lab": "north"}}))
    assert not welcome.resync
    assert world.see("host:node1").state == "available"


def test_a_silent_host_is_lost_and_comes_back() -> None:
    """C-MSG-02, the broker's half: lost after three missed heartbeats, available at once after the cut."""
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=1200)
    world.wait(29)
    assert world.see("host:node1").state == "available"
    world.wait(3)
    seen = world.see("host:node1")
    assert (seen.state, seen.conditions) == ("lost", ["silent"])
    assert any(isinstance(effect, CutOff) for effect in world.effects), (
        "a dead link must not block the return"
    )
    agent.peer = "node1-again"
    agent.hello()
    agent.report(full=True, fan=1300)
    seen = world.see("host:node1")
    assert (seen.state, seen.conditions, seen.values) == ("available", [], {"fan": 1300})
    assert [note.split(":")[0].split(",")[0] for note in world.notes()] == [
        "host node1 is lost",
        "host node1 is back",
    ]


def test_ticks_of_any_kind_keep_a_host() -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=1)
    for _ in range(6):
        world.wait(20)
        agent.heartbeat(probe=0)
    assert world.see("host:node1").state == "available"


def test_a_broken_connection_alone_loses_nobody() -> None:
    world = World()
    Agent(world, "node1").join(fan=1)
    world.gone("node1")
    assert world.see("host:node1").state == "available"
    world.wait(32)
    assert world.see("host:node1").state == "lost"


def test_a_planned_stop_says_so() -> None:
    world = World()
    Agent(world, "node1").join(fan=1)
    world.say("node1", m.Goodbye())
    assert world.see("host:node1").state == "lost"
    Agent(world, "node2").join(fan=1)
    world.say("node2", m.Goodbye(expected_s=60))
    world.wait(50)
    assert world.see("host:node2").state == "available"
    world.wait(15)
    assert world.see("host:node2").state == "lost"


def test_a_second_agent_of_a_name_is_refused_and_named_on_both_sides() -> None:
    """C-MSG-01 (a): the first keeps serving, the second is told who has the name."""
    world = World()
    first = Agent(world, "node1")
    first.join(fan=1)
    second = Agent(world, "node1", peer="clone", nonce="n2", key="node1")
    refused = second.hello(address="clone pid 9")
    assert refused.code == "duplicate"
    assert "node1 pid 7 at node1.example:1" in refused.message
    standing = world.got("node1", m.Standing)[-1]
    assert standing.conditions == ["duplicate"]
    assert world.see("host:node1").about["duplicate"] == "clone pid 9 at clone.example:1"
    assert world.see("host:node1").state == "available"
    first.report(fan=2)
    assert world.see("host:node1").values == {"fan": 2}
    notes = [note for note in world.notes() if "refused" in note]
    second.hello(address="clone pid 9")
    assert [note for note in world.notes() if "refused" in note] == notes, "a fault is told once"
    for _ in range(8):
        world.wait(20)
        first.heartbeat(probe=0)
    assert world.see("host:node1").conditions == [], "the clone has given up"


def test_the_same_process_on_a_new_connection_takes_over() -> None:
    world = World()
    Agent(world, "node1").join(fan=1)
    again = Agent(world, "node1", peer="again", nonce="n1", key="node1")
    assert isinstance(again.hello(), m.Welcome)
    assert world.peers["node1"].cut


def test_a_restarted_agent_takes_over_once_the_old_connection_has_ended() -> None:
    world = World()
    Agent(world, "node1").join(fan=1)
    world.gone("node1")
    assert isinstance(Agent(world, "node1", nonce="n2").hello(), m.Welcome)


def test_a_second_agent_takes_over_from_one_that_is_silent() -> None:
    world = World()
    Agent(world, "node1").join(fan=1)
    world.now += 31
    assert isinstance(Agent(world, "node1", peer="b", nonce="n2", key="node1").hello(), m.Welcome)


def test_a_key_speaks_only_for_the_hosts_it_names() -> None:
    world = World(files=site(groups_of={"node1": [], "gpu7": []}))
    assert Agent(world, "node2", peer="node1", key="node1").hello().code == "name"
    world.peer("gpus", hosts=["gpu[0-9]"])
    assert isinstance(Agent(world, "gpu7", peer="gpus", key="gpus").hello(), m.Welcome)


def test_a_role_that_the_key_does_not_have_is_refused() -> None:
    world = World()
    refused = world.ask(world.peer("node1"), m.Hello(protocol=m.PROTOCOL, role="reporter", name="node1"))
    assert (refused.code, "role agent" in refused.message) == ("role", True)


def test_another_protocol_is_refused_in_words() -> None:
    refused = Agent(World(), "node1").hello(protocol=99)
    assert (refused.code, refused.message) == ("protocol", f"the broker speaks protocol {m.PROTOCOL}, not 99")


def test_nothing_is_taken_before_hello() -> None:
    world = World()
    peer = world.peer("node1")
    refused = world.ask(peer, m.Report(1, [m.FeedTick("probe", 1, 0, {"fan": 1})]))
    assert (refused.code, refused.message) == ("protocol", "say hello before r")
    world.say(peer, m.Heartbeat(2, {}))
    assert len(world.got("node1", m.Refused)) == 1, "told once a second, not for each tick"
    assert world.see("host:node1").values == {}


def test_an_unknown_host_is_held_until_it_is_admitted() -> None:
    world = World()
    agent = Agent(world, "stray")
    agent.join(fan=1)
    seen = world.see("host:stray")
    assert (seen.source, seen.state, seen.conditions) == (Source.DISCOVERED, "available", ["unknown-host"])
    assert [hold.owner for hold in seen.holds] == ["broker:unknown-host"]
    admin = world.peer("alice", "admin")
    assert isinstance(world.ask(admin, m.HostAdmit(id="1", host="stray")), m.Done)
    seen = world.see("host:stray")
    assert (seen.conditions, seen.holds) == ([], [])
    assert world.got("stray", m.Standing)[-1].holds == []


def test_an_unknown_host_can_be_refused_or_let_in_by_policy() -> None:
    world = World(config=BrokerFile(discovered=Discovered.REFUSE))
    assert Agent(world, "stray").hello().code == "unknown-host"
    assert "host:stray" not in world.snapshot().locations
    world = World(config=BrokerFile(discovered=Discovered.ADMIT))
    Agent(world, "stray").join(fan=1)
    assert world.see("host:stray").holds == []


def test_a_drained_host_stays_draining_whatever_its_link_does() -> None:
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=1)
    admin = world.peer("alice", "admin")
    world.ask(admin, m.HostDrain(id="1", host="node1", reason="new fans"))
    assert world.see("host:node1").about["drained"] == "new fans (admin:alice)"
    world.wait(32)
    seen = world.see("host:node1")
    assert (seen.state, seen.conditions) == ("draining", ["silent"])
    Agent(world, "node1", peer="b", key="node1").join(fan=1)
    assert world.see("host:node1").state == "draining"
    world.ask(admin, m.HostUndrain(id="2", host="node1"))
    assert world.see("host:node1").state == "available"


def test_a_lost_host_is_not_drained() -> None:
    world = World()
    Agent(world, "node1").join(fan=1)
    world.wait(32)
    assert "drained" not in world.see("host:node1").about


def test_a_host_that_is_undrained_while_its_agent_is_away_is_expected() -> None:
    world = World()
    admin = world.peer("alice", "admin")
    world.ask(admin, m.HostDrain(id="1", host="node1", reason="new fans"))
    world.ask(admin, m.HostUndrain(id="2", host="node1"))
    assert world.see("host:node1").state == "expected"


def test_a_provisioned_host_that_does_not_join_in_time_is_named() -> None:
    world = World()
    provider = world.peer("cloud", "provider")
    add = m.HostAdd(id="1", host="vm1", groups=["cloud"], instance="i-77", template="big", join_within_s=60)
    assert isinstance(world.ask(provider, add), m.Done)
    seen = world.see("host:vm1")
    assert (seen.source, seen.state, seen.groups) == (Source.PROVISIONER, "expected", ["cloud"])
    assert (seen.about["instance"], seen.about["template"]) == ("i-77", "big")
    assert world.see("group:cloud").source is Source.PROVISIONER
    world.wait(62)
    assert world.see("host:vm1").conditions == ["never-joined"]
    Agent(world, "vm1").join(fan=1)
    assert world.see("host:vm1").conditions == []


def test_a_released_host_is_told_and_kept_out_until_it_is_added_again() -> None:
    world = World()
    provider = world.peer("cloud", "provider")
    world.ask(provider, m.HostAdd(id="1", host="vm1"))
    agent = Agent(world, "vm1")
    agent.join(fan=1)
    world.ask(provider, m.HostRelease(id="2", host="vm1", reason="idle"))
    seen = world.see("host:vm1")
    assert (seen.state, seen.values, seen.about) == ("released", {}, {"released": "idle"})
    assert world.got("vm1", m.Refused)[-1].code == "released"
    assert Agent(world, "vm1", peer="b", key="vm1").hello().code == "released"
    world.ask(provider, m.HostAdd(id="3", host="vm1"))
    Agent(world, "vm1", peer="c", key="vm1").join(fan=2)
    assert world.see("host:vm1").state == "available"


def test_a_host_that_leaves_the_files_while_it_is_there_is_held_not_forgotten() -> None:
    world = World()
    Agent(world, "node1").join(fan=1)
    world._take(world.broker.reload(site(groups_of={"node2": []}), world.now))
    world.turn()
    seen = world.see("host:node1")
    assert (seen.source, seen.conditions, seen.values) == (Source.DISCOVERED, ["unknown-host"], {"fan": 1})
    assert "host:node3" not in world.snapshot().locations, "it never joined: nobody misses it"


def test_after_a_restart_hosts_are_rejoining_and_nobody_is_lost_too_early() -> None:
    world = World()
    Agent(world, "node1").join(fan=1)
    world = world.restart()
    seen = world.see("host:node1")
    assert (seen.state, seen.conditions) == ("joining", ["rejoining"])
    assert world.snapshot().quality.rejoining == 1
    assert world.see("host:node2").conditions == []
    world.wait(55)
    assert world.see("host:node1").state == "joining"
    world.wait(10)
    assert (world.see("host:node1").state, world.see("host:node1").conditions) == ("lost", ["silent"])


def test_a_loop_that_stood_still_calls_nobody_silent() -> None:
    """The broker was stopped for a minute: what its peers sent meanwhile is still in the sockets."""
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=1)
    world.wait(60, step=60)
    assert world.see("host:node1").state == "available"
    agent.heartbeat(probe=0)
    world.wait(20)
    assert world.see("host:node1").state == "available"


def test_heartbeats_get_rarer_as_hosts_get_many() -> None:
    many: dict[str, list[str]] = {f"n{number}": [] for number in range(300)}
    world = World(config=BrokerFile(heartbeat=1, heartbeats_per_second=100), files=site(groups_of=many))
    assert Agent(world, "n0").hello().heartbeat_ms == 3000


@pytest.mark.parametrize(("hosts", "spread_ms"), [(1, 500), (120, 2000), (480, 8000), (20_000, 8000)])
def test_agents_are_told_to_spread_their_return_the_more_the_more_there_are(
    hosts: int, spread_ms: int
) -> None:
    many: dict[str, list[str]] = {f"n{number}": [] for number in range(hosts)}
    agent = Agent(World(files=site(groups_of=many)), "n0")
    assert agent.hello().spread_ms == spread_ms


def test_that_there_are_more_agents_than_at_the_welcome_is_told_with_the_next_pulse_and_once() -> None:
    few, many = ({f"n{number}": list[str]() for number in range(hosts)} for hosts in (10, 240))
    world = World(files=site(groups_of=few))
    agent = Agent(world, "n0")
    agent.join(fan=1)

    def told() -> int:
        pulse = agent.heartbeat()[-1]
        assert isinstance(pulse, m.Pulse)
        return pulse.spread_ms

    assert told() == 0
    world._take(world.broker.reload(site(groups_of=many), world.now))
    world.wait(1)
    assert [told(), told()] == [4000, 0]


def test_a_peer_beyond_the_limit_is_told_the_limit() -> None:
    world = World(config=BrokerFile(max_peers=2))
    world.peer("node1")
    world.peer("node2")
    world.peer("node3")
    refused = world.got("node3", m.Refused)[-1]
    assert (refused.code, refused.message) == ("busy", "the broker serves 2 peers already (max_peers)")
    world.say("node3", m.Heartbeat(1, {}))
    assert len(world.got("node3", m.Refused)) == 1


def test_types_are_sent_only_to_those_who_have_others() -> None:
    world = World()
    welcome = Agent(world, "node1").hello()
    assert {kind.name for kind in welcome.types} >= {"fan", "r15s"}
    assert Agent(world, "node2").hello(types=world.broker.state.types.digest).types is None


def test_local_peers_may_be_anything_their_socket_lets_them() -> None:
    world = World()
    world.connect("cli", uid=0)
    assert isinstance(world.ask("cli", m.HostDrain(id="1", host="node1", reason="x")), m.Done)
    assert world.see("host:node1").about["drained"] == "x (admin:root)"
    world.connect("local-agent", uid=0)
    hello = m.Hello(protocol=m.PROTOCOL, role="agent", name="node2", nonce="n")
    assert isinstance(world.ask("local-agent", hello), m.Welcome)


def test_who_uses_the_key_of_a_host_for_a_question_is_told_that_it_is_for_something_else() -> None:
    """`say hello before snapshot` sent people looking for what was not there."""
    world = World()
    world.peer("node1")
    answer = world.ask("node1", m.SnapshotRequest(id="1"))
    assert (answer.code, answer.message) == ("forbidden", "role agent may not say snapshot")
    assert world.ask("node1", m.Heartbeat(1, {}, "")).message == "say hello before h"


def test_another_machine_under_the_name_and_key_of_a_host_is_a_fact_and_in_the_log() -> None:
    """A key that was copied serves whoever has it, once the first is gone: then people are to hear of it."""
    world = World()
    agent = Agent(world, "node1")
    agent.join(fan=1)
    world.gone("node1")
    Agent(world, "node1", nonce="n2").join(fan=1)
    assert len([fact for fact in world.facts if isinstance(fact.change, HostJoined)]) == 1
    assert [note for note in world.notes() if "another machine" in note] == []
    world.gone("node1")
    Agent(world, "node1", nonce="n3").hello(machine_id="m2")
    assert world.facts[-1].change == HostJoined(host="node1", key=key_of("agent-node1"), machine_id="m2")
    (note,) = [note for note in world.notes() if "another machine" in note]
    assert note == "host node1 is another machine now: m2, before machine-of-node1"
