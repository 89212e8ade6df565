"""What the agent remembers, and that it can lose all of it."""

import os
import time
from pathlib import Path

import pytest

from tests.linux.hangfs import hanging
from xce.agent import memory
from xce.agent.memory import Generation, Memory
from xce.model.configuration import ReporterSettings
from xce.model.refusal import ConfigError, ConfigRefused
from xce.model.resource import Kind, ResourceType

GPUS = ResourceType(name="gpus", kind=Kind.NUMERIC, maximum=16)


def test_types_and_generations_are_there_again(tmp_path: Path) -> None:
    Memory(str(tmp_path)).keep_types([GPUS])
    Memory(str(tmp_path)).keep_generations({"r": Generation(7, "d")})
    assert Memory(str(tmp_path)).types() == [GPUS]
    assert Memory(str(tmp_path)).generations() == {"r": Generation(7, "d")}


@pytest.mark.parametrize("damage", [b"", b"\x00", b"\x92\x63\x90", b"\xff" * 100])
def test_a_damaged_file_reads_as_nothing(tmp_path: Path, damage: bytes) -> None:
    """C-STA-01, for what may be lost: an empty file after a power cut."""
    Memory(str(tmp_path)).keep_types([GPUS])
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    assert Memory(str(tmp_path)).types() is None
    assert Memory(str(tmp_path)).generations() == {}


def test_a_file_that_others_can_write_is_not_believed(tmp_path: Path) -> None:
    Memory(str(tmp_path)).keep_types([GPUS])
    (file,) = tmp_path.iterdir()
    file.chmod(0o666)
    assert Memory(str(tmp_path)).types() is None


def test_a_text_is_parsed_once(tmp_path: Path) -> None:
    parsed: list[str] = []

    def parse(text: str, path: str, kind: type[ReporterSettings]) -> ReporterSettings:
        parsed.append(text)
        if text == "bad":
            raise ConfigRefused([ConfigError(path, 1, "", "bad")])
        return ReporterSettings(interval=float(text))

    for _ in range(2):
        assert Memory(str(tmp_path)).parsed("3", "x", ReporterSettings, parse).interval == 3
        with pytest.raises(ConfigRefused):
            Memory(str(tmp_path)).parsed("bad", "x", ReporterSettings, parse)
    assert parsed == ["3", "bad", "bad"]
    assert Memory("").parsed("4", "x", ReporterSettings, parse).interval == 4


def test_what_is_remembered_is_bounded(tmp_path: Path) -> None:
    one = Memory(str(tmp_path))
    for number in range(memory.PARSED_FILES + 5):
        one.parsed(
            str(number + 1), "x", ReporterSettings, lambda text, *_: ReporterSettings(interval=float(text))
        )
    assert len(os.listdir(tmp_path)) <= memory.PARSED_FILES


def test_a_disk_that_cannot_be_written_is_a_fault_and_no_more(tmp_path: Path) -> None:
    one = Memory(str(tmp_path / "gone"))
    one.keep_types([GPUS])
    assert "cannot write" in one.fault
    assert one.types() is None
    (tmp_path / "gone").mkdir()
    one.keep_types([GPUS])
    assert one.fault == ""


def test_what_could_not_be_written_is_written_once_it_can_be(tmp_path: Path) -> None:
    """A generation that a full disk has kept off it was given to another inventory after the next start."""
    one = Memory(str(tmp_path / "gone"))
    one.keep_generations({"r": Generation(7, "d")})
    one.keep_generations({"r": Generation(8, "e")})
    one.write_again()
    assert "cannot write" in one.fault
    (tmp_path / "gone").mkdir()
    one.write_again()
    assert one.fault == ""
    assert one.generations() == {"r": Generation(8, "e")}
    (tmp_path / "gone/generations.msgpack").unlink()
    one.write_again()
    assert one.generations() == {}, "nothing is owed any more"


def test_nothing_is_read_where_a_file_system_has_come_that_may_hang(tmp_path: Path) -> None:
    one = Memory(str(tmp_path))
    one.keep_types([GPUS])
    with hanging(tmp_path):
        began = time.monotonic()
        assert one.types() is None
        one.keep_types([GPUS])
        assert time.monotonic() - began < 1
    assert "nothing is remembered" in one.fault


def test_what_cannot_be_read_is_set_aside_and_the_agent_goes_on(tmp_path: Path) -> None:
    """It once ended the start with a traceback."""
    Memory(str(tmp_path)).keep_types([GPUS])
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.mkdir()
    one = Memory(str(tmp_path))
    assert one.types() is None
    assert one.fault == f"cannot read {file}: Is a directory; it was set aside as {file}.unreadable"
    one.keep_types([GPUS])
    assert one.fault == ""
    assert Memory(str(tmp_path)).types() == [GPUS]
