"""Commands that need no broker, and what every command says when there is none."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from xce.broker import cli, views
from xce.broker.cli import COMMANDS, main
from xce.broker.cli.claim_make import in_words
from xce.broker.cli.connect import chosen
from xce.broker.cli.hosts import reporters
from xce.broker.cli.options import UsageError
from xce.broker.cli.supply import parser as supply_parser
from xce.model.claim import Ask
from xce.model.configuration import BrokerFile
from xce.wire import keys

ARGUMENTS = {
    "host": ["admit", "node1"],
    "pool": ["set", "a", "b", "--base", "1"],
    "key": ["list"],
    "token": ["list"],
    "drain": ["node1", "--reason", "fan"],
    "hold": ["host:node1", "--reason", "fan"],
    "claim": ["list"],
    "quarantine": ["list"],
    "provide": ["/dev/null", "--name", "store"],
}
ASKING = [name for name in COMMANDS if name not in {"run", "doctor", "backup", "restore", "export", "join"}]
Output = pytest.CaptureFixture[str]


def test_every_command_has_a_module_with_its_summary_and_a_whole_help() -> None:
    for name, summary in COMMANDS.items():
        module = __import__(f"xce.broker.cli.{name}", fromlist=["x"])
        assert summary == module.SUMMARY
        text = module.parser().format_help()
        assert f"xce-broker {name}" in text
        assert "examples:" in text
        assert "exit status:" in text


def test_the_overview_loads_nothing_but_itself() -> None:
    program = "import sys; from xce.broker.cli import main; main(['--help']);"
    program += "print(*sys.modules, file=sys.stderr)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "supply" in loaded.stdout
    assert not {"msgspec", "zmq", "argparse", "rich", "yaml"} & set(loaded.stderr.split())


@pytest.mark.parametrize(
    ("size", "words"), [(512, "512 bytes"), (20 << 20, "20 MiB"), (3 << 30, "3 GiB"), (1 << 40, "1 TiB")]
)
def test_a_size_is_shown_in_the_largest_unit_of_which_it_is_a_whole_number(size: int, words: str) -> None:
    assert in_words(Ask(scratch_bytes=size)) == f"{words} of scratch"


def test_a_host_in_trouble_is_one_line_that_can_be_read() -> None:
    trouble = {"a": "backoff: exit status 3", "b": f"waiting: line 1: {'x' * 500}"}
    row = views.HostRow(
        host="n",
        state="available",
        conditions=[],
        holds=[],
        drained="",
        source="config",
        groups=[],
        presences={},
        reporters={},
        trouble=trouble,
        about={},
        instances={},
    )
    assert reporters(row) == f"a backoff: exit status 3; b waiting: line 1: {'x' * 42}…"
    many = msgspec.structs.replace(row, trouble=dict.fromkeys("abcdef", "backoff"))
    assert reporters(many) == "a backoff; b backoff; c backoff; 3 more"


def test_who_plays_a_provider_at_the_local_socket_is_told_to_name_it(tmp_path: Path, capsys: Output) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("claims: []\n")
    local = f"ipc://{tmp_path}/broker.sock"
    assert main(["provide", str(rules), "--key", "store.key", "--broker", local]) == 2
    assert "takes no keys" in capsys.readouterr().err


def test_an_unknown_command_is_a_usage_error(capsys: Output) -> None:
    assert main(["sing"]) == 2
    assert "no command 'sing'" in capsys.readouterr().err
    assert main([]) == 2


@pytest.mark.parametrize("name", ASKING)
def test_without_a_broker_every_command_says_so_and_exits_3(
    name: str, tmp_path: Path, capsys: Output
) -> None:
    endpoint = f"ipc://{tmp_path}/none"
    where = ["--broker", endpoint, "--timeout", "0.1"]
    assert main([name, *ARGUMENTS.get(name, []), *where]) == 3
    captured = capsys.readouterr()
    assert f"there is no socket {tmp_path}/none" in captured.err
    assert "hint:" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["drain", "node1"], "a drain needs a reason"),
        (["drain", "--end"], "which host's drain"),
        (["drain", "node[9-1]", "--reason", "x"], "the first number is above the last"),
        (["hold", "node1", "--reason", "x"], "expected host:NAME"),
        (["hold", "node1", "--reason", "x"], "hint: host:node1, if the host is meant"),
        (["claim", "create", "c", "--env", "HOME"], "--env: 'HOME' says no value"),
        (["hold", "host:node1"], "a hold needs a reason"),
        (["pool", "set", "a", "b"], "nothing to set"),
        (["supply", "--broker", "node1:7400"], "is no broker"),
        (["supply", "--broker", "tcp://node1:7400", "--key", "/none.key"], "cannot read /none.key"),
        (["token", "new", "--hosts", "n", "--broker-key", "/none.pub"], "hint: give --key and --broker-key"),
        (
            ["join", "b", "--name", "n", "--token", "/none"],
            "cannot read the token /none: No such file or dir",
        ),
        (["key", "new", "me"], "which role?"),
        (["key", "new", "me", "--role", "admin", "--directory", "/none/keys"], "hint: mkdir -p /none/keys"),
        (["key", "new", "broker", "--role", "agent"], "has no role"),
        (["key", "new", "me", "--role", "admin", "--hosts", "a"], "--hosts is for agents"),
        (["key", "new", "me", "--role", "agent", "--hosts", "a,n[01-16]"], "write node?? or node*"),
        (["key", "new", "me", "--role", "agent", "--hosts", "n[1-"], "brackets do not match"),
        (["key", "new", "me", "--role", "agent", "--hosts", ","], "--hosts names no host"),
        (["key", "new", "../me", "--role", "admin"], "letters, digits"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error_in_words(
    arguments: list[str], words: str, capsys: Output
) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_key_pair_is_written_with_its_modes(tmp_path: Path, capsys: Output) -> None:
    before = os.umask(0)
    try:
        code = main(
            ["key", "new", "node1", "--role", "agent", "--hosts", "node1,n*", "--directory", str(tmp_path)]
        )
    finally:
        os.umask(before)
    assert code == 0
    secret, public = tmp_path / "node1.key", tmp_path / "node1.pub"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(public.stat().st_mode) == 0o644
    assert keys.load(secret, secret=True).hosts == ("node1", "n*")
    assert keys.load(public, secret=False).public == keys.load(secret, secret=True).public
    assert "secret-key" not in public.read_text()
    text = capsys.readouterr().out
    assert f"{secret}  mode 0600" in text
    assert keys.load(secret, secret=True).secret.decode() not in text


@pytest.mark.parametrize("command", ["key list --offline --directory HERE", "key --help", "--help"])
def test_an_output_that_cannot_be_written_is_told_in_words(command: str, tmp_path: Path) -> None:
    assert main(["key", "new", "me", "--role", "admin", "--directory", str(tmp_path)]) == 0
    arguments = command.replace("HERE", str(tmp_path)).split()
    program = "import sys; from xce.broker.cli import main; sys.exit(main())"
    with Path("/dev/full").open("w") as full:
        argv = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"xce-broker {arguments[0]}: cannot use the output: No space left on device\n"


def test_a_first_key_of_the_broker_makes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xce.broker.cli.key.KEYS", tmp_path / "xce" / "keys")
    assert main(["key", "new", "broker"]) == 0
    assert stat.S_IMODE((tmp_path / "xce" / "keys" / "broker.key").stat().st_mode) == 0o600


@pytest.mark.root
@pytest.mark.parametrize(("place", "owner"), [("service", 65534), ("elsewhere", 0)])
def test_the_brokers_key_is_its_services_where_that_looks_for_it_and_its_makers_elsewhere(
    place: str, owner: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host with the packages `./dev demo` made a key that its own broker, of root, did not trust."""
    for name in ("service", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "broker.yaml").write_text(f"key: {tmp_path}/service/broker.key\n")
    monkeypatch.setattr("xce.broker.cli.key.CONFIGURATION", tmp_path / "broker.yaml")
    monkeypatch.setattr("xce.broker.cli.statedir.SERVICE_USER", "nobody")
    assert main(["key", "new", "broker", "--directory", str(tmp_path / place)]) == 0
    assert main(["key", "rotate", "--directory", str(tmp_path / place)]) == 0
    made = (tmp_path / place / "broker.key", tmp_path / place / "broker.next.key")
    assert [key.stat().st_uid for key in made] == [owner, owner]


