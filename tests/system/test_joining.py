"""Joining with a token, and rotating a key, against the real broker and agent over CURVE."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.system.harness import Site
from xce.agent.cli import join
from xce.agent.cli.options import UsageError
from xce.agent.external import join as external_join
from xce.broker import cli as broker_cli
from xce.broker.client import Broker, Client
from xce.model.message import Done, KeyAdd, KeyRevoke, KeysRequest, KeyView, Order
from xce.wire import joining, keys, token
from xce.wire.ask import Denied, NoAnswer
from xce.wire.dealer import LinkState
from xce.wire.keys import KeyFileError

pytestmark = [pytest.mark.system]


def order(site: Site, what: Order) -> None:
    with site.client() as client:
        client.ask(what)


def accepted(site: Site) -> list[KeyView]:
    """Keys that are accepted."""
    with site.client() as client:
        return [key for key in client.ask(KeysRequest(id="")).keys if not key.revoked]


def make(site: Site, *, hosts: str = "node*", lifetime_s: float = 60, admit: bool = False) -> token.Token:
    """A token as `xce-broker token new` makes it."""
    pair = keys.new("token-1", "joiner")
    order(
        site,
        KeyAdd(
            id="",
            name="token-1",
            role="joiner",
            public=pair.public.decode(),
            hosts=hosts.split(","),
            grants="agent",
            lifetime_s=lifetime_s,
            admit=admit,
        ),
    )
    return token.Token("token-1", pair.secret, site.broker.key.public)


def good(site: Site) -> set[tuple[str, str]]:
    """Names and roles of keys that are accepted."""
    return {(key.name, key.role) for key in accepted(site)}


def test_a_token_lets_one_host_in_once(site: Site, tmp_path: Path) -> None:
    site.broker.start()
    ticket = make(site)
    put = joining.asking(site.broker.endpoint, 10)
    joining.join(put, ticket, "node7", "agent", tmp_path / "agent.key")
    mine = keys.load(tmp_path / "agent.key", secret=True)
    assert (mine.name, mine.hosts) == ("node7", ("node7",))
    assert keys.load(tmp_path / "broker.pub", secret=False).public == site.broker.key.public
    assert ("node7", "agent") in good(site)
    assert ("token-1", "joiner") not in good(site)
    with pytest.raises(NoAnswer) as again:
        joining.join(put, ticket, "node8", "agent", tmp_path / "other.key")
    assert again.value.state is LinkState.REJECTED
    assert not (tmp_path / "other.key").exists()


def test_a_join_that_lost_its_answer_is_repeated_with_the_same_key(site: Site, tmp_path: Path) -> None:
    site.broker.start()
    ticket = make(site)
    put = joining.asking(site.broker.endpoint, 10)

    def killed(question: object, key: keys.KeyPair, broker: bytes) -> Done:
        put(question, key, broker)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        joining.join(killed, ticket, "node7", "agent", tmp_path / "agent.key")
    made = keys.load(tmp_path / "agent.joining", secret=True)
    joining.join(put, ticket, "node7", "agent", tmp_path / "agent.key")
    assert keys.load(tmp_path / "agent.key", secret=True) == made
    assert not (tmp_path / "agent.joining").exists()


def test_a_join_may_be_broken_off_anywhere_until_the_key_is_there(site: Site, tmp_path: Path) -> None:
    """Also where agent.yaml could not be written, and where the first name was a wrong one."""
    site.broker.start()
    put = joining.asking(site.broker.endpoint, 10)
    with pytest.raises(Denied):
        joining.join(put, make(site, hosts="gpu*"), "node7", "agent", tmp_path / "agent.key")
    order(site, KeyRevoke(id="", name="token-1", reason="test"))

    def full() -> None:
        raise OSError(28, "No space left on device")

    ticket, written = make(site, hosts="gpu*"), list[str]()
    with pytest.raises(OSError, match="No space"):
        joining.join(put, ticket, "gpu7", "agent", tmp_path / "agent.key", configure=full)
    assert not (tmp_path / "agent.key").exists()
    configure = partial(written.append, "agent.yaml")
    joining.join(put, ticket, "gpu7", "agent", tmp_path / "agent.key", configure=configure)
    assert written == ["agent.yaml"]
    assert keys.load(tmp_path / "agent.key", secret=True).name == "gpu7"


@pytest.mark.parametrize(
    ("before", "name", "after"),
    [
        ("name: mine\n", "", "name: mine\n"),
        ("", "other", "name: other\n"),
        ("name: mine # here\n", "other", "name: other\n"),
    ],
)
def test_a_host_joins_by_the_name_that_its_agent_will_use(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, before: str, name: str, after: str
) -> None:
    """Another one would be refused as a key that may not speak for it."""
    site.broker.start()
    site.until(lambda: Path(str(site.broker.settings["local"])).exists())
    new_token(site, "agent", "mine,other", tmp_path / "token")
    path, rest = tmp_path / "own.yaml", f"key: {tmp_path}/own.key\nbroker_key: {tmp_path}/b.pub\n"
    path.write_text(before + rest)
    command = [site.broker.endpoint, "--token", str(tmp_path / "token"), "--config", str(path)]
    assert join.run([*command, *(["--name", name] if name else [])]) == 0
    assert capsys.readouterr().out.endswith(f"next: xce-agent run --config {path}\n")
    assert sorted(path.read_text().splitlines()) == sorted(
        [f"broker: {site.broker.endpoint}", after.strip(), *rest.splitlines()]
    )
    assert after == f"name: {keys.load(tmp_path / 'own.key', secret=True).name}\n"
    assert keys.load(tmp_path / "b.pub", secret=False).public == site.broker.key.public


def test_a_configuration_that_is_not_there_is_no_place_to_join_with(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read it"):
        join.run(["broker1", "--token", "x", "--config", str(tmp_path / "none.yaml")])


def test_a_token_is_for_its_names_and_its_time(site: Site, tmp_path: Path) -> None:
    site.broker.start()
    put = joining.asking(site.broker.endpoint, 10)
    with pytest.raises(Denied, match=r"the token token-1 is for gpu\*"):
        joining.join(put, make(site, hosts="gpu*"), "node7", "agent", tmp_path / "a.key")
    order(site, KeyRevoke(id="", name="token-1", reason="test"))
    ended = make(site, lifetime_s=0.001)
    site.until(lambda: "good until" in _denial(put, ended, tmp_path / "b.key"))
    assert ("node7", "agent") not in good(site)


def state(site: Site) -> str:
    """Of node1, as a controller sees it."""
    return site.snapshot().locations["host:node1"].state


def _denial(put: joining.Ask, ticket: token.Token, path: Path) -> str:
    try:
        joining.join(put, ticket, "gpu7", "agent", path)
    except Denied as denied:
        return str(denied)
    return "joined"


def test_a_token_can_do_nothing_else(site: Site) -> None:
    site.broker.start()
    ticket = make(site)
    put = joining.asking(site.broker.endpoint, 10)
    for question in (
        KeysRequest(id="1"),
        KeyAdd(id="2", name="x", role="admin", public=ticket.broker.decode()),
    ):
        with pytest.raises(Denied, match="role joiner may not"):
            put(question, ticket.pair(), ticket.broker)


def test_a_host_that_has_a_key_does_not_join_by_mistake(site: Site, tmp_path: Path) -> None:
    site.broker.start()
    (tmp_path / "agent.key").write_text("something")
    with pytest.raises(KeyFileError, match="has joined"):
        joining.join(
            joining.asking(site.broker.endpoint, 10), make(site), "node7", "agent", tmp_path / "agent.key"
        )


def test_a_token_that_pins_another_broker_is_not_fooled(site: Site, tmp_path: Path) -> None:
    site.broker.start()
    ticket = make(site)
    wrong = token.Token(ticket.name, ticket.secret, keys.new("broker", "broker").public)
    with pytest.raises(NoAnswer) as failed:
        joining.join(joining.asking(site.broker.endpoint, 5), wrong, "node7", "agent", tmp_path / "agent.key")
    assert failed.value.state is LinkState.WRONG_KEY


def test_a_running_agent_gets_a_new_key_and_the_old_one_is_refused(site: Site) -> None:
    node = site.agent("node1")
    site.broker.start()
    node.start()
    site.until(lambda: node.status()["link"]["phase"] == "synced")
    path = Path(str(node.settings["key"]))
    old = keys.load(path, secret=True)
    states: set[str] = set()
    done = node.command("key", "rotate", "--config", str(node.folder / "agent.yaml"))
    states.add(state(site))
    assert done.returncode == 0, done.stderr
    new = keys.load(path, secret=True)
    assert new.public != old.public
    public = {key.public for key in accepted(site)}
    assert new.public.decode() in public
    assert old.public.decode() not in public
    site.until(lambda: node.status()["link"]["phase"] == "synced")
    states.add(state(site))
    assert states == {"available"}
    assert node.running()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("broker1", "tcp://broker1:7400"),
        ("tcp://broker1:7401", "tcp://broker1:7401"),
        ("[fd00::1]", "tcp://[fd00::1]:7400"),
        ("[fd00::1]:1", "tcp://[fd00::1]:1"),
    ],
)
def test_an_address_of_a_broker_may_be_short(given: str, wanted: str) -> None:
    assert joining.endpoint_of(given) == wanted


@pytest.mark.parametrize("given", ["", "a b", "x:99999", "a/b", "tcp://"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="no address of a broker"):
        joining.endpoint_of(given)


def test_the_brokers_address_is_written_and_nothing_else_changed(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("# mine\nbroker: tcp://old:1 # here\nname: x\n")
    path.chmod(0o640)
    join.write(path, {"broker": "tcp://new:7400"})
    assert path.read_text() == "# mine\nbroker: tcp://new:7400\nname: x\n"
    assert path.stat().st_mode & 0o777 == 0o640
    path.write_text("name: x\n")
    join.write(path, {"broker": "tcp://new:7400"})
    assert path.read_text() == "broker: tcp://new:7400\nname: x\n"


def test_a_token_shows_its_secret_to_nobody() -> None:
    pair = keys.new("t", "joiner")
    ticket = token.Token("t", pair.secret, pair.public)
    assert pair.secret.decode() not in repr(ticket)
    assert token.parse(token.text_of(ticket) + "\n") == ticket
    for wrong in ("", "xce1:", "xce1:!!!", token.text_of(ticket)[:-9], token.text_of(ticket)[5:]):
        with pytest.raises(ValueError, match="no token"):
            token.parse(wrong)
    assert json.dumps(token.text_of(ticket)).startswith('"xce1:')


@pytest.mark.parametrize("policy", ["hold", "refuse"])
def test_a_token_that_admits_goes_before_the_policy_for_hosts_that_nobody_named(
    site: Site, policy: str
) -> None:
    site.broker.settings["discovered"] = policy
    stranger, guest = site.agent("node1"), site.agent("node2")
    site.broker.start()
    for agent, admit in ((stranger, False), (guest, True)):
        (agent.folder / "agent.key").unlink()
        (agent.folder / "broker.pub").unlink()
        put = joining.asking(site.broker.endpoint, 10)
        joining.join(put, make(site, admit=admit), agent.host, "agent", agent.folder / "agent.key")
        order(site, KeyRevoke(id="", name="token-1", reason="the next one has its name"))
        agent.start()

    def shown(name: str) -> tuple[str, list[str]]:
        view = site.snapshot().locations.get(f"host:{name}")
        return (view.state, list(view.conditions)) if view else ("", [])

    site.until(lambda: shown("node2") == ("available", []))
    if policy == "hold":
        site.until(lambda: shown("node1")[1] == ["unknown-host"])
    else:
        site.until(lambda: "nobody expects host node1" in str(stranger.status().get("link")))
        assert shown("node1") == ("", [])


def new_token(site: Site, role: str, name: str, path: Path) -> None:
    local = f"ipc://{site.broker.settings['local']}"
    command = ["token", "new", "--broker", local, "--broker-key", str(site.broker.folder / "broker.pub")]
    assert broker_cli.main([*command, "--role", role, "--hosts", name, "--out", str(path)]) == 0


def test_a_token_that_the_broker_has_not_taken_leaves_no_file(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.broker.start()
    command = ["token", "new", "--hosts", "n", "--out", str(tmp_path / "token"), "--timeout", "0.5"]
    command += ["--broker-key", str(site.broker.folder / "broker.pub")]
    assert broker_cli.main([*command, "--broker", f"ipc://{tmp_path}/nobody.sock"]) == 3
    assert "cannot reach the broker" in capsys.readouterr().err
    assert not (tmp_path / "token").exists()


def test_a_controller_joins_with_a_token_and_takes_a_snapshot(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of the controller's guide."""
    site.broker.start()
    site.until(lambda: Path(str(site.broker.settings["local"])).exists())
    new_token(site, "controller", "sched1", tmp_path / "sched1.token")
    command = ["join", site.broker.endpoint, "--token", str(tmp_path / "sched1.token"), "--name", "sched1"]
    assert broker_cli.main([*command, "--directory", str(tmp_path)]) == 0
    mine = Broker.by_files(site.broker.endpoint, tmp_path / "sched1.key", tmp_path / "broker.pub")
    with Client(mine) as client:
        assert client.snapshot().revision > 0
    assert ("sched1", "controller") in good(site)
    (tmp_path / "sched1.key").unlink()
    capsys.readouterr()
    assert broker_cli.main([*command, "--directory", str(tmp_path)]) == 1, "a token is good once"
    assert "the token was used, has ended or was revoked" in capsys.readouterr().err


