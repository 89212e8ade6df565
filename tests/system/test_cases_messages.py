"""C-MSG-01 to C-MSG-06 with the real programs: duplicates, rubbish on the port, everybody at once, late
listeners, wrong keys. A silently cut network is in `test_three_hosts.py`.
"""

import itertools
import os
import random
import re
import socket
import statistics
import time
from pathlib import Path

import pytest
import zmq

from tests.system.harness import AgentProgram, Program, Site, public
from xce.broker.client import Fresh
from xce.model.message import BrokerStatus, StatusRequest
from xce.wire import keys

pytestmark = [pytest.mark.root, pytest.mark.system]

BAD = (Path(__file__).parent.parent / "cases" / "msg" / "bad-frames.txt").read_text().splitlines()
MOVING = """#!/usr/bin/python3
import json, random, time
while True:
    print(json.dumps({f"v{number}": random.random() for number in range(5)}), flush=True)
    time.sleep(0.05)
"""
FLEET = int(os.environ.get("XCE_FLEET", "500"))
"""Simulated agents; 2000 is what the case asks for."""


def ask(site: Site) -> tuple[BrokerStatus, float]:
    """The broker's status, and how long the question took with a link of its own."""
    began = time.monotonic()
    with site.client() as client:
        status = client.ask(StatusRequest(id=""))
    return status, time.monotonic() - began


def synced(agent: AgentProgram) -> bool:
    return bool(agent.status() and agent.status()["link"]["phase"] == "synced")


def test_c_msg_01_of_two_agents_of_one_name_the_second_is_refused_and_named_on_both_sides(site: Site) -> None:
    key = site.key("node1", "agent", hosts=("node1",))
    first, second = site.agent("node1", key=key), site.agent("node1", key=key)
    site.broker.start()
    first.start()
    site.until(lambda: synced(first))
    second.start()
    trouble = site.until(lambda: second.status().get("link", {}).get("trouble"), within_s=10)
    assert "already served by" in trouble
    assert f"pid {first.pid}" in trouble
    assert re.search(r"at 127\.0\.0\.1:\d+", trouble)
    assert second.command("status").returncode != 0
    view = site.until(lambda: _shows_duplicate(site))
    assert f"pid {second.pid}" in view
    for _ in range(10):
        mirror = site.snapshot()
        assert [key for key in mirror.locations if key.startswith("host:")] == ["host:node1"]
        assert mirror.locations["host:node1"].state == "available"
        time.sleep(0.2)
    assert synced(first)


def _shows_duplicate(site: Site) -> str:
    view = site.snapshot().locations["host:node1"]
    return view.about.get("duplicate", "") if "duplicate" in view.conditions else ""


def test_c_msg_01_a_second_start_on_one_node_ends_and_names_the_first(site: Site) -> None:
    agent = site.agent("node1")
    site.broker.start()
    agent.start()
    site.until(lambda: synced(agent))
    again = Program("again", agent.folder, agent.argv, agent.environment)
    assert again.start().ended() != 0
    assert str(agent.pid) in again.tail()
    agent.kill()
    agent.start()  # the pid file of a dead process prevents nothing
    site.until(lambda: synced(agent))


@pytest.mark.slow
def test_c_msg_03_after_a_restart_everybody_comes_back_spread_and_the_broker_answers(site: Site) -> None:
    """With a soft limit of 1,024 open files, as most systems give it."""
    site.broker.prefix = ["prlimit", "--nofile=1024:", "--"]
    site.broker.settings |= {"heartbeat": 5, "rejoin": 90}
    fleet = site.fleet(FLEET)
    site.broker.hosts = {"hosts": [{"name": f"sim[1-{FLEET}]"}]}  # the first one hears how many there are
    site.broker.start()
    fleet.start()
    site.until(lambda: _available(site) == FLEET, within_s=120, every_s=0.5)
    site.broker.kill()
    site.broker.start()
    began = time.monotonic()
    counts = [0]
    took = []
    while counts[-1] < FLEET:
        status, one = ask(site)
        took.append(one)
        counts.append(status.quality.hosts.get("available", 0))
        assert time.monotonic() - began < 60, f"{counts[-1]} of {FLEET} are back\n{site.broker.tail()}"
        time.sleep(max(0.0, began + len(counts) - 1 - time.monotonic()))
    most = max(after - before for before, after in itertools.pairwise(counts))
    print(
        f"{FLEET} agents: back in {time.monotonic() - began:.0f} s, at most {most} in one second, "
        f"slowest status {max(took) * 1000:.0f} ms"
    )
    assert statistics.median(took) < 1, "how quick it is, not how busy the machine"
    assert most <= FLEET / 4, counts
    site.until(lambda: _available(site) == FLEET, within_s=60, every_s=0.5)