def test_a_key_is_never_overwritten(tmp_path: Path, capsys: Output) -> None:
    arguments = ["key", "new", "broker", "--directory", str(tmp_path)]
    assert main(arguments) == 0
    before = (tmp_path / "broker.key").read_text()
    assert main(arguments) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "broker.key").read_text() == before


def test_a_key_is_accepted_offline_only_into_a_directory_that_others_cannot_write(
    tmp_path: Path, capsys: Output
) -> None:
    accepted = tmp_path / "accepted"
    accepted.mkdir(mode=0o755)
    assert main(["key", "new", "ctl", "--role", "controller", "--directory", str(tmp_path)]) == 0
    add = ["key", "add", "--offline", "--directory", str(accepted), str(tmp_path / "ctl.pub")]
    accepted.chmod(0o777)
    assert main(add) == 2
    assert "mode 777: others could add keys" in capsys.readouterr().err
    accepted.chmod(0o755)
    assert main(add) == 0
    assert main(["key", "list", "--offline", "--directory", str(accepted), "--json"]) == 0
    assert '"role":"controller"' in capsys.readouterr().out


def test_an_open_secret_key_is_refused_by_name(tmp_path: Path, capsys: Output) -> None:
    assert main(["key", "new", "me", "--role", "admin", "--directory", str(tmp_path)]) == 0
    (tmp_path / "me.key").chmod(0o644)
    assert main(["hosts", "--broker", "tcp://127.0.0.1:1", "--key", str(tmp_path / "me.key")]) == 2
    assert f"chmod 600 {tmp_path}/me.key" in capsys.readouterr().err


