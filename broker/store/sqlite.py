"""The store of one broker: SQLite in WAL mode, synchronous FULL, one thread that commits.

`SqliteStore` is the loop's side: a queue in, outcomes out, nothing that blocks. `_Recorder` is the thread's
side and owns the connection that writes. Which files there are, and whether they are whole, is `files.py`'s.

All facts of a commit are one row of `facts`, with the answers that came with them: one row is one statement,
and statements cost more than all else. Answers without any fact are a row of `answers`. Rows of older schemas
have one fact, or one answer under its op_id.

A commit that fails is rolled back whole and the same connection goes on. After an I/O error in the sync
itself a transaction that was reported as not recorded can be found recorded if the machine dies right then;
the caller's op_id makes asking again safe in both cases.
"""

import contextlib
import gc
import heapq
import os
import select
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from xce.broker.store import ANSWERS, ROOM, Batch, Loaded, Outcome, StoreError, TooNew, files
from xce.broker.store.names import Names
from xce.model.fact import Checkpoint, Fact

TRIAL_S = 1.0
IDLE_S = 60.0
READ_S = 10.0
WITNESS_S = 0.1
"""How far `facts.head` may be behind: nobody waits for it, and the next commit should not."""
TRIM_EVERY = 1000
_FACTS, _ANSWERS = "INSERT INTO facts VALUES (?, ?, ?)", "INSERT INTO answers VALUES (?, ?, ?, ?, ?)"
Remembered: TypeAlias = tuple[str, str, bytes]
"""The key of an answer, the digest of its request, and the answer."""
_answers = msgspec.msgpack.Decoder(list[Remembered]).decode
_LISTS = frozenset(bytes([head]) for head in (*range(0x90, 0xA0), 0xDC, 0xDD))
"""Heads of MessagePack arrays."""


class _Item(NamedTuple):
    """A batch on its way."""

    token: int
    generation: int
    batch: Batch
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
            connection = files.open_database(self._place, start_empty=start_empty, steps=steps)
            undo.callback(connection.close)
            self._recorder = _Recorder(self._place, connection, keep_answers)
            self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            undo.callback(os.close, self._event)
            self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            undo.callback(os.close, self._bell)
            self._resources = undo.pop_all()
        self._inbox: deque[_Item | None] = deque()
        self._decided: deque[Outcome] = deque()
        self._waiting: deque[int] = deque()
        self._generation = 1  # of the loop's side: one more for each failure that it has seen
        self._failed = 0  # of the thread's side: the last generation that failed
        self._fault = self._attempt(self._recorder.trial)  # a full disk: readable, and the broker can say why
        self._closed = False
        self._then: Callable[[], bool] = lambda: False
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
            facts, answers = self._recorder.read()
            remembered = {op_id: (digest, answer) for op_id, digest, answer in answers}
            return Loaded(_decoded(self._place.base, facts), remembered)
        finally:
            if collecting:
                gc.enable()

    def submit(self, batch: Batch, token: int) -> bool:
        """See `Store.submit`."""
        if len(self._waiting) >= self._room or self._closed:
            return False
        self._waiting.append(token)
        self._hand_over(_Item(token, self._generation, batch, time.monotonic()))
        return True

    def _hand_over(self, item: _Item | None) -> None:
        """Give the thread something; None: the end.

        A queue would wake it under Python's lock, for which it then waits: 30 µs instead of 7.
        """
        self._inbox.append(item)
        if not self._in_thread():
            os.eventfd_write(self._bell, 1)

    def _in_thread(self) -> bool:
        """Whether it is the thread that asks, which has the loop at present: it rings for nobody."""
        return threading.get_ident() == self._thread.ident

    def call_after(self, then: Callable[[], bool]) -> None:
        """See `Store.call_after`."""
        self._then = then

    def fileno(self) -> int:
        """See `Store.fileno`."""
        return self._event

    def completed(self) -> list[Outcome]:
        """See `Store.completed`."""
        if not (self._closed or self._in_thread()):
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

    def backup(self, path: str = "") -> int:
        """See `Store.backup`."""
        target = Path(path) if path else self._place.copy
        new = self._recorder.copy(target.with_name(target.name + ".new"))
        last = files.last_revision(new)
        new.replace(target)
        files.sync_directory(target.absolute().parent)
        return last

    def close(self, deadline: float) -> bool:
        """See `Store.close`."""
        if not self._closed:
            self._closed = True
            self._hand_over(None)
        self._thread.join(deadline)
        if self._thread.is_alive():
            return False  # it sits in the kernel; its descriptors must stay until the process ends
        self._resources.close()
        return True

    # ---------------------------------------------------------------------------------- the thread's side

    def _work(self) -> None:
        stopping = False
        with select.epoll() as bell:
            # Each ring is told once and its count is never read: one thing less between a ring and the disk.
            bell.register(self._bell, select.EPOLLIN | select.EPOLLET)
            while not stopping:
                items = self._take(bell)
                stopping = None in items
                if batches := [item for item in items if item is not None and item.generation > self._failed]:
                    self._commit(batches)
                elif self._fault and not stopping and not self._attempt(self._recorder.trial):
                    os.eventfd_write(self._event, 1)
                self._recorder.witness(at_once=stopping)

    def _take(self, bell: select.epoll) -> list[_Item | None]:
        """All that waits; empty when nothing came for a while."""
        if not self._inbox:
            bell.poll(TRIAL_S if self._fault else WITNESS_S if self._recorder.unwitnessed() else IDLE_S)
        return [self._inbox.popleft() for _ in range(len(self._inbox))]

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
        if not self._then():
            os.eventfd_write(self._event, 1)

    def _split(self, items: list[_Item]) -> tuple[list[_Item], str]:
        """The items before the first one whose revisions do not follow, and what is wrong with that one."""
        last = self._recorder.revision
        for index, item in enumerate(items):
            for fact in item.batch.facts:
                if fact.revision != last + 1:
                    return items[:index], f"internal error: fact {fact.revision} does not follow {last}"
                last = fact.revision
        return items, ""

    def _attempt(self, write: Callable[[], None]) -> str:
        """'' if `write` succeeded, otherwise the words; sets `fault` to them."""
        try:
            write()
        except (sqlite3.Error, OSError) as error:
            self._fault = f"cannot record: {files.words(error, self._place.directory)}"
        except Exception as error:  # noqa: BLE001 - a bug must not end the thread: callers would wait for ever
            self._fault = f"internal error: cannot record: {error!r}"
        else:
            self._fault = ""
        return self._fault


