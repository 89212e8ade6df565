"""Every command against the real broker: what is done is shown, and what is shown is true."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fed_agent import FedAgent
from tests.fakes.live_broker import PROGRAM, LiveBroker
from tests.fakes.program import Program, without_reader
from xce.broker.cli import main
from xce.broker.client import Client
from xce.model.role import Role
from xce.model.value import Absent, Presence, Reading
from xce.wire import keys

pytestmark = pytest.mark.system
Output = pytest.CaptureFixture[str]
RUN = "import runpy, sys; sys.argv[:] = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
"""A script, with the project's root as the first place of modules."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """One broker with one live host; the tests use different names."""
    with LiveBroker(tmp_path_factory.mktemp("b")) as broker:
        values: dict[str, Reading] = {"level": 812, "label": Absent(Presence.UNKNOWN, cause="exit status 3")}
        with FedAgent(broker.local, "node1", values) as agent:
            agent.wait_welcome()
            with Client(broker.local) as client:
                for event in client.watch():
                    if event and "level" in client.snapshot().locations["host:node1"].values:
                        break
            yield broker


def call(broker: LiveBroker, capsys: Output, *arguments: str, code: int = 0) -> str:
    """Standard output of a command that ends with `code`."""
    assert main([*arguments, "--broker", broker.local.endpoint]) == code, capsys.readouterr()
    return capsys.readouterr().out


def call_json(broker: LiveBroker, capsys: Output, *arguments: str, code: int = 0) -> Any:
    return json.loads(call(broker, capsys, *arguments, "--json", code=code))


def test_supply_shows_value_age_reporter_and_cause(broker: LiveBroker, capsys: Output) -> None:
    (row,) = call_json(broker, capsys, "supply", "level", "--host", "node[1-2]")
    assert (row["location"], row["value"], row["unit"], row["presence"]) == ("host:node1", 812, "MB", "value")
    assert row["reporter"] == "fed"
    assert 0 <= row["age_s"] < 60
    lines = call(broker, capsys, "supply", "l*", "--location", "host:node1").splitlines()
    assert lines[0].split() == [
        *("RESOURCE", "LOCATION", "VALUE", "PRESENCE", "AGE", "SOURCE", "STATE", "REPORTER", "HOLDS", "CAUSE")
    ]
    assert lines[1].split()[:4] == ["label", "host:node1", "-", "unknown"]
    assert lines[1].endswith("exit status 3")


def test_supply_problems_ends_with_1_if_there_are_any(broker: LiveBroker, capsys: Output) -> None:
    assert "exit status 3" in call(broker, capsys, "supply", "--problems", code=1)
    assert call(broker, capsys, "supply", "level", "--host", "node1", "--problems") == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("hosts", "nosuch", "--problems"),
        ("supply", "nosuch"),
        ("supply", "--host", "nosuch"),
        ("supply", "--location", "node1"),
        ("types", "nosuch"),
        ("watch", "nosuch"),
        ("watch", "--location", "node1"),
        ("snapshot", "host:node1", "node1"),
    ],
)
def test_a_misspelled_name_is_never_good(broker: LiveBroker, capsys: Output, arguments: list[str]) -> None:
    assert main([*arguments, "--broker", broker.local.endpoint]) == 2
    assert f"{next(name for name in arguments if name in ('nosuch', 'node1'))!r}" in capsys.readouterr().err
    assert call(broker, capsys, "hosts", "nosuch*") == "", "a pattern may fit nothing"


@pytest.mark.parametrize("count", ["0", "-1", "x"])
def test_a_watch_of_no_lines_is_refused_and_does_not_go_on_for_ever(capsys: Output, count: str) -> None:
    for command in (["watch"], ["claim", "watch"]):
        with pytest.raises(SystemExit):
            main([*command, "--count", count])
        assert f"invalid count value: '{count}'" in capsys.readouterr().err