def test_the_broker_of_this_host_is_the_one_of_its_file(tmp_path: Path) -> None:
    options = supply_parser().parse_args(["--broker", ""])
    configuration = tmp_path / "broker.yaml"
    configuration.write_text(f"local: {tmp_path}/b.sock\n")
    assert chosen(options, configuration).endpoint == f"ipc://{tmp_path}/b.sock"
    configuration.write_text("locl: x\n")
    with pytest.raises(UsageError, match=r"broker\.yaml.*locl"):
        chosen(options, configuration)


def test_on_a_host_without_a_broker_the_question_is_which_one(tmp_path: Path) -> None:
    options = supply_parser().parse_args(["--broker", "", "--key", str(tmp_path / "none.key")])
    if Path(BrokerFile().local).exists():
        pytest.skip("a broker runs on this host")
    with pytest.raises(UsageError, match=r"which broker\? this host has none: no .*/none\.yaml") as caught:
        chosen(options, tmp_path / "none.yaml")
    assert "XCE_BROKER" in caught.value.hint


def test_without_the_local_socket_the_admins_key_opens_the_port(tmp_path: Path) -> None:
    assert cli.main(["key", "new", "admin", "--role", "admin", "--directory", str(tmp_path)]) == 0
    assert cli.main(["key", "new", "broker", "--directory", str(tmp_path)]) == 0
    configuration = tmp_path / "broker.yaml"
    configuration.write_text(f"local: {tmp_path}/none\nlisten: ['tcp://*:7777']\n")
    where = ["--broker", "", "--key", f"{tmp_path}/admin.key", "--broker-key", f"{tmp_path}/broker.pub"]
    broker = chosen(supply_parser().parse_args(where), configuration)
    assert broker.endpoint == "tcp://127.0.0.1:7777"
    assert broker.key is not None
    assert broker.key.name == "admin"