class _Recorder:
    """The one connection, and what is recorded through it: up to `revision`.

    `_alone` is held for the length of a transaction: the loop reads through the same connection.
    """

    def __init__(self, place: files.Place, connection: sqlite3.Connection, keep_answers: int) -> None:
        self._place, self._connection, self._keep_answers = place, connection, keep_answers
        self._alone = threading.Lock()
        execute = connection.execute
        self.revision: int = execute("SELECT coalesce(max(revision), 0) FROM facts").fetchone()[0]
        self._number: int = execute("SELECT coalesce(max(number), 0) FROM answers").fetchone()[0]
        self._names = Names([place.base, place.wal])
        self._encode = msgspec.msgpack.Encoder().encode
        self._witnessed, self._witnessed_at = 0, 0.0
        self.witness(at_once=True)

    def record(self, items: Iterable[_Item]) -> None:
        """Everything in one transaction, one sync; raises with nothing of it done."""
        facts = [fact for item in items for fact in item.batch.facts]
        answers = [(key, *answer) for item in items for key, answer in item.batch.answers.items()]
        packed = self._encode(answers) if answers else None
        if not facts:
            if packed is not None:
                self._record_answers(packed, len(answers))
            return
        if mark := max((one.revision for one in facts if one.change.__class__ is Checkpoint), default=0):
            self._record_checkpoint(facts, mark, packed)
        else:
            body = self._encode(facts if len(facts) > 1 else facts[0])
            with self._alone:
                self._look()
                self._connection.execute(_FACTS, (facts[-1].revision, body, packed))
        self.revision = facts[-1].revision

    def _record_answers(self, packed: bytes, count: int) -> None:
        number = self._number + count
        with self._transaction() as execute:
            execute(_ANSWERS, (number, "", "", packed, self.revision))
            if number // TRIM_EVERY != self._number // TRIM_EVERY:
                execute("DELETE FROM answers WHERE number <= ?", (number - self._keep_answers,))
        self._number = number

    def _record_checkpoint(self, facts: list[Fact], mark: int, packed: bytes | None) -> None:
        """Facts before it go, answers stay. Each fact has its own row, so that those before it can go."""
        with self._transaction() as execute:
            remembered = self._remembered()
            execute("DELETE FROM facts")
            execute("DELETE FROM answers")
            if remembered:
                self._number += len(remembered)
                execute(_ANSWERS, (self._number, "", "", self._encode(remembered), self.revision))
            for fact in facts:
                if fact.revision >= mark:
                    answers = packed if fact is facts[-1] else None
                    execute(_FACTS, (fact.revision, self._encode(fact), answers))

    def unwitnessed(self) -> bool:
        """Whether `facts.head` is behind."""
        return self._witnessed != self.revision

    def witness(self, *, at_once: bool = False) -> None:
        """Note how far the record goes, now and then. Nobody waits for it."""
        now = time.monotonic()
        if at_once or (self._witnessed != self.revision and now - self._witnessed_at >= WITNESS_S):
            self._witnessed, self._witnessed_at = self.revision, now
            files.write_head(self._place.head, self.revision)

    def trial(self) -> None:
        """Write as much as a group of facts would; raises if that does not work."""
        with self._alone:
            self._look()
            self._connection.execute("UPDATE trial SET filler = randomblob(65536)")

    def read(self) -> tuple[list[tuple[int, bytes]], list[Remembered]]:
        """All rows of facts by revision, and the newest answers, oldest first."""
        if not self._alone.acquire(timeout=READ_S):
            raise StoreError(f"cannot read {self._place.base}: the disk did not answer within {READ_S:g} s")
        try:
            with files.in_words(self._place.base):
                facts = "SELECT revision, body FROM facts ORDER BY revision"
                return self._connection.execute(facts).fetchall(), self._remembered()
        finally:
            self._alone.release()

    def _remembered(self) -> list[Remembered]:
        """The newest answers, oldest first. Those without a fact came after the fact of their revision."""
        newest_first = (
            "SELECT revision, op_id, digest, answer FROM answers ORDER BY number DESC LIMIT ?",
            "SELECT revision, '', '', answers FROM facts WHERE answers IS NOT NULL"
            " ORDER BY revision DESC LIMIT ?",
        )
        found = [self._connection.execute(one, (self._keep_answers,)).fetchall() for one in newest_first]
        rows = heapq.merge(*found, key=lambda row: -row[0])
        newest = list(islice(chain.from_iterable(map(_newest_first, rows)), self._keep_answers))
        newest.reverse()
        return newest

    def copy(self, target: Path) -> Path:
        """A copy of all that is committed; SQLite waits with it while a transaction is open."""
        return files.copy_database(self._connection, target)

    def _look(self) -> None:
        """Raise if its files are not those that were opened."""
        if not self._names.stand():
            raise OSError(0, f"{self._place.base} was removed or replaced while the broker ran; restart it")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Callable[..., object]]:
        """More than one statement; a single one is a transaction by itself."""
        execute = self._connection.execute
        with self._alone:
            self._look()
            execute("BEGIN IMMEDIATE")
            try:
                yield execute
                execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite ends some failed transactions by itself
                    execute("ROLLBACK")
                raise


