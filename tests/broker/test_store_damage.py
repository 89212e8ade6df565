"""A store that is damaged is refused, named and left alone; what an admin can do is an order."""

import os
import sqlite3
from pathlib import Path

import pytest

from tests.broker.stored import filled, put, revisions, truncate
from xce.broker.store import Damaged
from xce.broker.store.sqlite import SqliteStore

ALONE, PAIRS = [[1], [2], [3], [4]], [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 8192])
def test_a_truncated_database_is_refused_named_and_left_alone(tmp_path: Path, size: int) -> None:
    filled(tmp_path)
    truncate(tmp_path / "facts.db", size)
    for _ in range(2):
        with pytest.raises(Damaged, match=r"facts\.db.*xce-broker restore FILE.*--start-empty"):
            SqliteStore(tmp_path)
    assert (tmp_path / "facts.db").stat().st_size == size


def test_a_database_of_0_bytes_is_damaged_even_without_other_evidence(tmp_path: Path) -> None:
    (tmp_path / "facts.db").touch()
    with pytest.raises(Damaged, match="is empty"):
        SqliteStore(tmp_path)


def test_a_database_that_is_gone_is_not_a_new_one(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "facts.db").unlink()
    with pytest.raises(Damaged, match=r"is missing.*at least 200"):
        SqliteStore(tmp_path)


def test_a_log_without_its_database_is_not_a_new_store(tmp_path: Path) -> None:
    (tmp_path / "facts.db-wal").write_bytes(b"x" * 5000)
    with pytest.raises(Damaged, match="is missing"):
        SqliteStore(tmp_path)
    assert (tmp_path / "facts.db-wal").stat().st_size == 5000


def test_scribbled_pages_are_found_at_the_start(tmp_path: Path) -> None:
    filled(tmp_path, 2000)
    with (tmp_path / "facts.db").open("r+b") as file:
        file.seek(8 * 4096)
        file.write(os.urandom(3 * 4096))
    with pytest.raises(Damaged, match="is damaged"):
        SqliteStore(tmp_path)


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "facts.db") as connection:
        connection.execute("CREATE TABLE other (x)")
    with pytest.raises(Damaged, match="no store of XCE's"):
        SqliteStore(tmp_path)


def test_an_older_copy_put_in_place_by_hand_is_noticed(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    older = (tmp_path / "facts.db").read_bytes()
    store = SqliteStore(tmp_path)
    put(store, 4)
    assert store.close(30)
    (tmp_path / "facts.db").write_bytes(older)
    with pytest.raises(Damaged, match=r"ends at revision 3, .* shows that 4 was recorded"):
        SqliteStore(tmp_path)
    (tmp_path / "facts.head").unlink()  # the way that the message offers
    accepted = SqliteStore(tmp_path)
    assert revisions(accepted) == [1, 2, 3]
    assert accepted.close(30)


def test_an_admin_can_accept_the_loss_and_the_bad_file_is_kept(tmp_path: Path) -> None:
    filled(tmp_path)
    truncate(tmp_path / "facts.db", 4096)
    bad = (tmp_path / "facts.db").read_bytes()
    store = SqliteStore(tmp_path, start_empty=True)
    assert store.load().revision == 0
    assert put(store, 1).error is None
    (aside,) = [path for path in tmp_path.glob("facts.db.damaged-*") if path.suffix == ".0"]
    assert aside.read_bytes() == bad
    assert store.close(30)


def test_starting_empty_does_nothing_to_a_whole_store(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    store = SqliteStore(tmp_path, start_empty=True)
    assert store.load().revision == 5
    assert store.close(30)


@pytest.mark.parametrize(
    ("batches", "damage", "words"),
    [
        (ALONE, "DELETE FROM facts WHERE revision = 3", "fact 3 is missing"),
        (ALONE, "DELETE FROM facts WHERE revision < 3", "fact 1 is missing"),
        (
            ALONE,
            "UPDATE facts SET body = (SELECT body FROM facts WHERE revision = 2) WHERE revision = 3",
            "as 2",
        ),
        (ALONE, "UPDATE facts SET body = x'81' WHERE revision = 3", "fact 3 cannot be read"),
        (PAIRS, "DELETE FROM facts WHERE revision = 4", "fact 3 is missing"),
        (PAIRS, "DELETE FROM facts WHERE revision = 2", "fact 1 is missing"),
        (
            PAIRS,
            "UPDATE facts SET body = (SELECT body FROM facts WHERE revision = 2) WHERE revision = 4",
            "as 1",
        ),
        (PAIRS, "UPDATE facts SET revision = 3 WHERE revision = 4", "fact 2 is recorded twice"),
        (PAIRS, "UPDATE facts SET body = x'92' WHERE revision = 4", "fact 4 cannot be read"),
    ],
)
def test_a_row_that_does_not_fit_is_named_when_loading(
    tmp_path: Path, batches: list[list[int]], damage: str, words: str
) -> None:
    store = SqliteStore(tmp_path)
    for batch in batches:
        put(store, *batch)
    assert store.close(30)
    with sqlite3.connect(tmp_path / "facts.db") as connection:
        connection.execute(damage)
    connection.close()
    store = SqliteStore(tmp_path)
    with pytest.raises(Damaged, match=words):
        store.load()
    assert store.close(30)
