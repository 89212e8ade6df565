"""The store through its interface: what is acknowledged is there, what fails is gone whole, in order."""

import os
import select
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from xce.broker.store import Batch, Damaged, InUse, Outcome, Store, StoreError, TooNew, files, json_lines
from xce.broker.store.sqlite import SqliteStore
from xce.model.fact import Checkpoint, Fact, HostAdmitted, HostReleased


def fact(revision: int, host: str = "node1") -> Fact:
    return Fact(revision=revision, change=HostAdmitted(host=host), by="alice", op_id=f"op-{revision}")


def batch(*revisions: int) -> Batch:
    facts = [fact(revision) for revision in revisions]
    return Batch(facts, {f.op_id: (f"digest-{f.revision}", b"done") for f in facts})


def wait(store: Store, count: int, within_s: float = 10.0) -> list[Outcome]:
    """The next `count` outcomes, by the descriptor as the broker's loop would."""
    outcomes: list[Outcome] = []
    deadline = time.monotonic() + within_s
    while len(outcomes) < count:
        left = deadline - time.monotonic()
        assert left > 0, f"only {outcomes} within {within_s} s"
        select.select([store.fileno()], [], [], left)
        outcomes += store.completed()
    return outcomes


def put(store: Store, *revisions: int) -> Outcome:
    assert store.submit(batch(*revisions), token=1)
    return wait(store, 1)[0]


def revisions(store: Store) -> list[int]:
    return [fact.revision for fact in store.load().facts]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path)
    yield made
    assert made.close(10)


def reopened(store: SqliteStore, directory: Path) -> SqliteStore:
    assert store.close(10)
    return SqliteStore(directory)


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
    assert again.close(10)


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
    assert store.close(10)
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
    assert store.close(10)
    with sqlite3.connect(tmp_path / "facts.db") as connection:
        (rows,) = connection.execute("SELECT count(*) FROM answers").fetchone()
    assert rows < 1100, "older ones are deleted now and then"


def test_too_many_waiting_batches_are_refused_at_once(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, room=3)
    assert [store.submit(batch(n), token=n) for n in range(1, 6)] == [True, True, True, False, False]
    assert [outcome.token for outcome in wait(store, 3)] == [1, 2, 3]
    assert store.submit(batch(4), token=4)
    assert wait(store, 1)[0].error is None
    assert store.close(10)


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
    assert store.close(10)
    assert store.close(10)
    assert [outcome.token for outcome in store.completed()] == list(range(1, 101))
    assert not store.submit(batch(101), token=101)
    again = SqliteStore(tmp_path)
    assert revisions(again) == list(range(1, 101))
    assert again.close(10)


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
    assert store.close(10)


@pytest.mark.parametrize("name", ["facts.db", "facts.db-wal"])
def test_files_removed_under_a_running_broker_are_noticed(
    store: SqliteStore, tmp_path: Path, name: str
) -> None:
    """SQLite would go on writing into the deleted file and report success."""
    assert put(store, 1).error is None
    (tmp_path / name).rename(tmp_path / "away")
    error = put(store, 2).error
    assert error is not None
    assert error.startswith("cannot record: ")
    assert store.fault == error
    (tmp_path / "away").rename(tmp_path / name)
    deadline = time.monotonic() + 10
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
    assert store.close(10)
    assert store.completed()[0].error is None


def test_an_export_is_one_json_line_for_each_fact(store: SqliteStore) -> None:
    assert put(store, 1, 2).error is None
    lines = list(json_lines(store.load().facts))
    assert [msgspec.json.decode(line, type=Fact) for line in lines] == [fact(1), fact(2)]
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot open .*nowhere/facts\.lock: No such file"):
        SqliteStore(tmp_path / "nowhere")


def test_files_are_for_the_owner_alone(store: SqliteStore, tmp_path: Path) -> None:
    put(store, 1)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert set(modes) == {"facts.db", "facts.db-wal", "facts.head", "facts.lock"}
    assert set(modes.values()) == {0o600}


# --------------------------------------------------------------------------------------------- damage


ALONE, PAIRS = [[1], [2], [3], [4]], [[1, 2], [3, 4], [5, 6]]


def filled(directory: Path, count: int = 200) -> None:
    store = SqliteStore(directory)
    put(store, *range(1, count + 1))
    assert store.close(10)


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


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
    assert store.close(10)
    (tmp_path / "facts.db").write_bytes(older)
    with pytest.raises(Damaged, match=r"ends at revision 3, .* shows that 4 was recorded"):
        SqliteStore(tmp_path)
    (tmp_path / "facts.head").unlink()  # the way that the message offers
    accepted = SqliteStore(tmp_path)
    assert revisions(accepted) == [1, 2, 3]
    assert accepted.close(10)


def test_an_admin_can_accept_the_loss_and_the_bad_file_is_kept(tmp_path: Path) -> None:
    filled(tmp_path)
    truncate(tmp_path / "facts.db", 4096)
    bad = (tmp_path / "facts.db").read_bytes()
    store = SqliteStore(tmp_path, start_empty=True)
    assert store.load().revision == 0
    assert put(store, 1).error is None
    (aside,) = [path for path in tmp_path.glob("facts.db.damaged-*") if path.suffix == ".0"]
    assert aside.read_bytes() == bad
    assert store.close(10)


