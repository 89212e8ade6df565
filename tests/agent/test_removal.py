"""`xce-agent removal`: no, while a claim is live by the journal or something of it is mounted."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from xce.agent.cli import removal
from xce.agent.cli.options import UsageError
from xce.linux import mountapi, mountinfo
from xce.model.claim import Binding, BindingState, Claim, Consumer
from xce.prepare.journal import Journal, Order, Tombstone


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for name in ("state", "run", "claims"):
        (tmp_path / name).mkdir()
    path = tmp_path / "agent.yaml"
    settings = {
        "state_directory": str(tmp_path / "state"),
        "run_directory": str(tmp_path / "run"),
        "claims": {"enabled": True, "directory": str(tmp_path / "claims")},
    }
    path.write_text(json.dumps(settings))
    return path


def order() -> Order:
    binding = Binding(
        id="b7", claim="train", host="h", consumer=Consumer(name="4711", user="joe", job="4711")
    )
    return Order(
        binding=binding, claim=Claim(id="train"), op_id="o", epoch=1, boot="x", phase="ready", steps=0
    )


def test_a_host_that_never_had_a_claim_is_free(config: Path) -> None:
    assert removal.run(["--config", str(config)]) == 0


def test_a_live_claim_is_named_although_no_agent_no_process_and_no_mount_is_there(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a crash the journal alone knows."""
    journal = Journal(str(config.parent / "state"))
    journal.begin(order(), [], epoch=1)
    journal.close()
    assert removal.run(["--config", str(config)]) == 1
    assert "claim train is ready here: b7, consumer 4711" in capsys.readouterr().err
    journal = Journal(str(config.parent / "state"))
    journal.end("b7", Tombstone(state=BindingState.RELEASED, epoch=1, op_id="o"))
    journal.close()
    assert removal.run(["--config", str(config)]) == 0


def test_a_configuration_that_cannot_be_read_stops_who_does_not_force(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says where claims are; the default places are looked at then."""
    config.write_text("claims: [\n")
    with pytest.raises(UsageError, match="correct it first, or set XCE_FORCE_REMOVAL=1"):
        removal.run(["--config", str(config)])
    monkeypatch.setenv("XCE_FORCE_REMOVAL", "1")
    assert removal.run(["--config", str(config)]) == 0
    assert "the default directories are looked at" in capsys.readouterr().err


def test_a_journal_that_nobody_can_read_may_have_claims(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (config.parent / "state/claims.sqlite").write_bytes(b"SQLite format 3\0 and rubbish" * 100)
    assert removal.run(["--config", str(config)]) == 1
    assert "cannot read the journal" in capsys.readouterr().err


def test_a_journal_that_is_gone_may_have_had_claims(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(str(config.parent / "state"))
    journal.begin(order(), [], epoch=1)
    journal.close()
    (config.parent / "state/claims.sqlite").unlink()
    assert removal.run(["--config", str(config)]) == 1
    assert "claims.sqlite: it is gone" in capsys.readouterr().err


@pytest.mark.root
def test_by_force_it_unmounts_what_is_free_and_leaves_what_is_used_or_anothers(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = config.parent / "data"
    data.mkdir()
    (data / "precious").touch()
    free, used, others = (config.parent / name for name in ("claims/b7/free", "claims/b7/used", "run/else"))
    for place in (free, used, others):
        place.mkdir(parents=True)
        subprocess.run(["mount", "--bind", str(data), str(place)], check=True)
    at = os.open(used, os.O_RDONLY)
    try:
        assert removal.run(["--config", str(config)]) == 1
        assert mounted(free, used, others) == [True] * 3, "asking changes nothing"
        monkeypatch.setenv("XCE_FORCE_REMOVAL", "1")
        assert removal.run(["--config", str(config)]) == 0
        assert mounted(free, used, others) == [False, True, True]
        said = capsys.readouterr().err
        assert f"unmounted {free}" in said
        assert f"cannot unmount {used}: Device or resource busy" in said
        assert (data / "precious").exists()
        assert used.exists()
    finally:
        os.close(at)
        for place in (used, others):
            mountapi.unmount(str(place))


def mounted(*places: Path) -> list[bool]:
    points = {mount.point for mount in mountinfo.read()}
    return [str(place) in points for place in places]