def test_an_external_reporter_joins_with_a_token_and_its_file_says_where_the_broker_is(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.broker.start()
    site.until(lambda: Path(str(site.broker.settings["local"])).exists())
    new_token(site, "reporter", "lics", tmp_path / "lics.token")
    path, rest = tmp_path / "own.yaml", f"key: {tmp_path}/own.key\nbroker_key: {tmp_path}/b.pub\n"
    path.write_text(rest)
    command = [site.broker.endpoint, "--token", str(tmp_path / "lics.token"), "--name", "lics"]
    assert external_join.run([*command, "--config", str(path)]) == 0
    assert capsys.readouterr().out.endswith(f"next: xce-reporter run --config {path}\n")
    assert path.read_text() == f"broker: {site.broker.endpoint}\n{rest}"
    assert keys.load(tmp_path / "own.key", secret=True).role == "reporter"
    assert ("lics", "reporter") in good(site)


def test_a_broker_whose_name_does_not_resolve_is_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = keys.new("token-1", "joiner")
    (tmp_path / "token").write_text(token.text_of(token.Token("token-1", pair.secret, pair.public)) + "\n")
    (tmp_path / "own.yaml").write_text(f"key: {tmp_path}/own.key\nbroker_key: {tmp_path}/b.pub\n")
    command = ["no-such-host.invalid", "--token", str(tmp_path / "token"), "--timeout", "1"]
    assert join.run([*command, "--config", str(tmp_path / "own.yaml")]) == 3
    told = capsys.readouterr().err
    assert "the name no-such-host.invalid does not resolve" in told
    assert "getent hosts NAME" in told
