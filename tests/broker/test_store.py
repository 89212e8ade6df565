"""The store through its interface: what is acknowledged is there, what fails is gone whole, in order."""

import os
import select
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.broker.stored import batch, fact, filled, make_store, put, reopened, revisions, wait
from xce.broker.store import Batch, InUse, Store, StoreError, files
from xce.broker.store.sqlite import SqliteStore
from xce.model.fact import Checkpoint, Fact, HostReleased

store = pytest.fixture(make_store, name="store")


def test_a_new_store_is_empty_and_has_revision_0(store: SqliteStore) -> None:
    loaded = store.load()
    assert (loaded.facts, loaded.answers, loaded.revision, store.fault) == ([], {}, 0, "")


def test_the_implementation_keeps_the_interface(store: SqliteStore) -> None:
    checked: Store = store
    assert checked.fileno() >= 0


def test_what_was_acknowledged_is_there_after_a_restart(store: SqliteStore, tmp_path: Path) -> None:
    assert store.submit(batch(1, 2), token=7)
    (outcome,) = wait(store, 1)
    assert (outcome.token, outcome.error) == (7, None)
    assert 0 <= outcome.ms < 10_000
    with_facts = store.load()
    again = reopened(store, tmp_path)
    assert again.load() == with_facts
    assert with_facts.facts == [fact(1), fact(2)]
    assert with_facts.answers == {"op-1": ("digest-1", b"done"), "op-2": ("digest-2", b"done")}
    assert again.close(30)


def test_batches_are_recorded_and_reported_in_the_order_in_which_they_came(store: SqliteStore) -> None:
    for token in range(300):
        assert store.submit(batch(2 * token + 1, 2 * token + 2), token=1000 + token)
    outcomes = wait(store, 300)
    assert [outcome.token for outcome in outcomes] == [1000 + token for token in range(300)]
    assert all(outcome.error is None for outcome in outcomes)
    assert revisions(store) == list(range(1, 601))


def test_what_waits_while_the_disk_is_busy_goes_in_one_transaction(
    store: SqliteStore, tmp_path: Path
) -> None:
    """A commit is a row: 200 waiting batches must not cost 200 of them."""
    with store._recorder._alone:  # a slow disk: the first commit has begun and does not end
        for revision in range(1, 202):
            assert store.submit(batch(revision), token=revision)
        assert store.completed() == []
    assert len(wait(store, 201)) == 201
    assert revisions(store) == list(range(1, 202))
    assert store.close(30)
    with sqlite3.connect(tmp_path / "facts.db") as connection:
        (rows,) = connection.execute("SELECT count(*) FROM facts").fetchone()
    connection.close()
    assert rows <= 2


def test_an_order_that_changed_nothing_is_remembered_too(store: SqliteStore) -> None:
    assert store.submit(Batch([], {"op-x": ("abcd", b"\x00nothing to do")}), token=3)
    assert wait(store, 1)[0].error is None
    assert store.load().answers == {"op-x": ("abcd", b"\x00nothing to do")}


def test_only_the_newest_answers_are_remembered(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, keep_answers=50)
    for start in range(0, 2400, 400):
        answers = {f"op-{n}": ("d", str(n).encode()) for n in range(start, start + 400)}
        assert store.submit(Batch([], answers), token=start)
    wait(store, 6)
    assert list(store.load().answers) == [f"op-{n}" for n in range(2350, 2400)]
    assert store.close(30)
    with sqlite3.connect(tmp_path / "facts.db") as connection:
        (rows,) = connection.execute("SELECT count(*) FROM answers").fetchone()
    assert rows < 1100, "older ones are deleted now and then"


def test_too_many_waiting_batches_are_refused_at_once(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, room=3)
    assert [store.submit(batch(n), token=n) for n in range(1, 6)] == [True, True, True, False, False]
    assert [outcome.token for outcome in wait(store, 3)] == [1, 2, 3]
    assert store.submit(batch(4), token=4)
    assert wait(store, 1)[0].error is None
    assert store.close(30)


@pytest.mark.parametrize("bad", [(4,), (2,), (3, 5), (3, 3)])
def test_a_gap_or_a_duplicate_is_refused_and_nothing_of_the_batch_is_recorded(
    store: SqliteStore, bad: tuple[int, ...]
) -> None:
    assert put(store, 1, 2).error is None
    error = put(store, *bad).error
    assert error is not None
    assert "does not follow" in error
    assert revisions(store) == [1, 2]
    assert put(store, 3).error is None


def test_a_failure_fails_everything_that_was_submitted_on_top_of_it(store: SqliteStore) -> None:
    """The core takes its ledger back once; nothing of the old one may arrive afterwards."""
    assert put(store, 1).error is None
    assert store.submit(batch(5), token=50)
    assert store.submit(batch(6), token=60)
    assert store.submit(Batch([], {"on-top": ("d", b"x")}), token=70)
    outcomes = wait(store, 3)
    assert [outcome.token for outcome in outcomes] == [50, 60, 70]
    assert all(outcome.error for outcome in outcomes)
    assert store.completed() == []
    assert put(store, 2).error is None
    loaded = store.load()
    assert loaded.revision == 2
    assert "on-top" not in loaded.answers


def test_closing_records_what_waits_and_may_be_done_twice(store: SqliteStore, tmp_path: Path) -> None:
    for revision in range(1, 101):
        store.submit(batch(revision), token=revision)
    assert store.close(30)
    assert store.close(30)
    assert [outcome.token for outcome in store.completed()] == list(range(1, 101))
    assert not store.submit(batch(101), token=101)
    again = SqliteStore(tmp_path)
    assert revisions(again) == list(range(1, 101))
    assert again.close(30)


