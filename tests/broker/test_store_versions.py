"""Stores of former versions are read and brought up; what a newer one wrote is refused."""

import sqlite3
from pathlib import Path

import msgspec
import pytest

from tests.broker.stored import fact, filled, put, revisions
from xce.broker.store import StoreError, TooNew, files
from xce.broker.store.sqlite import SqliteStore


def older(directory: Path, schema: int, rows: str) -> None:
    """Make the store one of a former version: its schema, and facts and answers in its rows."""
    directory.joinpath("facts.db").unlink(missing_ok=True)
    with sqlite3.connect(directory / "facts.db") as connection:
        for step in files.STEPS[:schema]:
            connection.executescript(step)
        connection.execute(f"PRAGMA user_version = {schema}")
        connection.executescript(rows)
    connection.close()


def in_hex(*of: object) -> str:
    """A value for SQL: what it is in MessagePack."""
    return f"x'{msgspec.msgpack.encode(of[0] if len(of) == 1 else of).hex()}'"


@pytest.mark.parametrize(
    ("schema", "rows"),
    [
        (
            1,
            f"INSERT INTO facts VALUES (1, {in_hex(fact(1))}), (2, {in_hex(fact(2))});"
            f"INSERT INTO facts VALUES (3, {in_hex(fact(3))});"
            "INSERT INTO answers VALUES (1, 'op-1', 'd', x'61', 1), (2, 'op-3', 'd', x'63', 3);",
        ),
        (
            2,
            f"INSERT INTO facts VALUES (2, {in_hex(fact(1), fact(2))}), (3, {in_hex(fact(3))});"
            "INSERT INTO answers VALUES (1, 'op-1', 'd', x'61', 2),"
            f" (3, '', '', {in_hex(('op-2', 'd', b'b'), ('op-3', 'd', b'c'))}, 3);",
        ),
    ],
)
def test_a_store_of_a_former_version_is_read_and_gone_on_with(tmp_path: Path, schema: int, rows: str) -> None:
    older(tmp_path, schema, rows)
    store = SqliteStore(tmp_path)
    assert revisions(store) == [1, 2, 3]
    before = list(store.load().answers)
    assert before[0] == "op-1"
    assert before[-1] == "op-3"
    assert put(store, 4, 5, 6).error is None
    assert store.close(30)
    with pytest.raises(TooNew, match=f"it has schema 3, this version knows up to {schema}"):
        SqliteStore(tmp_path, steps=files.STEPS[:schema])
    store = SqliteStore(tmp_path)
    assert revisions(store) == [1, 2, 3, 4, 5, 6]
    assert list(store.load().answers) == [*before, "op-4", "op-5", "op-6"], "oldest first"
    assert store.close(30)


def test_a_kind_of_change_from_the_future_is_refused_in_words(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    body = msgspec.msgpack.encode({"revision": 1, "change": {"change": "host.teleported"}})
    with sqlite3.connect(tmp_path / "facts.db") as connection:
        connection.execute("UPDATE facts SET body = ?", (body,))
    connection.close()
    store = SqliteStore(tmp_path)
    with pytest.raises(TooNew, match=r"fact 1 is of a kind .*host\.teleported.*newer version"):
        store.load()
    assert store.close(30)


def test_an_older_schema_is_brought_up_by_its_steps_and_a_newer_one_refused(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    newer = [*files.STEPS, "ALTER TABLE facts ADD COLUMN note TEXT", "CREATE TABLE third (x)"]
    store = SqliteStore(tmp_path, steps=newer)
    assert revisions(store) == [1]
    assert store.close(30)
    with sqlite3.connect(tmp_path / "facts.db") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (5,)
        assert connection.execute("SELECT note FROM facts").fetchall() == [(None,)]
    connection.close()
    before = (tmp_path / "facts.db").read_bytes()
    with pytest.raises(TooNew, match="it has schema 5, this version knows up to 3"):
        SqliteStore(tmp_path, start_empty=True)
    assert (tmp_path / "facts.db").read_bytes() == before


def test_a_step_that_fails_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    with pytest.raises(StoreError, match=r"cannot bring the store to schema 4: .*left at schema 3"):
        SqliteStore(tmp_path, steps=[*files.STEPS, "CREATE TABLE half (x); SELECT no_such_function()"])
    store = SqliteStore(tmp_path)
    assert revisions(store) == [1, 2, 3]
    assert store.close(30)