def test_hosts_shows_states_and_what_was_ordered(broker: LiveBroker, capsys: Output) -> None:
    rows = {row["host"]: row for row in call_json(broker, capsys, "hosts")}
    assert rows["node1"]["state"] == "available"
    assert rows["node3"]["state"] == "expected"
    assert rows["node1"]["groups"] == ["rack1"]
    call(broker, capsys, "host", "add", "cloud[1-2]", "--group", "rack1", "--join-within", "600")
    lines = call(broker, capsys, "hosts", "cloud*").splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [["cloud1", "expected"], ["cloud2", "expected"]]
    call(broker, capsys, "host", "release", "cloud1", "--reason", "sent back")
    (row,) = call_json(broker, capsys, "hosts", "cloud1")
    assert row["state"] == "released"


def test_a_drain_is_shown_and_ended(broker: LiveBroker, capsys: Output) -> None:
    assert "revision" in call(broker, capsys, "drain", "node2", "--reason", "fan 3 is dead")
    assert "fan 3 is dead" in call(broker, capsys, "drain")
    assert "draining" in call(broker, capsys, "hosts", "node2")
    call(broker, capsys, "drain", "--end", "node2")
    assert "node2" not in call(broker, capsys, "drain")


def test_holds_are_placed_listed_and_ended_by_owner(broker: LiveBroker, capsys: Output) -> None:
    call(broker, capsys, "hold", "pool:matlab", "--reason", "server moves", "--label", "move")
    call(broker, capsys, "hold", "pool:matlab", "--reason", "audit")
    rows = call_json(broker, capsys, "hold")
    owners = sorted(row["owner"] for row in rows if row["location"] == "pool:matlab")
    assert owners == ["admin:root", "admin:root/move"]
    assert main(["hold", "--end", "pool:matlab", "--broker", broker.local.endpoint]) == 2
    assert "admin:root | admin:root/move" in capsys.readouterr().err
    ended = call_json(broker, capsys, "hold", "--end", "pool:matlab", "--label", "move")
    assert ended["owner"] == "admin:root/move"
    call(broker, capsys, "hold", "--end", "pool:matlab", "--owner", "admin:root")
    assert not [row for row in call_json(broker, capsys, "hold") if row["location"] == "pool:matlab"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("hold", "host:node1", "--reason", "x", "--owner", "me"), "owned by whoever places it"),
        (("hold", "--end", "host:node1", "--reason", "x"), "takes no reason"),
        (("hold", "--end", "host:node1", "--owner", "me/a", "--label", "a"), "with its label"),
        (("hold", "--end", "host:node1", "--label", "a"), "no hold with the label a"),
        (("hold", "--label", "a"), "which location?"),
        (("drain", "--end", "node1", "--reason", "x"), "takes no reason"),
        (("drain", "--reason", "x"), "which host?"),
        (("host", "add", "cloud[1-2]", "--instance", "i-7"), "the id of one host"),
        (("watch", "--json", "level"), "prints everything"),
        (("snapshot", "--inventories"), "is for JSON"),
    ],
)
def test_no_option_is_passed_over(
    broker: LiveBroker, capsys: Output, arguments: tuple[str, ...], told: str
) -> None:
    """Who says `--owner` and is not told that it means nothing here believes that it was done."""
    assert main([*arguments, "--broker", broker.local.endpoint]) == 2
    assert told in capsys.readouterr().err


