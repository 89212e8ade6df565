"""Copies of the store: backup, restore, export."""

from pathlib import Path

import msgspec
import pytest

from tests.broker.stored import batch, fact, make_store, put, revisions, truncate, wait
from xce.broker.store import Damaged, InUse, StoreError, files, json_lines
from xce.broker.store.sqlite import SqliteStore
from xce.model.fact import Fact

store = pytest.fixture(make_store, name="store")


def test_an_export_is_one_json_line_for_each_fact(store: SqliteStore) -> None:
    assert put(store, 1, 2).error is None
    lines = list(json_lines(store.load().facts))
    assert [msgspec.json.decode(line, type=Fact) for line in lines] == [fact(1), fact(2)]
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)


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
    assert store.close(30)
    assert files.restore(tmp_path, tmp_path / "copy.db") == last
    again = SqliteStore(tmp_path)
    assert revisions(again) == list(range(1, last + 1))
    assert put(again, last + 1).error is None
    assert again.close(30)


def test_restore_helps_after_damage_and_refuses_a_damaged_copy(store: SqliteStore, tmp_path: Path) -> None:
    put(store, 1, 2, 3)
    store.backup(str(tmp_path / "copy.db"))
    put(store, 4)
    assert store.close(30)
    truncate(tmp_path / "facts.db", 0)
    (tmp_path / "bad.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(Damaged):
        files.restore(tmp_path, tmp_path / "bad.db")
    assert (tmp_path / "facts.db").exists()
    assert files.restore(tmp_path, tmp_path / "copy.db") == 3
    again = SqliteStore(tmp_path)
    assert revisions(again) == [1, 2, 3]
    assert again.close(30)


@pytest.mark.parametrize("then", ["restore", "start empty"])
def test_an_end_between_the_old_files_and_the_new_ones_is_no_first_start(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    put(store, 1, 2, 3)
    store.backup(str(tmp_path / "copy.db"))
    assert store.close(30)
    truncate(tmp_path / "facts.db", 0)

    def ends_here(place: files.Place) -> Path:
        set_aside(place)
        raise KeyboardInterrupt

    def mend() -> None:
        if then == "restore":
            files.restore(tmp_path, tmp_path / "copy.db")
        else:
            assert SqliteStore(tmp_path, start_empty=True).close(30)

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
    assert again.close(30)


def test_a_backup_that_fails_leaves_no_file(store: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot make .*nowhere"):
        store.backup(str(tmp_path / "nowhere" / "copy.db"))
    assert isinstance(store.load().facts, list)