def test_starting_empty_does_nothing_to_a_whole_store(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    store = SqliteStore(tmp_path, start_empty=True)
    assert store.load().revision == 5
    assert store.close(10)


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
    assert store.close(10)
    with sqlite3.connect(tmp_path / "facts.db") as connection:
        connection.execute(damage)
    connection.close()
    store = SqliteStore(tmp_path)
    with pytest.raises(Damaged, match=words):
        store.load()
    assert store.close(10)


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
    assert store.close(10)
    with pytest.raises(TooNew, match=f"it has schema 3, this version knows up to {schema}"):
        SqliteStore(tmp_path, steps=files.STEPS[:schema])
    store = SqliteStore(tmp_path)
    assert revisions(store) == [1, 2, 3, 4, 5, 6]
    assert list(store.load().answers) == [*before, "op-4", "op-5", "op-6"], "oldest first"
    assert store.close(10)


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
    assert store.close(10)


def test_the_log_has_its_place_from_the_start_and_does_not_grow_with_each_commit(tmp_path: Path) -> None:
    """The sync of a file that grows takes three writes instead of one, and waits for others' files."""
    store, log = SqliteStore(tmp_path), tmp_path / "facts.db-wal"
    before = log.stat()
    for revision in range(1, 21):
        put(store, revision)
    after = log.stat()
    assert (after.st_size, after.st_blocks) == (before.st_size, before.st_blocks)
    assert before.st_size == files.LOG_BYTES
    assert store.close(10)


def test_the_witness_follows_soon_and_at_the_end(store: SqliteStore, tmp_path: Path) -> None:
    put(store, 1, 2, 3)
    deadline = time.monotonic() + 10
    while files.read_head(files.Place(tmp_path)) != 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    put(store, 4)
    assert store.close(10)
    assert files.read_head(files.Place(tmp_path)) == 4


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
    assert again.close(10)


def test_a_kind_of_change_from_the_future_is_refused_in_words(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    body = msgspec.msgpack.encode({"revision": 1, "change": {"change": "host.teleported"}})
    with sqlite3.connect(tmp_path / "facts.db") as connection:
        connection.execute("UPDATE facts SET body = ?", (body,))
    connection.close()
    store = SqliteStore(tmp_path)
    with pytest.raises(TooNew, match=r"fact 1 is of a kind .*host\.teleported.*newer version"):
        store.load()
    assert store.close(10)


# --------------------------------------------------------------------------------- schema and copies


def test_an_older_schema_is_brought_up_by_its_steps_and_a_newer_one_refused(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    newer = [*files.STEPS, "ALTER TABLE facts ADD COLUMN note TEXT", "CREATE TABLE third (x)"]
    store = SqliteStore(tmp_path, steps=newer)
    assert revisions(store) == [1]
    assert store.close(10)
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
    assert store.close(10)


def test_a_backup_taken_while_recording_goes_on_can_be_restored(store: SqliteStore, tmp_path: Path) -> None:
    put(store, *range(1, 51))
    for revision in range(51, 101):
        store.submit(batch(revision), token=revision)
    last = store.backup(str(tmp_path / "copy.db"))
    assert 50 <= last <= 100
    wait(store, 50)
    assert sorted(path.name for path in tmp_path.glob("copy*")) == ["copy.db"]
    with pytest.raises(InUse):
        files.restore(tmp_path, tmp_path / "copy.db")
    assert store.close(10)
    assert files.restore(tmp_path, tmp_path / "copy.db") == last
    again = SqliteStore(tmp_path)
    assert revisions(again) == list(range(1, last + 1))
    assert put(again, last + 1).error is None
    assert again.close(10)


def test_restore_helps_after_damage_and_refuses_a_damaged_copy(store: SqliteStore, tmp_path: Path) -> None:
    put(store, 1, 2, 3)
    store.backup(str(tmp_path / "copy.db"))
    put(store, 4)
    assert store.close(10)
    truncate(tmp_path / "facts.db", 0)
    (tmp_path / "bad.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(Damaged):
        files.restore(tmp_path, tmp_path / "bad.db")
    assert (tmp_path / "facts.db").exists()
    assert files.restore(tmp_path, tmp_path / "copy.db") == 3
    again = SqliteStore(tmp_path)
    assert revisions(again) == [1, 2, 3]
    assert again.close(10)


@pytest.mark.parametrize("then", ["restore", "start empty"])
def test_an_end_between_the_old_files_and_the_new_ones_is_no_first_start(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    put(store, 1, 2, 3)
    store.backup(str(tmp_path / "copy.db"))
    assert store.close(10)
    truncate(tmp_path / "facts.db", 0)

    def ends_here(place: files.Place) -> Path:
        set_aside(place)
        raise KeyboardInterrupt

    def mend() -> None:
        if then == "restore":
            files.restore(tmp_path, tmp_path / "copy.db")
        else:
            assert SqliteStore(tmp_path, start_empty=True).close(10)

    set_aside = files.set_aside
    with monkeypatch.context() as patch:
        patch.setattr(files, "set_aside", ends_here)
        with pytest.raises(KeyboardInterrupt):
            mend()
    with pytest.raises(Damaged, match=r"is missing, and facts were recorded \(at least 3\)"):
        SqliteStore(tmp_path)
    mend()
    again = SqliteStore(tmp_path)
    assert revisions(again) == ([1, 2, 3] if then == "restore" else [])
    assert again.close(10)


def test_a_backup_that_fails_leaves_no_file(store: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot make .*nowhere"):
        store.backup(str(tmp_path / "nowhere" / "copy.db"))
    assert isinstance(store.load().facts, list)


def test_a_released_host_reads_back_as_such(store: SqliteStore) -> None:
    """Bodies keep their tag: a fact is of the kind that it was."""
    released = Fact(revision=1, change=HostReleased(host="n1", reason="broken"), at="2024-05-01T00:00:00Z")
    assert store.submit(Batch([released]), token=1)
    assert wait(store, 1)[0].error is None
    assert store.load().facts == [released]
