"""Facts, batches and stores in a directory, for the tests of the store."""

import select
import time
from collections.abc import Iterator
from pathlib import Path

from xce.broker.store import Batch, Outcome, Store
from xce.broker.store.sqlite import SqliteStore
from xce.model.fact import Fact, HostAdmitted


def fact(revision: int, host: str = "node1") -> Fact:
    return Fact(revision=revision, change=HostAdmitted(host=host), by="alice", op_id=f"op-{revision}")


def batch(*revisions: int) -> Batch:
    facts = [fact(revision) for revision in revisions]
    return Batch(facts, {f.op_id: (f"digest-{f.revision}", b"done") for f in facts})


def wait(store: Store, count: int, within_s: float = 30.0) -> list[Outcome]:
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


def make_store(tmp_path: Path) -> Iterator[SqliteStore]:
    """Body of the fixture: one that is closed afterwards."""
    made = SqliteStore(tmp_path)
    yield made
    assert made.close(30)


def reopened(store: SqliteStore, directory: Path) -> SqliteStore:
    assert store.close(30)
    return SqliteStore(directory)


def filled(directory: Path, count: int = 200) -> None:
    store = SqliteStore(directory)
    put(store, *range(1, count + 1))
    assert store.close(30)


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