def test_a_second_opener_is_refused_with_the_pid_of_the_first(store: SqliteStore, tmp_path: Path) -> None:
    assert put(store, 1).error is None
    code = f"from xce.broker.store.sqlite import SqliteStore; SqliteStore({str(tmp_path)!r})"
    second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"the broker with pid {os.getpid()} has it open" in second.stderr
    with pytest.raises(InUse) as refused:
        SqliteStore(tmp_path)
    assert refused.value.pid == os.getpid()
    assert put(store, 2).error is None


def test_a_database_that_another_program_has_open_is_refused_in_words(tmp_path: Path) -> None:
    filled(tmp_path)
    blocker = sqlite3.connect(tmp_path / "facts.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another program has it open; end that one"):
        SqliteStore(tmp_path)
    blocker.close()
    store = SqliteStore(tmp_path)
    assert put(store, 201).error is None
    assert store.close(30)


@pytest.mark.parametrize("name", ["facts.db", "facts.db-wal"])
@pytest.mark.parametrize("after_s", [0.0, 0.1])
def test_files_removed_under_a_running_broker_are_noticed(
    store: SqliteStore, tmp_path: Path, name: str, after_s: float
) -> None:
    """SQLite would go on writing into the deleted file and report success."""
    time.sleep(after_s)  # then their directory has not changed lately, and is all that is looked at
    assert put(store, 1).error is None
    (tmp_path / name).rename(tmp_path / "away")
    error = put(store, 2).error
    assert error is not None
    assert error.startswith(f"cannot record: {tmp_path / 'facts.db'} was removed or replaced")
    assert store.fault == error
    (tmp_path / "away").rename(tmp_path / name)
    deadline = time.monotonic() + 30
    while store.fault and time.monotonic() < deadline:
        select.select([store.fileno()], [], [], 1)
        assert store.completed() == []
    assert store.fault == "", "the fault ends by itself, and the descriptor says so"
    assert put(store, 2).error is None


def test_a_disk_that_does_not_answer_makes_nobody_wait_for_ever(store: SqliteStore) -> None:
    with store._recorder._alone:
        assert store.submit(batch(1), token=1)
        assert not store.close(0.1)
        assert store.completed() == []
    assert store.close(30)
    assert store.completed()[0].error is None


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot open .*nowhere/facts\.lock: No such file"):
        SqliteStore(tmp_path / "nowhere")


def test_files_are_for_the_owner_alone(store: SqliteStore, tmp_path: Path) -> None:
    put(store, 1)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert set(modes) == {"facts.db", "facts.db-wal", "facts.head", "facts.lock"}
    assert set(modes.values()) == {0o600}


def test_answers_are_remembered_in_the_order_in_which_they_were_given(store: SqliteStore) -> None:
    """With facts or without: the oldest are forgotten first."""
    put(store, 1)
    assert store.submit(Batch([], {"nothing": ("d", b"x")}), token=2)
    wait(store, 1)
    put(store, 2, 3)
    assert list(store.load().answers) == ["op-1", "nothing", "op-2", "op-3"]


def test_a_checkpoint_forgets_facts_and_no_answers(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, keep_answers=4)
    put(store, 1, 2, 3)
    assert store.submit(Batch([], {"nothing": ("d", b"x")}), token=2)
    wait(store, 1)
    mark = Fact(revision=4, change=Checkpoint(ledger=b"all of it"))
    assert store.submit(Batch([mark], {"with-it": ("d", b"y")}), token=3)
    assert wait(store, 1)[0].error is None
    assert list(store.load().answers) == ["op-2", "op-3", "nothing", "with-it"]
    put(store, 5)
    assert list(store.load().answers) == ["op-3", "nothing", "with-it", "op-5"]
    assert revisions(store) == [4, 5]
    assert store.close(30)


def test_the_log_has_its_place_from_the_start_and_does_not_grow_with_each_commit(tmp_path: Path) -> None:
    """The sync of a file that grows takes three writes instead of one, and waits for others' files."""
    store, log = SqliteStore(tmp_path), tmp_path / "facts.db-wal"
    before = log.stat()
    for revision in range(1, 21):
        put(store, revision)
    after = log.stat()
    assert (after.st_size, after.st_blocks) == (before.st_size, before.st_blocks)
    assert before.st_size == files.LOG_BYTES
    assert store.close(30)


def test_the_witness_follows_soon_and_at_the_end(store: SqliteStore, tmp_path: Path) -> None:
    put(store, 1, 2, 3)
    deadline = time.monotonic() + 30
    while files.read_head(files.Place(tmp_path).head) != 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    put(store, 4)
    assert store.close(30)
    assert files.read_head(files.Place(tmp_path).head) == 4


def test_facts_before_a_checkpoint_are_forgotten_with_it_and_the_rest_goes_on(
    store: SqliteStore, tmp_path: Path
) -> None:
    put(store, 1, 2, 3)
    mark = Fact(revision=5, change=Checkpoint(ledger=b"all of it"))
    assert store.submit(Batch([fact(4), mark, fact(6)]), token=1)
    assert wait(store, 1)[0].error is None
    assert revisions(store) == [5, 6]
    again = reopened(store, tmp_path)
    assert [one.revision for one in again.load().facts] == [5, 6]
    assert put(again, 7).error is None
    assert again.load().revision == 7
    assert again.close(30)


def test_a_released_host_reads_back_as_such(store: SqliteStore) -> None:
    """Bodies keep their tag: a fact is of the kind that it was."""
    released = Fact(revision=1, change=HostReleased(host="n1", reason="broken"), at="2024-05-01T00:00:00Z")
    assert store.submit(Batch([released]), token=1)
    assert wait(store, 1)[0].error is None
    assert store.load().facts == [released]
