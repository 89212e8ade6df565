"""A disk that fails, is read-only or hung under the journal of claims: nothing is lost, and it says why."""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.linux.sickdisk import SickFolder
from tests.linux.surroundings import read_only
from tests.prepare.test_journal import file_of, stone
from xce.linux import mountapi
from xce.prepare.journal import Journal, NotRecorded

pytestmark = pytest.mark.root

ILL = {
    "fails": ({"writes": errno.EIO, "syncs": errno.EIO}, "its disk fails"),
    "fails to be read": ({"reads": errno.EIO}, "Input/output error"),
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SickFolder]:
    with SickFolder(tmp_path / "state", tmp_path) as disk:
        yield disk


def filled(place: Path) -> None:
    """A journal with something in it."""
    journal = Journal(str(place))
    journal.end("b1", stone(7))
    journal.close()


def assert_whole(place: Path) -> None:
    journal = Journal(str(place))
    assert (journal.standing.recovering, journal.set_aside) == ("", "")
    assert journal.tombstone("b1") is not None
    journal.close()


@pytest.mark.parametrize("how", ILL)
def test_a_journal_on_a_disk_that_is_ill_at_the_start_is_not_taken_for_a_damaged_one(
    disk: SickFolder, how: str
) -> None:
    filled(disk.point)
    ill, words = ILL[how]
    disk.ill(**ill)
    with pytest.raises(OSError) as refused:  # noqa: PT011 - its words are looked at
        Journal(str(disk.point))
    disk.ill()
    assert words in str(refused.value)
    assert str(disk.point) in str(refused.value)
    assert_whole(disk.point)


def test_a_journal_on_a_file_system_that_is_read_only_is_not_taken_for_a_damaged_one(
    disk: SickFolder,
) -> None:
    filled(disk.point)
    read_only(disk.point)
    with pytest.raises(OSError, match=r"its file system is read-only.*claims\.sqlite"):
        Journal(str(disk.point))
    mountapi.unmount(str(disk.point))
    assert_whole(disk.point)


def test_a_journal_that_another_program_has_open_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    filled(tmp_path)
    with contextlib.closing(sqlite3.connect(file_of(tmp_path), isolation_level=None)) as admin:
        admin.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OSError, match="another program has it open"):
            Journal(str(tmp_path))
    assert_whole(tmp_path)


@pytest.mark.parametrize("ill", [{"writes": errno.EIO}, {"syncs": errno.EIO}])
def test_what_an_ill_disk_does_not_take_is_refused_with_the_cause(
    disk: SickFolder, ill: dict[str, int]
) -> None:
    journal = Journal(str(disk.point))
    disk.ill(**ill)
    with pytest.raises(NotRecorded, match=f"cannot record intent: its disk fails: .*{disk.point}"):
        journal.end("b1", stone(1))
    assert journal.tombstone("b1") is None
    disk.ill()
    journal.trial()
    assert journal.fault == ""
    journal.end("b1", stone(1))
    journal.close()
    assert_whole(disk.point)


def test_a_damaged_journal_that_cannot_be_begun_anew_yet_keeps_what_is_whole_in_it(disk: SickFolder) -> None:
    """No room for the new one at the first try, and a second try with room."""
    filled(disk.point)
    path = file_of(disk.point)
    data = path.read_bytes()
    place = data.index(b'"recovering"' if b'"recovering"' in data else b'"strokes"')
    path.write_bytes(data[: place + 1] + b"X" + data[place + 2 :])
    disk.ill(writes=errno.ENOSPC)
    with pytest.raises(OSError, match="cannot open the journal: "):
        Journal(str(disk.point))
    disk.ill()
    again = Journal(str(disk.point))
    assert "damaged" in again.standing.recovering
    assert os.path.exists(again.set_aside)
    assert again.tombstone("b1") is not None
    again.close()