def _newest_first(row: tuple[int, str, str, bytes]) -> Iterable[Remembered]:
    """The answers in a row."""
    _, op_id, digest, answer = row
    return [(op_id, digest, answer)] if op_id else reversed(_answers(answer))


def facts_of(copy: Path) -> list[Fact]:
    """The facts in a backup, which is checked. Raises `StoreError`."""
    with files.reading(copy) as connection:
        rows = connection.execute("SELECT revision, body FROM facts ORDER BY revision").fetchall()
    return _decoded(copy, rows)


def _decoded(base: Path, rows: list[tuple[int, bytes]]) -> list[Fact]:
    """The facts of all rows, checked: revisions without a gap in keys and bodies, from 1 or a checkpoint."""
    one, several = msgspec.msgpack.Decoder(Fact).decode, msgspec.msgpack.Decoder(list[Fact]).decode
    facts: list[Fact] = []
    following, key = 1, 0
    try:
        for key, body in rows:
            group = several(body) if body[:1] in _LISTS else [one(body)]
            first = key - len(group) + 1
            if not facts and isinstance(group[0].change, Checkpoint):
                following = first
            if first != following:
                found = "is missing" if first > following else "is recorded twice"
                raise files.damaged(base, f"fact {min(first, following)} {found}")
            for revision, fact in enumerate(group, first):
                if fact.revision != revision:
                    raise files.damaged(base, f"fact {revision} is recorded as {fact.revision}")
            facts += group
            following = key + 1
    except msgspec.ValidationError as error:
        raise TooNew(
            f"cannot read {base}: fact {key} is of a kind that this version does not know ({error}); "
            "start the newer version of the broker"
        ) from error
    except msgspec.DecodeError as error:
        raise files.damaged(base, f"fact {key} cannot be read ({error})") from error
    return facts
