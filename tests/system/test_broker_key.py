"""The broker's own key is changed, and no host falls out that has heard of the next one."""

import os
import secrets
import signal
import subprocess
from pathlib import Path

import pytest

from tests.system.harness import AgentProgram, Site, python
from xce.broker.client import Broker, BrokerUnreachable, Changed, Client, Fresh, LinkNews, Watch
from xce.model.message import KeyAdd, StatusRequest
from xce.model.role import Role
from xce.wire import joining, keys, token
from xce.wire.ask import NoAnswer
from xce.wire.dealer import LinkState
from xce.wire.keys import KeyPair

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
    (site.broker.folder / "broker.next.pub").unlink()
    assert rotate(site).returncode == 0, "one that was broken off between its files is gone on with"
    assert "a rotation is under way" in rotate(site).stderr
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


def controller(site: Site, folder: Path) -> Broker:
    """A controller's own copies of its key and of the broker's."""
    folder.mkdir()
    mine = site.key("sched1", "controller")
    keys.save(mine, folder / "sched1.key")
    keys.save(KeyPair("broker", "broker", site.broker.key.public), folder / "broker.pub")
    return Broker.by_files(site.broker.endpoint, folder / "sched1.key", folder / "broker.pub")


def events(watch: Watch, until: type, within: int = 400) -> list[object]:
    """What a follower hears, up to the first event of a kind."""
    heard: list[object] = []
    for _ in range(within):
        if (event := watch.next(0.1)) is not None:
            heard.append(event)
            if isinstance(event, until):
                return heard
    raise AssertionError(f"no {until.__name__}: {heard}")


def ticket(site: Site, broker: bytes, following: bytes = b"") -> token.Token:
    """As `xce-broker token new` makes it."""
    pair = keys.new(f"token-{secrets.token_hex(3)}", Role.JOINER)
    order = KeyAdd(
        id="",
        name=pair.name,
        role=pair.role,
        public=pair.public.decode(),
        hosts=["*"],
        grants="agent",
        lifetime_s=600,
    )
    with Client(Broker(f"ipc://{site.broker.settings['local']}")) as client:
        client.ask(order)
    return token.parse(token.text_of(token.Token(pair.name, pair.secret, broker, following)))


def test_a_follower_an_agent_and_a_token_get_over_a_change_of_the_brokers_key(
    site: Site, tmp_path: Path
) -> None:
    agent, there = site.agent("node1"), tmp_path / "sched1"
    broker = controller(site, there)
    site.broker.start()
    agent.start()
    site.until(lambda: synced(agent))
    before = ticket(site, site.broker.key.public)
    with Client(broker, timeout=20) as client:
        watch = client.watch()
        assert isinstance(events(watch, Fresh)[-1], Fresh)
        assert rotate(site).returncode == 0
        fresh = keys.load(site.broker.folder / "broker.next.pub", secret=False).public
        site.broker.signal(signal.SIGHUP)
        site.until(lambda: watch.next(0) is None and (there / "broker.next.pub").exists())
        meanwhile = ticket(site, site.broker.key.public, fresh)
        site.until(lambda: held(agent, "broker.next.pub") == fresh)
        assert rotate(site, "--finish").returncode == 0
        restart(site)
        heard = events(watch, Fresh)
        assert any(isinstance(event, LinkNews) and not event.up for event in heard)
        site.until(lambda: synced(agent), within_s=40)
        script = "#!/bin/sh\necho '{\"seen\": 1}'\n"
        agent.script("later", script, types=[{"name": "seen", "kind": "numeric"}])
        assert isinstance(events(watch, Changed)[-1], Changed)
    assert keys.load(there / "broker.pub", secret=False).public == fresh
    assert not (there / "broker.next.pub").exists()
    with Client(Broker.by_files(broker.endpoint, there / "sched1.key", there / "broker.pub")) as client:
        assert client.ask(StatusRequest(id="")).revision

    put = joining.asking(site.broker.endpoint, 10)
    joining.join(put, meanwhile, "node8", "agent", tmp_path / "8.key")
    assert keys.load(tmp_path / "broker.pub", secret=False).public == fresh
    with pytest.raises(NoAnswer) as refused:
        joining.join(put, before, "node9", "agent", tmp_path / "9.key")
    assert refused.value.state is LinkState.WRONG_KEY


def test_a_command_that_is_run_between_the_two_steps_is_enough(site: Site, tmp_path: Path) -> None:
    broker = controller(site, tmp_path / "sched1")
    site.broker.start()
    rotate(site)
    site.until(lambda: site.broker.running() and _asks(broker))
    site.broker.signal(signal.SIGHUP)
    following = tmp_path / "sched1/broker.next.pub"
    site.until(lambda: _asks(broker) and following.exists())
    rotate(site, "--finish")
    restart(site)
    assert _asks(broker), "the link is made anew with the key that was announced"


def test_one_that_has_heard_of_no_other_key_is_refused_until_its_file_is_mended(
    site: Site, tmp_path: Path
) -> None:
    there = tmp_path / "sched1"
    broker = controller(site, there)
    site.broker.start()
    with Client(broker, timeout=10) as client:
        assert client.ask(StatusRequest(id="")).revision
        site.broker.stop()
        rotate(site)
        rotate(site, "--finish")
        site.broker.start()
        with pytest.raises(BrokerUnreachable, match="key does not match") as refused:
            client.ask(StatusRequest(id=""))
        assert "broker.pub" in refused.value.hint
        (there / "broker.pub").write_text((site.broker.folder / "broker.pub").read_text())
        site.until(lambda: _answers(client))


def _asks(broker: Broker) -> bool:
    with Client(broker, timeout=10) as client:
        return _answers(client)


def _answers(client: Client) -> bool:
    try:
        return bool(client.ask(StatusRequest(id="")).revision)
    except BrokerUnreachable:
        return False
