"""Files are looked at when their directory has changed, and are not asked for their times otherwise."""

import os
import time
from pathlib import Path

import pytest

from xce.broker.store.names import SETTLED_NS, Names


class Counting(Names):
    """Counts how often it asks the files."""

    asked = 0

    def _identities(self) -> list[tuple[int, int]]:
        self.asked += 1
        return super()._identities()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "facts.db", tmp_path / "facts.db-wal"]
    for path in paths:
        path.write_bytes(b"x")
    return paths


def settle() -> None:
    time.sleep(SETTLED_NS / 1e9 + 0.02)


def test_files_are_not_asked_while_their_directory_is_as_it_was(files: list[Path]) -> None:
    """A file that is asked for its times notes them anew at its next write, and its sync takes two writes."""
    names = Counting(files)
    settle()
    assert names.stand()
    asked = names.asked
    for _ in range(10):
        files[1].write_bytes(b"y")  # what is in a file is nothing that its directory knows
        assert names.stand()
    assert names.asked == asked


def test_they_are_asked_while_a_change_is_so_fresh_that_another_would_not_show(files: list[Path]) -> None:
    names = Counting(files)
    settle()
    assert names.stand()
    (files[0].parent / "other").touch()
    asked = names.asked
    assert names.stand()
    assert names.stand()
    assert names.asked == asked + 2
    settle()
    assert names.stand()
    assert names.stand()
    assert names.asked == asked + 3


@pytest.mark.parametrize("settled", [True, False])
def test_another_file_in_the_place_of_one_is_noticed(files: list[Path], *, settled: bool) -> None:
    names = Names(files)
    if settled:
        settle()
    assert names.stand()
    other = files[0].with_name("other")
    other.write_bytes(b"x")
    other.replace(files[0])
    assert not names.stand()
    settle()
    assert not names.stand()
    assert not names.stand(), "a wrong file is not taken for a right one because nothing has changed since"


def test_another_directory_in_the_place_of_theirs_is_noticed(tmp_path: Path) -> None:
    place = tmp_path / "state"
    for directory in (place, tmp_path / "other"):
        directory.mkdir()
        (directory / "facts.db").write_bytes(b"x")
    names = Names([place / "facts.db"])
    settle()
    assert names.stand()
    place.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        names.stand()
    os.rename(tmp_path / "other", place)
    assert not names.stand()
