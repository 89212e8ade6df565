"""The store of one broker: SQLite in WAL mode, synchronous FULL, one thread that commits.

`SqliteStore` is the loop's side: a queue in, outcomes out, nothing that blocks. `_Recorder` is the thread's
side and owns the connection that writes. Which files there are, and whether they are whole, is `files.py`'s.

A commit that fails is rolled back whole and the same connection goes on. After an I/O error in the sync
itself a transaction that was reported as not recorded can be found recorded if the machine dies right then;
the caller's op_id makes asking again safe in both cases.
"""

import contextlib
import gc
import os
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from xce.broker.store import ANSWERS, ROOM, Answer, Batch, Loaded, Outcome, StoreError, TooNew, files
from xce.model.fact import Fact

TRIAL_S = 1.0
IDLE_S = 60.0
LARGEST_INSERT = 256
TRIM_EVERY = 1000


class _Item(NamedTuple):
    """A batch on its way, encoded."""

    token: int
    generation: int
    facts: list[tuple[int, bytes]]
    answers: dict[str, Answer]
    since: float


class SqliteStore:
    """`xce.broker.store.Store` in one directory. Raises `InUse`, `Damaged`, `TooNew`, `StoreError`.

    `start_empty` accepts the loss of a damaged database (kept aside); it does nothing to a whole one.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        start_empty: bool = False,
        room: int = ROOM,
        keep_answers: int = ANSWERS,
        steps: Sequence[str] = files.STEPS,
    ) -> None:
        self._place = files.Place(Path(directory))
        self._room, self._keep_answers = room, keep_answers
        with contextlib.ExitStack() as undo:
            lock = files.lock(self._place)
            undo.callback(os.close, lock)
            files.ready(self._place, start_empty=start_empty, steps=steps)
            self._recorder = _Recorder(self._place, keep_answers)
            undo.callback(self._recorder.close)
            self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            undo.callback(os.close, self._event)
            self._resources = undo.pop_all()
        self._encoder = msgspec.msgpack.Encoder()
        self._inbox: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._decided: deque[Outcome] = deque()
        self._waiting: deque[int] = deque()
        self._generation = 1  # of the loop's side: one more for each failure that it has seen
        self._failed = 0  # of the thread's side: the last generation that failed
        self._fault = self._attempt(self._recorder.trial)  # a full disk: readable, and the broker can say why
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------ the loop's side

    @property
    def fault(self) -> str:
        """See `Store.fault`."""
        return self._fault

    def load(self) -> Loaded:
        """See `Store.load`."""
        collecting = gc.isenabled()
        gc.disable()  # hundreds of thousands of new objects and no garbage: collecting doubles the time
        try:
            with files.reading(self._place.base) as connection:
                facts = connection.execute("SELECT revision, body FROM facts ORDER BY revision").fetchall()
                answers = connection.execute(
                    "SELECT op_id, digest, answer FROM answers ORDER BY number DESC LIMIT ?",
                    (self._keep_answers,),
                ).fetchall()
            remembered = {op_id: (digest, answer) for op_id, digest, answer in reversed(answers)}
            return Loaded(_decoded(self._place.base, facts), remembered)
        finally:
            if collecting:
                gc.enable()

    def submit(self, batch: Batch, token: int) -> bool:
        """See `Store.submit`."""
        if len(self._waiting) >= self._room or self._closed:
            return False
        encode = self._encoder.encode
        facts = [(fact.revision, encode(fact)) for fact in batch.facts]
        self._waiting.append(token)
        self._inbox.put(_Item(token, self._generation, facts, batch.answers, time.monotonic()))
        return True

    def fileno(self) -> int:
        """See `Store.fileno`."""
        return self._event

    def completed(self) -> list[Outcome]:
        """See `Store.completed`."""
        if not self._closed:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._event)
        outcomes: list[Outcome] = []
        while self._decided:
            outcome = self._decided.popleft()
            outcomes.append(outcome)
            self._waiting.popleft()
            if outcome.error is not None:
                # The thread records nothing more of this generation: what was submitted on top fails too.
                self._generation += 1
                outcomes.extend(Outcome(token, outcome.error, outcome.ms) for token in self._waiting)
                self._waiting.clear()
        return outcomes

    def backup(self, path: str) -> int:
        """See `Store.backup`."""
        target = Path(path)
        new = files.copy_database(self._place.base, target.with_name(target.name + ".new"))
        last = files.check(new, known=len(files.STEPS))
        new.replace(target)
        files.sync_directory(target.absolute().parent)
        return last

    def close(self, deadline: float) -> bool:
        """See `Store.close`."""
        if self._closed:
            return not self._thread.is_alive()
        self._inbox.put(None)
        self._thread.join(deadline)
        self._closed = True
        if self._thread.is_alive():
            return False  # it sits in the kernel; its descriptors must stay until the process ends
        self._resources.close()
        return True

    # ---------------------------------------------------------------------------------- the thread's side

    def _work(self) -> None:
        stopping = False
        while not stopping:
            items = self._take()
            stopping = None in items
            if batches := [item for item in items if item is not None and item.generation > self._failed]:
                self._commit(batches)
            elif self._fault and not stopping and not self._attempt(self._recorder.trial):
                os.eventfd_write(self._event, 1)

    def _take(self) -> list[_Item | None]:
        """All that waits; empty when nothing came for a while."""
        items: list[_Item | None] = []
        with contextlib.suppress(queue.Empty):
            items.append(self._inbox.get(timeout=TRIAL_S if self._fault else IDLE_S))
            while True:
                items.append(self._inbox.get_nowait())
        return items

    def _commit(self, items: list[_Item]) -> None:
        """Record what fits in one transaction; the first that does not fit, or an error, fails the rest."""
        fitting, misfit = self._split(items)
        error = self._attempt(lambda: self._recorder.record(fitting)) if fitting else ""
        now = time.monotonic()
        if error:
            self._failed = items[0].generation
            self._decided.append(Outcome(items[0].token, error, (now - items[0].since) * 1000))
        else:
            self._decided.extend(Outcome(item.token, None, (now - item.since) * 1000) for item in fitting)
            if misfit:
                first = items[len(fitting)]
                self._failed = first.generation
                self._decided.append(Outcome(first.token, misfit, (now - first.since) * 1000))
        os.eventfd_write(self._event, 1)

    def _split(self, items: list[_Item]) -> tuple[list[_Item], str]:
        """The items before the first one whose revisions do not follow, and what is wrong with that one."""
        last = self._recorder.revision
        for index, item in enumerate(items):
            for revision, _ in item.facts:
                if revision != last + 1:
                    return items[:index], f"internal error: fact {revision} does not follow {last}"
                last = revision
        return items, ""

    def _attempt(self, write: Any) -> str:
        """'' if `write` succeeded, otherwise the words; sets `fault` to them."""
        try:
            write()
        except (sqlite3.Error, OSError) as error:
            self._fault = _words(error, self._place.directory)
        except Exception as error:  # noqa: BLE001 - a bug must not end the thread: callers would wait for ever
            self._fault = f"internal error: cannot record: {error!r}"
        else:
            self._fault = ""
        return self._fault


class _Recorder:
    """The connection that writes. `revision` is the last one recorded."""

    def __init__(self, place: files.Place, keep_answers: int) -> None:
        self._place, self._keep_answers = place, keep_answers
        try:
            self._connection = sqlite3.connect(
                place.base, isolation_level=None, timeout=files.BUSY_S, check_same_thread=False
            )
            execute = self._connection.execute
            execute("PRAGMA journal_mode = WAL")
            execute("PRAGMA synchronous = FULL")
            execute("PRAGMA journal_size_limit = 67108864")
            self.revision: int = execute("SELECT coalesce(max(revision), 0) FROM facts").fetchone()[0]
            self._number: int = execute("SELECT coalesce(max(number), 0) FROM answers").fetchone()[0]
            self._head = os.open(place.head, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(_words(error, place.directory)) from error
        self._identity = self._identities()
        self._show_head()

    def record(self, items: Iterable[_Item]) -> None:
        """Everything in one transaction, one sync; raises with nothing of it done."""
        if self._identities() != self._identity:
            raise OSError(0, "its files were removed or replaced while the broker ran; restart the broker")
        revision, number = self.revision, self._number
        facts: list[Any] = []
        answers: list[Any] = []
        for item in items:
            if item.facts:
                revision = item.facts[-1][0]
                for row in item.facts:
                    facts.extend(row)
            for op_id, (digest, answer) in item.answers.items():
                number += 1
                answers.extend((number, op_id, digest, answer, revision))
        with self._transaction():
            self._insert("facts", 2, facts)
            self._insert("answers", 5, answers)
            if number // TRIM_EVERY != self._number // TRIM_EVERY:
                self._connection.execute(
                    "DELETE FROM answers WHERE number <= ?", (number - self._keep_answers,)
                )
        self.revision, self._number = revision, number
        self._show_head()

    def trial(self) -> None:
        """Write as much as a group of facts would; raises if that does not work."""
        with self._transaction():
            self._connection.execute("UPDATE trial SET filler = randomblob(65536)")

    def close(self) -> None:
        """Let go of the database."""
        self._connection.close()
        os.close(self._head)

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            yield
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite ends some failed transactions by itself
                execute("ROLLBACK")
            raise

    def _insert(self, table: str, columns: int, flat: list[Any]) -> None:
        """Insert rows with few statements: each one gives up the interpreter's lock and waits to get it back.

        Powers of two, so that few different statements are compiled, and those once.
        """
        done = 0
        while rows := (len(flat) - done) // columns:
            size = min(1 << (rows.bit_length() - 1), LARGEST_INSERT)
            row = "(" + ",".join("?" * columns) + ")"
            statement = f"INSERT INTO {table} VALUES {','.join([row] * size)}"  # noqa: S608 - no data in it
            self._connection.execute(statement, flat[done : done + size * columns])
            done += size * columns

    def _identities(self) -> list[tuple[int, int]]:
        """Which files the names stand for. SQLite would go on writing into files that were deleted."""
        found = [os.stat(self._place.base), os.stat(self._place.wal)]
        return [(status.st_dev, status.st_ino) for status in found]

    def _show_head(self) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self._head, files.head_text(self.revision), 0)


def _decoded(base: Path, rows: list[tuple[int, bytes]]) -> list[Fact]:
    """The facts of all rows, checked: revisions 1, 2, 3, ... in the keys and in the bodies."""
    decode = msgspec.msgpack.Decoder(Fact).decode
    facts: list[Fact] = []
    revision = 0
    try:
        for revision, (key, body) in enumerate(rows, 1):
            fact = decode(body)
            if fact.revision != revision or key != revision:
                found = "is missing" if key > revision else f"is recorded as {fact.revision}"
                raise files.damaged(base, f"fact {revision} {found}")
            facts.append(fact)
    except msgspec.ValidationError as error:
        raise TooNew(
            f"cannot read {base}: fact {revision} is of a kind that this version does not know ({error}); "
            "start the newer version of the broker"
        ) from error
    except msgspec.DecodeError as error:
        raise files.damaged(base, f"fact {revision} cannot be read ({error})") from error
    return facts


def _words(error: sqlite3.Error | OSError, directory: Path) -> str:
    """What went wrong with recording, for people."""
    name = getattr(error, "sqlite_errorname", "")
    full = name == "SQLITE_FULL"
    if name.startswith("SQLITE_IOERR"):  # also of a full disk, where the shared memory file cannot grow
        with contextlib.suppress(OSError):
            status = os.statvfs(directory)
            full = status.f_bavail * status.f_frsize < 1 << 16
    if full:
        return (
            f"cannot record: no space left on the file system of {directory}; "
            "free some, and the broker goes on by itself"
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"cannot record: another program has {directory}/facts.db locked; end it"
    if isinstance(error, OSError):
        return f"cannot record in {directory}: {error.strerror or error}"
    return f"cannot record in {directory}: {error} ({name})"
