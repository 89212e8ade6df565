"""The broker's own key is changed, and no host falls out that has heard of the next one."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.system.harness import AgentProgram, Site, python
from xce.wire import keys

pytestmark = [pytest.mark.system]


def rotate(site: Site, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*python("xce.broker.cli"), "key", "rotate", "--directory", str(site.broker.folder), *options]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd()}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)


def held(agent: AgentProgram, name: str) -> bytes:
    path = agent.folder / name
    return keys.load(path, secret=False).public if path.exists() else b""


def synced(agent: AgentProgram) -> bool:
    return bool(agent.status().get("link", {}).get("phase") == "synced")


def restart(site: Site) -> None:
    assert site.broker.stop() == 0
    site.broker.start()


def test_agents_learn_the_next_key_from_the_broker_and_follow_it(site: Site) -> None:
    agents = [site.agent("node1"), site.agent("node2"), site.agent("away")]
    site.broker.start()
    for agent in agents:
        agent.start()
    site.until(lambda: all(map(synced, agents)))
    *there, away = agents
    away.stop()
    old = held(away, "broker.pub")

    assert rotate(site, "--finish").returncode == 2, "nothing has been begun"
    begun = rotate(site)
    assert begun.returncode == 0, begun.stderr
    assert rotate(site).returncode == 2, "a rotation is under way"
    fresh = keys.load(site.broker.folder / "broker.next.pub", secret=False).public
    site.broker.signal(signal.SIGHUP)
    site.until(lambda: all(held(agent, "broker.next.pub") == fresh for agent in there))
    there[0].stop()  # started anew between the two steps, it still knows
    there[0].start()
    site.until(lambda: all(map(synced, there)))
    assert all(held(agent, "broker.pub") == old for agent in there)

    assert rotate(site, "--finish").returncode == 0
    restart(site)
    site.until(lambda: all(map(synced, there)), within_s=40)
    assert all(held(agent, "broker.pub") == fresh for agent in there)
    assert not any((agent.folder / "broker.next.pub").exists() for agent in there)

    away.start()
    site.until(lambda: "key does not match" in str(away.status().get("link")))
    keys_of = site.broker.folder / "broker.pub"
    (away.folder / "broker.pub").write_text(keys_of.read_text())
    site.until(lambda: synced(away), within_s=40)  # a file that was mended is enough


def test_a_rotation_that_was_given_up_leaves_the_agents_with_the_old_key(site: Site) -> None:
    agent = site.agent("node1")
    site.broker.start()
    agent.start()
    site.until(lambda: synced(agent))
    rotate(site)
    site.broker.signal(signal.SIGHUP)
    site.until(lambda: held(agent, "broker.next.pub"))
    for name in ("broker.next.key", "broker.next.pub"):
        Path(site.broker.folder, name).unlink()
    restart(site)
    site.until(lambda: synced(agent), within_s=40)
    assert held(agent, "broker.pub") == site.broker.key.public
