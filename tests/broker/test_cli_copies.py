"""backup, restore, export: with the broker running and without it, and what they refuse."""

import json
import os
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.fakes.live_broker import LiveBroker
from xce.broker.cli import main, statedir
from xce.broker.client import Client
from xce.broker.store.sqlite import SqliteStore
from xce.model import message as m

pytestmark = pytest.mark.system
Output = pytest.CaptureFixture[str]


def call(capsys: Output, *arguments: str | Path, code: int = 0) -> str:
    """What a command prints, on both streams, that ends with `code`."""
    assert main([str(argument) for argument in arguments]) == code, capsys.readouterr()
    captured = capsys.readouterr()
    return captured.out + captured.err


def drained(broker: LiveBroker) -> list[str]:
    with Client(broker.local) as client:
        hosts = client.snapshot().locations
    return sorted(key for key, view in hosts.items() if view.state == "draining")


def test_a_copy_of_a_running_broker_brings_back_what_was_confirmed_then(
    tmp_path: Path, capsys: Output
) -> None:
    copy, config = tmp_path / "copy.db", tmp_path / "broker.yaml"
    with LiveBroker(tmp_path) as broker:
        with Client(broker.local) as client:
            client.ask(m.HostDrain(id="1", host="node1", reason="fan"))
            said = call(capsys, "backup", copy, "--config", config)
            revision = client.ask(m.StatusRequest(id="")).revision
            assert said == f"revision {revision} is in {copy}\n"
            assert stat.S_IMODE(copy.stat().st_mode) == 0o600
            client.ask(m.HostDrain(id="2", host="node2", reason="disk"))
        facts = [json.loads(line) for line in call(capsys, "export", "--config", config).splitlines()]
        assert [fact["revision"] for fact in facts] == list(range(1, revision + 2))
        assert facts[-1]["change"]["host"] == "node2"
        said = call(capsys, "restore", copy, "--config", config, code=2)
        assert "has it open" in said
        assert "systemctl stop xce-broker" in said
        assert drained(broker) == ["host:node1", "host:node2"], "a refused restore changes nothing"
        broker.stop()
        assert f"revision {revision} now" in call(capsys, "restore", copy, "--config", config)
        assert not list((tmp_path / "state").glob("facts.brought*"))
        broker.start()
        assert drained(broker) == ["host:node1"]


def test_without_a_running_broker_the_copy_is_made_all_the_same(tmp_path: Path, capsys: Output) -> None:
    copy, config = tmp_path / "copy.db", tmp_path / "broker.yaml"
    with LiveBroker(tmp_path) as broker:
        with Client(broker.local) as client:
            client.ask(m.HostDrain(id="1", host="node1", reason="fan"))
        broker.kill()
        call(capsys, "backup", copy, "--config", config)
        lines = call(capsys, "export", "--from", copy).splitlines()
        assert json.loads(lines[-1])["change"]["host"] == "node1"
        assert lines == call(capsys, "export", "--config", config).splitlines()
        broker.start()
        assert drained(broker) == ["host:node1"]


def test_only_an_admin_gets_a_copy(tmp_path: Path) -> None:
    from tests.broker.world import World

    world = World()
    for role in ("controller", "provider"):
        answer = world.ask(world.peer(role, role), m.BackupRequest(id="b"))
        assert isinstance(answer, m.Failed)
        assert answer.code == "forbidden"


def test_what_is_no_copy_is_refused_and_nothing_is_changed(tmp_path: Path, capsys: Output) -> None:
    state, config = tmp_path / "state", tmp_path / "broker.yaml"
    config.write_text(f"state_directory: {state}\n")
    said = call(capsys, "backup", tmp_path / "copy", "--config", config, code=2)
    assert f"cannot use {state}: there is no such directory" in said
    state.mkdir()
    assert "there is no store" in call(capsys, "backup", tmp_path / "copy", "--config", config, code=2)
    SqliteStore(state).close(10)
    before = sorted(os.listdir(state))
    rubbish = tmp_path / "rubbish"
    rubbish.write_bytes(b"x" * 10_000)
    refused = call(capsys, "restore", rubbish, "--config", config, code=2)
    assert f"{rubbish} is damaged" in refused
    assert "hint: nothing was changed: take another copy" in refused
    assert "Bring back" not in refused
    missing = call(capsys, "restore", tmp_path / "none", "--config", config, code=2)
    assert f"cannot use {tmp_path}/none: there is no such file" in missing
    assert f"{rubbish} is damaged" in call(capsys, "export", "--from", rubbish, code=2)
    assert sorted(os.listdir(state)) == before


def test_a_copy_that_does_not_fit_is_told_by_its_name_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_source: object, _target: object) -> None:
        raise OSError(28, "No space left on device")

    source, copy = tmp_path / "source", tmp_path / "copy.db"
    source.touch()
    monkeypatch.setattr("xce.broker.cli.statedir.shutil.copyfileobj", full)
    with pytest.raises(OSError, match="No space left") as failed:
        statedir.keep(source, copy)
    assert failed.value.filename == str(copy)
    assert list(tmp_path.glob("copy.db*")) == []


def test_a_copy_is_brought_to_where_no_broker_ever_ran(tmp_path: Path, capsys: Output) -> None:
    state, config, copy = tmp_path / "state", tmp_path / "broker.yaml", tmp_path / "copy.db"
    config.write_text(f"state_directory: {state}\n")
    state.mkdir()
    SqliteStore(state).close(10)
    call(capsys, "backup", copy, "--config", config)
    config.write_text(f"state_directory: {tmp_path}/fresh\n")
    assert "start the broker" in call(capsys, "restore", copy, "--config", config)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o750
    config.write_text(f"state_directory: {tmp_path}/no/such\n")
    call(capsys, "restore", copy, "--config", config, code=2)


@pytest.mark.root
def test_what_root_makes_in_the_state_directory_is_its_owners(capsys: Output) -> None:
    with TemporaryDirectory() as name:
        _as_root(Path(name), capsys)


def _as_root(directory: Path, capsys: Output) -> None:
    state, copy, config = directory / "state", directory / "copy.db", directory / "broker.yaml"
    directory.chmod(0o755)
    state.mkdir()
    config.write_text(f"state_directory: {state}\n")
    SqliteStore(state).close(10)
    for path in (state, *state.iterdir()):
        os.chown(path, 65534, 65534)
    call(capsys, "backup", copy, "--config", config)
    call(capsys, "restore", copy, "--config", config)
    assert {path.name for path in state.iterdir() if path.stat().st_uid != 65534} == set()
    assert copy.stat().st_uid == 0