def test_every_order_answers_in_json_too(broker: LiveBroker, capsys: Output, tmp_path: Path) -> None:
    made = call_json(broker, capsys, "host", "add", "cloud7")
    assert (made["host"], made["revision"] > 0) == ("cloud7", True)
    assert call_json(broker, capsys, "drain", "cloud7", "--reason", "x")["host"] == "cloud7"
    assert call_json(broker, capsys, "hold", "host:cloud7", "--reason", "x")["location"] == "host:cloud7"
    assert call_json(broker, capsys, "pool", "set", "matlab", "lic", "--base", "10")["resource"] == "lic"
    assert main(["key", "new", "one", "--role", "agent", "--directory", str(tmp_path), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)
    assert Path(files["secret"]).stat().st_mode & 0o777 == 0o600
    assert call_json(broker, capsys, "key", "add", files["public"])["name"] == "one"
    assert call_json(broker, capsys, "key", "revoke", "one", "--reason", "x")["revision"] > 0


def test_a_key_file_that_cannot_be_added_is_told_with_what_was_wanted(
    broker: LiveBroker, capsys: Output, tmp_path: Path
) -> None:
    assert main(["key", "add", str(tmp_path / "no.pub"), "--broker", broker.local.endpoint]) == 2
    told = capsys.readouterr().err
    assert "No such file" in told
    assert "NAME.pub" in told
    assert "--broker-key" not in told, "that is the way out where our own key is missing"


def test_a_pools_amount_is_set_once_for_one_id(broker: LiveBroker, capsys: Output) -> None:
    order = ["pool", "set", "matlab", "lic", "--borrowed", "5", "--op-id", "borrow-1"]
    assert call(broker, capsys, *order) == call(broker, capsys, *order)
    rows = {row["resource"]: row for row in call_json(broker, capsys, "pools", "matlab")}
    assert (rows["lic"]["base"], rows["lic"]["borrowed"], rows["lic"]["total"]) == (10, 5, 15)
    assert "15" in call(broker, capsys, "pools")


def test_types_are_listed_with_unit_and_scope(broker: LiveBroker, capsys: Output) -> None:
    rows = {row["name"]: row for row in call_json(broker, capsys, "types")}
    assert rows["lic_free"]["scope"] == "pool"
    assert "r15s" in rows, "the load indices are known to every cluster"
    assert "level  numeric  MB" in call(broker, capsys, "types", "level")


def test_a_snapshot_has_its_numbers_and_all_of_it_as_json(broker: LiveBroker, capsys: Output) -> None:
    assert "revision" in call(broker, capsys, "snapshot")
    whole = call_json(broker, capsys, "snapshot", "host:node1")
    assert list(whole["locations"]) == ["host:node1"]
    assert whole["locations"]["host:node1"]["values"]["level"] == 812
    assert whole["quality"]["value"] >= 1


def test_status_names_the_broker_and_its_peers(broker: LiveBroker, capsys: Output) -> None:
    out = call(broker, capsys, "status", "--peers")
    assert "revision" in out
    assert "node1" in out
    assert call_json(broker, capsys, "status")["pid"] > 1


def test_keys_are_added_listed_and_revoked(broker: LiveBroker, capsys: Output, tmp_path: Path) -> None:
    assert main(["key", "new", "lab", "--role", "controller", "--directory", str(tmp_path)]) == 0
    call(broker, capsys, "key", "add", str(tmp_path / "lab.pub"))
    (row,) = [row for row in call_json(broker, capsys, "key", "list") if row["name"] == "lab"]
    assert "revoked" not in row
    call(broker, capsys, "key", "revoke", "lab", "--reason", "disk was sold")
    assert "disk was sold" in call(broker, capsys, "key", "list")
    assert main(["key", "add", str(tmp_path / "lab.pub"), "--broker", broker.local.endpoint]) == 1
    assert "was revoked" in capsys.readouterr().err


def test_what_the_broker_refuses_is_exit_1_in_its_words(broker: LiveBroker, capsys: Output) -> None:
    assert main(["drain", "nowhere", "--reason", "x", "--broker", broker.local.endpoint]) == 1
    captured = capsys.readouterr()
    assert "cannot drain host 'nowhere': there is no such host" in captured.err
    assert "Traceback" not in captured.err


def test_watch_prints_numbered_changes_as_lines(broker: LiveBroker, capsys: Output) -> None:
    arguments = [sys.executable, "-c", PROGRAM, "watch", "--broker", broker.local.endpoint]
    with (
        Program([*arguments, "--location", "host:node3", "--count", "2"]) as lines,
        Program([*arguments, "--json", "--seconds", "30"]) as raw,
    ):
        lines.until("snapshot: ")
        raw.until('"event":"fresh"')
        call(broker, capsys, "hold", "host:node3", "--reason", "disk is full")
        line = lines.until("host:node3 held by admin:root: disk is full")
        assert line.startswith("#")
        number = int(line.split()[0][1:])
        delta = json.loads(raw.until('"event":"changed"'))["delta"]
        assert delta["position"]["sequence"] == number
        call(broker, capsys, "hold", "--end", "host:node3")
        lines.until("host:node3 no longer held by admin:root")
        assert lines.wait() == 0


def test_commands_come_over_tcp_with_keys_and_with_what_their_role_may(
    tmp_path: Path, capsys: Output
) -> None:
    broker = LiveBroker(tmp_path, tcp=True)
    broker.new_key("ctl", Role.CONTROLLER)
    public = keys.KeyPair("broker", "broker", broker.key.public)
    keys.save(public, tmp_path / "broker.pub")
    where = ["--broker", f"tcp://127.0.0.1:{broker.port}", "--broker-key", str(tmp_path / "broker.pub")]
    with broker:
        assert main(["hosts", *where, "--key", str(tmp_path / "ctl.key")]) == 0
        assert "node1" in capsys.readouterr().out
        assert main(["key", "list", *where, "--key", str(tmp_path / "ctl.key")]) == 1
        assert "role controller may not say keys" in capsys.readouterr().err
        assert main(["key", "new", "x", "--role", "admin", "--directory", str(tmp_path)]) == 0
        capsys.readouterr()
        assert main(["hosts", *where, "--key", str(tmp_path / "x.key")]) == 3
        told = capsys.readouterr().err
        assert "rejected by broker" in told
        assert "xce-broker key add FILE.pub; one that was revoked stays so" in told
        accepted = ["--offline", "--directory", str(tmp_path / "accepted")]
        assert main(["key", "add", *accepted, str(tmp_path / "x.pub")]) == 0
        broker.reload()
        deadline = time.monotonic() + 10
        while main(["hosts", *where, "--key", str(tmp_path / "x.key")]) != 0:
            assert time.monotonic() < deadline, capsys.readouterr().err
        call(broker, capsys, "key", "revoke", "x", "--reason", "sold")
        assert main(["hosts", *where, "--key", str(tmp_path / "x.key")]) == 3
        until = time.monotonic() + 10
        while "the key of x was revoked (sold)" not in broker.log.read_text():
            assert time.monotonic() < until, broker.log.read_text()


@pytest.mark.parametrize("command", ["types", "supply", "watch --json", "types --help", "--help"])
def test_the_reader_of_a_pipe_may_leave(broker: LiveBroker, command: str) -> None:
    """`| head` is no reason for a traceback, and no failure: not in a list, a stream or a help text."""
    where = [] if "--help" in command else ["--broker", broker.local.endpoint]
    done = without_reader([sys.executable, "-c", PROGRAM, *command.split(), *where])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["watch", "watch --json", "claim watch"])
def test_a_watch_whose_reader_has_left_ends_though_nothing_changes(broker: LiveBroker, command: str) -> None:
    """On a quiet cluster its next line may be days away."""
    argv = [sys.executable, "-c", PROGRAM, *command.split(), "--broker", broker.local.endpoint]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        if command == "watch":
            assert "snapshot: " in program.stderr.readline()
        elif "--json" in command:
            assert '"event":"fresh"' in program.stdout.readline()
        program.stdout.close()
        assert (program.wait(10), program.stderr.read()) == (0, "")


def test_the_reader_of_the_smallest_controller_may_leave(broker: LiveBroker) -> None:
    follow = Path(__file__).parents[2] / "docs" / "examples" / "follow.py"
    done = without_reader([sys.executable, "-c", RUN, str(follow), broker.local.endpoint])
    assert (done.returncode, done.stderr) == (0, "")
