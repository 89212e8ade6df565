"""What can go wrong between an agent and its broker, and that both sides say it in words."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.system.harness import AgentProgram, Site
from xce.broker.client import Changed, Fresh
from xce.linux import proc
from xce.model.message import LocationChange, StatusRequest
from xce.wire import keys

pytestmark = [pytest.mark.system, pytest.mark.root]

SCRIPT = "#!/bin/sh\necho '{\"scratch_gb\": 7}'\n"
NUMBER = {"types": [{"name": "scratch_gb", "kind": "numeric"}], "interval": 1, "timeout": 2}


def linked(agent: AgentProgram) -> bool:
    return bool(agent.status()["link"]["phase"] == "synced")


def link_trouble(agent: AgentProgram) -> str:
    return str(agent.status()["link"]["trouble"])


def test_an_unknown_key_is_named_in_the_status_and_the_agent_stops_in_time(site: Site) -> None:
    """C-MSG-06."""
    agent = site.agent("node1", key=site.key("stranger", "agent", accept=False))
    site.broker.start()
    agent.start()
    site.until(lambda: "rejected by broker" in link_trouble(agent))
    shown = agent.command("status")
    assert shown.returncode == 1
    assert "rejected by broker" in shown.stdout
    assert agent.stop(within_s=5) == 0
    with site.client() as client:
        counters = client.ask(StatusRequest(id="")).counters
    assert any("refused" in name or "handshake" in name for name in counters), counters


def test_a_wrong_key_of_the_broker_is_named_in_the_status_and_the_agent_stops_in_time(site: Site) -> None:
    """C-MSG-06."""
    agent = site.agent("node1")
    (agent.folder / "broker.pub").unlink()
    keys.save(keys.KeyPair("broker", "broker", keys.new("x", "broker").public), agent.folder / "broker.pub")
    site.broker.start()
    agent.start()
    site.until(lambda: "broker's key does not match" in link_trouble(agent))
    assert agent.command("status").returncode == 1
    assert agent.stop(within_s=5) == 0


def test_a_key_file_that_others_can_read_is_refused_and_its_repair_is_enough(site: Site) -> None:
    agent = site.agent("node1")
    (agent.folder / "agent.key").chmod(0o644)
    site.broker.start()
    agent.start()
    site.until(lambda: "too open; chmod 600" in link_trouble(agent))
    (agent.folder / "agent.key").chmod(0o600)
    site.until(lambda: linked(agent), within_s=40)


def test_a_key_may_not_speak_for_another_host(site: Site) -> None:
    agent = site.agent("node1", key=site.key("node2", "agent", hosts=("node2",)))
    site.broker.start()
    agent.start()
    site.until(lambda: "may not speak for node1" in link_trouble(agent))
    assert agent.status()["link"]["phase"] == "refused"


def test_a_second_agent_of_a_name_is_refused_and_both_sides_say_so(site: Site) -> None:
    """C-MSG-01 (a)."""
    key = site.key("node1", "agent", hosts=("node1",))
    first, second = site.agent("node1", key=key), site.agent("node1", key=key)
    site.broker.start()
    first.start()
    site.until(lambda: linked(first))
    second.script("scratch", SCRIPT, **NUMBER)
    second.start()
    site.until(lambda: "already" in link_trouble(second), within_s=10)
    assert f"pid {first.pid}" in link_trouble(second)
    assert second.command("status").returncode == 1
    place = site.snapshot().locations["host:node1"]
    assert "duplicate" in place.conditions
    assert f"pid {second.pid}" in place.about["duplicate"]
    assert "scratch_gb" not in place.values
    site.until(lambda: any("duplicate" in line for line in first.status()["trouble"]))
    first.kill()
    site.until(lambda: linked(second), within_s=30)


def test_a_second_start_is_refused_at_once_with_the_pid_of_the_first(site: Site) -> None:
    """C-MSG-01 (b)."""
    agent = site.agent("node1")
    agent.settings["broker"] = ""
    agent.start()
    site.until(agent.status)
    began = time.monotonic()
    second = agent.command("run", "--config", str(agent.folder / "agent.yaml"))
    assert second.returncode == 1
    assert f"pid {agent.pid} is already running" in second.stderr
    assert time.monotonic() - began < 10
    assert agent.status()["agent"]["pid"] == agent.pid


def test_a_broker_that_comes_later_gets_everything(site: Site) -> None:
    agent = site.agent("node1")
    agent.script("scratch", SCRIPT, **NUMBER)
    agent.start()
    site.until(lambda: agent.reporter("scratch").get("runs", 0) > 0)
    assert "nobody answers at" in link_trouble(agent)
    site.broker.start()
    site.until(lambda: site.value("node1", "scratch_gb") == 7)


def test_an_agent_whose_broker_is_away_from_the_start_works_by_the_types_that_it_remembers(
    site: Site,
) -> None:
    agent = site.agent("node1")
    agent.script("scratch", SCRIPT, **NUMBER)
    site.broker.start()
    agent.start()
    site.until(lambda: site.value("node1", "scratch_gb") == 7)
    agent.stop()
    site.broker.stop()
    agent.start()
    site.until(lambda: agent.reporter("scratch").get("values", {}).get("value") == 1)
    assert agent.reporter("scratch")["refused"] == []


def test_after_a_restart_of_the_broker_the_value_is_there_again_and_newer(site: Site) -> None:
    agent = site.agent("node1")
    counter = '#!/bin/sh\nread n < n; echo $((n + 1)) > n; echo "{\\"scratch_gb\\": $n}"\n'
    agent.script("scratch", counter, **NUMBER)
    site.broker.start()
    agent.start()
    before = site.until(lambda: now if isinstance(now := site.value("node1", "scratch_gb"), int) else None)
    site.broker.kill()
    site.until(lambda: not linked(agent))
    site.broker.start()
    site.until(lambda: linked(agent))
    site.until(lambda: (now := site.value("node1", "scratch_gb")) and isinstance(now, int) and now > before)


def test_a_stopped_broker_is_noticed_by_its_silence_and_found_again(site: Site) -> None:
    """C-MSG-02 without a network: the connection is there, and nobody answers."""
    agent = site.agent("node1")
    site.broker.start()
    agent.start()
    site.until(lambda: linked(agent))
    site.broker.signal(signal.SIGSTOP)
    try:
        site.until(lambda: "has not answered" in link_trouble(agent), within_s=15)
    finally:
        site.broker.signal(signal.SIGCONT)
    site.until(lambda: linked(agent), within_s=30)


def test_a_stopped_agent_is_lost_and_comes_back_by_itself(site: Site) -> None:
    agent = site.agent("node1")
    site.broker.start()
    agent.start()
    site.until(lambda: linked(agent))
    agent.signal(signal.SIGSTOP)
    try:
        site.until(lambda: site.snapshot().locations["host:node1"].state == "lost", within_s=15)
    finally:
        agent.signal(signal.SIGCONT)
    site.until(lambda: site.snapshot().locations["host:node1"].state == "available", within_s=30)


def test_a_planned_stop_is_told_at_once(site: Site) -> None:
    agent = site.agent("node1")
    site.broker.settings["heartbeat"] = 30
    site.broker.start()
    agent.start()
    site.until(lambda: linked(agent))
    assert agent.stop(within_s=5) == 0
    site.until(lambda: site.snapshot().locations["host:node1"].state == "lost", within_s=10)


def test_a_killed_agent_leaves_nothing_once_it_has_started_again(site: Site) -> None:
    agent = site.agent("node1")
    agent.script("sleeper", "#!/bin/sh\nsleep 1000 &\nsleep 1001\n", interval=60, timeout=50)
    site.broker.start()
    agent.start()
    site.until(lambda: agent.reporter("sleeper").get("state") == "running")
    assert site.cgroup is not None
    pids = site.cgroup.pids
    left = site.until(lambda: found if len(found := pids()) >= 2 else None)
    agent.kill()
    assert set(left) <= set(pids())
    (agent.reporters / "sleeper").unlink()
    (agent.reporters / "sleeper.yaml").unlink()
    agent.start()
    site.until(lambda: not pids())
    gone = [proc.process(pid) for pid in left]
    assert all(one is None or one.state == "Z" for one in gone), (
        "only an unreaped zombie of PID 1 may be there"
    )
    assert agent.stop(within_s=5) == 0
    assert not Path(str(agent.settings["cgroup"])).exists()


def test_the_status_command_is_quick_and_says_what_to_do_without_an_agent(site: Site) -> None:
    agent = site.agent("node1")
    agent.settings["broker"] = ""
    gone = agent.command("status")
    assert gone.returncode == 3
    assert "systemctl start xce-agent" in gone.stderr
    agent.start()
    site.until(agent.status)
    took = []
    for _ in range(5):
        began = time.monotonic()
        shown = agent.command("status")
        took.append(time.monotonic() - began)
    assert min(took) < 0.1 * 5, "how quick it is, not how busy the machine"
    assert shown.returncode == 0
    assert f"pid {agent.pid}" in shown.stdout


def test_a_reload_takes_what_can_change_and_names_the_rest(site: Site) -> None:
    agent = site.agent("node1")
    other = agent.folder / "other.d"
    other.mkdir()
    agent.script("scratch", SCRIPT, **NUMBER)
    site.broker.start()
    agent.start()
    site.until(lambda: site.value("node1", "scratch_gb") == 7)
    agent.settings["reporters"]["directory"] = str(other)
    agent.settings["name"] = "node2"
    agent.configure()
    agent.signal(signal.SIGHUP)
    site.until(lambda: "scratch_gb" not in site.values("node1"))
    assert any("name changed: takes effect at the next start" in line for line in agent.status()["trouble"])
    (agent.folder / "agent.yaml").write_text("brokr: x\n")
    agent.signal(signal.SIGHUP)
    site.until(lambda: any("not taken" in line and "brokr" in line for line in agent.status()["trouble"]))
    assert agent.status()["agent"]["name"] == "node1"


def test_descriptors_of_the_agent_do_not_grow_with_its_runs_or_reconnects(site: Site) -> None:
    agent = site.agent("node1")
    agent.script("scratch", SCRIPT, **{**NUMBER, "interval": 0.1})
    site.broker.start()
    agent.start()
    site.until(lambda: agent.reporter("scratch").get("runs", 0) > 3)
    site.until(lambda: linked(agent))
    before = len(os.listdir(f"/proc/{agent.pid}/fd"))
    site.broker.kill()
    site.until(lambda: not linked(agent))
    site.broker.start()
    site.until(lambda: linked(agent))
    site.until(lambda: agent.reporter("scratch")["runs"] > 60)
    assert len(os.listdir(f"/proc/{agent.pid}/fd")) <= before + 4  # a run in progress has its pipes


def test_a_restart_of_the_agent_withdraws_nothing_that_is_still_there(site: Site) -> None:
    agent = site.agent("node1")
    frame = '{"xce":1,"values":{"scratch_gb":7},"instances":[{"id":"GPU-a","kind":"gpu"}]}'
    agent.script("whole", f"#!/bin/sh\nsleep 0.3\necho '{frame}'\n", **{**NUMBER, "timeout": 60})
    agent.script("leaves", "#!/bin/sh\necho '{\"gone\": 1}'\n", types=[{"name": "gone", "kind": "numeric"}])
    site.broker.start()
    agent.start()
    site.until(lambda: site.values("node1").keys() == {"scratch_gb", "gone"})
    site.until(lambda: "whole" in site.snapshot().locations["host:node1"].inventories)
    with site.client() as client:
        watch = client.watch()
        while not isinstance(watch.next(10), Fresh):
            pass
        agent.stop()
        (agent.reporters / "leaves").unlink()
        (agent.reporters / "leaves.yaml").unlink()
        agent.start()
        states: list[str] = []
        gone = False
        while states[-1:] != ["available"] or not gone:
            event = watch.next(10)
            assert isinstance(event, Changed), event
            change = event.delta.changes().get("host:node1", LocationChange())
            states += [change.state] if change.state else []
            gone |= change.values.get("gone", 1) is None
            assert change.values.get("scratch_gb", 7) == 7
            assert change.inventories == {}
            assert change.reporters.get("whole", ()) is not None
        assert states[0] == "lost"
        assert "joining" in states
    site.until(lambda: site.snapshot().locations["host:node1"].reporters.keys() == {"whole"})
    place = site.snapshot().locations["host:node1"]
    assert place.inventories["whole"].generation == 1


def test_a_host_on_which_nothing_happens_is_heard_all_the_same(site: Site) -> None:
    """A wake-up that was planned for an earlier time, and found nothing to do, was the last one once."""
    agent = site.agent("node1")
    site.broker.start()
    agent.start()
    site.until(lambda: site.snapshot().locations["host:node1"].state == "available")
    end = time.monotonic() + 8
    while time.monotonic() < end:
        assert site.snapshot().locations["host:node1"].state == "available"
        time.sleep(0.5)
