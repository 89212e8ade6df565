"""What was found is there after a restart; a file that cannot be read is no empty one."""

import os
from pathlib import Path

import pytest

from xce.agent.discovery.keep import Memory
from xce.agent.discovery.store import FILE, Store
from xce.agent.probe.health import Record, State
from xce.model.instance import Health, Instance

KEPT = Memory(
    instances={"GPU-a": Instance(id="GPU-a", kind="gpu", health=Health.LOST, since="2026-01-01T00:00:00Z")},
    records={"GPU-a": Record(state=State.LOST, falls=2)},
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    Store(str(tmp_path)).write(KEPT)
    assert Store(str(tmp_path)).read() == (KEPT, "")
    assert os.listdir(tmp_path) == [FILE]


def test_nothing_there_is_nothing_known_and_no_damage(tmp_path: Path) -> None:
    assert Store(str(tmp_path)).read() == (Memory(), "")
    assert Store("").read() == (Memory(), "")


@pytest.mark.parametrize("content", [b"", b"\x92\x01", b"not msgpack", b"\x92\x01\x81\xa9instances\x05"])
def test_a_damaged_file_is_set_aside_and_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    memory, damage = Store(str(tmp_path)).read()
    assert memory == Memory()
    assert "damaged" in damage
    assert (tmp_path / f"{FILE}.damaged").read_bytes() == content
    assert Store(str(tmp_path)).read() == (Memory(), "")


def test_a_truncated_file_is_damaged_wherever_it_ends(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write(KEPT)
    whole = (tmp_path / FILE).read_bytes()
    for length in range(len(whole)):
        (tmp_path / FILE).write_bytes(whole[:length])
        assert store.read().damage != "", length


def test_a_directory_that_cannot_be_written_is_a_fault_until_it_can(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "away"))
    store.write(KEPT)
    assert "No such file" in store.fault
    (tmp_path / "away").mkdir()
    store.write(KEPT)
    assert store.fault == ""