def _available(site: Site) -> int:
    return ask(site)[0].quality.hosts.get("available", 0)


def test_c_msg_04_rubbish_on_the_port_ends_nothing_and_delays_nobody(site: Site) -> None:
    agent = site.agent("node1")
    agent.settings["reporters"]["load_indices"] = True
    stranger = site.key("stranger", "controller")
    site.broker.start()
    agent.start()
    site.until(lambda: synced(agent) and "mem" in site.values("node1"))
    before = site.broker.process
    took = []
    lines = [line for line in BAD if not line.startswith("#")]
    assert len(lines) == 8
    with zmq.Context() as context:
        for line in lines:
            for _ in range(100):
                _throw(context, site, line, stranger)
            began = time.monotonic()
            assert agent.ask(op="explain", resource="mem")["broker"] is not None
            took += [time.monotonic() - began, ask(site)[1]]
    assert statistics.median(took) < 1, "how quick it is, not how busy the machine"
    assert site.broker.running()
    assert site.broker.process is before
    counters = ask(site)[0].counters
    assert counters.get("rubbish", 0) + counters.get("dropped.frames", 0) >= 400, counters
    handshakes = sum(counters.get(f"dropped.{what}", 0) for what in ("handshake", "silent"))
    assert handshakes >= 100, counters
    assert "internal_errors" not in counters
    assert synced(agent)


def _throw(context: "zmq.Context[zmq.Socket[bytes]]", site: Site, line: str, key: keys.KeyPair) -> None:
    host, _, port = site.broker.endpoint.removeprefix("tcp://").partition(":")
    if line.startswith("RAW "):
        with socket.create_connection((host, int(port)), timeout=5) as raw:
            raw.sendall(bytes.fromhex(line.removeprefix("RAW ")))
        return
    with context.socket(zmq.DEALER) as dealer:
        dealer.curve_publickey, dealer.curve_secretkey = key.public, key.secret
        dealer.curve_serverkey = site.broker.key.public
        dealer.linger = 2000
        dealer.connect(site.broker.endpoint)
        frames = [b"" if frame == "-" else bytes.fromhex(frame) for frame in line.split("|")]
        dealer.send_multipart(frames)


def test_c_msg_05_a_late_listener_sees_what_the_broker_holds(site: Site) -> None:
    types = [{"name": f"v{number}", "kind": "numeric"} for number in range(5)]
    agent = site.agent("node1")
    agent.script("moving", MOVING, mode="persistent", interval=5, types=types)
    site.broker.start()
    agent.start()
    site.until(lambda: isinstance(site.value("node1", "v4"), float))
    took = []
    for number in range(20):
        with site.client() as listener, site.client() as witness:
            began = time.monotonic()
            watch = listener.watch()
            while not isinstance(watch.next(20), Fresh):
                assert time.monotonic() - began < 20
            for _ in range(random.Random(number).randrange(1, 6)):
                assert watch.next(20) is not None
            seen = witness.snapshot()
            while watch.mirror is None or watch.mirror.position.sequence < seen.position.sequence:
                assert watch.next(20) is not None
            if watch.mirror.position == seen.position:
                assert watch.mirror.locations == seen.locations
            took.append(time.monotonic() - began)
    assert statistics.median(took) < 5


@pytest.mark.parametrize("wrong", ["ours", "theirs"])
def test_c_msg_06_a_wrong_key_is_said_in_words_and_the_agent_stops_in_time(site: Site, wrong: str) -> None:
    agent = site.agent("node1", key=site.key("node1", "agent", accept=wrong == "theirs"))
    if wrong == "theirs":
        (agent.folder / "broker.pub").unlink()
        keys.save(public(keys.new("other", "broker")), agent.folder / "broker.pub")
    site.broker.start()
    agent.start()
    words = "rejected by broker" if wrong == "ours" else "broker's key does not match"
    site.until(lambda: words in agent.status().get("link", {}).get("trouble", ""))
    status = agent.command("status")
    assert status.returncode != 0
    assert words in status.stdout
    memory = agent.status()["agent"]["memory_kb"]
    size = site.broker.log.stat().st_size
    time.sleep(3)
    assert agent.status()["agent"]["memory_kb"] - memory < 2048
    assert site.broker.log.stat().st_size - size < 2000
    began = time.monotonic()
    assert agent.stop(5) == 0
    assert time.monotonic() - began < 5
