"""The files of the SQLite store: which there are, who has them open, and whether they are whole.

    facts.db, facts.db-wal   the database
    facts.head               the last revision recorded, as text, not synced: evidence
    facts.lock               locked by the broker that runs, with its pid
    facts.copy               the last backup that was asked for

`facts.db` is made under another name and renamed when complete, so that one that is empty or has no tables
was damaged later. `facts.head` is written soon after a commit: a database that ends before it has lost facts.
Nothing here repairs or deletes: what is damaged is refused, or kept aside when an admin accepts that.

The database is opened with locking_mode EXCLUSIVE: then SQLite keeps the index of its log in memory.
Otherwise that is a mapped file, and on a full disk touching a page of it can end the process with SIGBUS
(seen on ext4 with blocks of 1 KiB). The price: other programs cannot read facts.db while the broker runs.
"""

import contextlib
import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from xce.broker.store import Damaged, InUse, StoreError, TooNew

STEPS: Sequence[str] = (
    """
    CREATE TABLE facts (
        revision INTEGER PRIMARY KEY, -- of the last fact in the body
        body BLOB NOT NULL
    );
    CREATE TABLE answers (
        number INTEGER PRIMARY KEY,  -- in order of arrival; appended, never looked up by op_id
        op_id TEXT NOT NULL,
        digest TEXT NOT NULL,
        answer BLOB NOT NULL,
        revision INTEGER NOT NULL    -- the last one when it was given
    );
    CREATE TABLE trial (filler BLOB NOT NULL);  -- written to see whether writing works again
    INSERT INTO trial VALUES (x'00');
    """,
    "SELECT 1",  # the tables stay: from here on a row may have several facts or answers, see sqlite.py
    "ALTER TABLE facts ADD COLUMN answers BLOB",  # those that came with the facts; NULL: none, or older
)
"""Step n takes the schema from version n to n + 1. Add steps; never change one that was released."""

LOG_BYTES = 32 + 1000 * (24 + 4096)
"""So long the log gets before SQLite begins it anew (its format, and wal_autocheckpoint's default)."""
BUSY_S = 2.0
"""How long another program's lock on the database (an admin's sqlite3) is waited for when opening it."""


class Place:
    """The names of the files in one state directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.base = directory / "facts.db"
        self.wal = directory / "facts.db-wal"
        self.head = directory / "facts.head"
        self.lock = directory / "facts.lock"
        self.copy = directory / "facts.copy"

    def pieces(self) -> Iterator[tuple[Path, str]]:
        """The database's files that exist, with their suffixes."""
        for suffix in ("", "-wal", "-journal"):
            path = self.directory / f"facts.db{suffix}"
            if path.exists():
                yield path, suffix


def _way_out(place: Place) -> str:
    """The directory is not made here: on a mount that is missing, an empty store would forget all drains."""
    try:
        if place.directory.is_dir():
            return ""
    except OSError:  # it cannot be looked at, which is said before this
        return "; the kernel's log says why"
    return f"; is a mount missing? for a first start: install -d -m 700 {place.directory}"


def lock(place: Place) -> int:
    """Take the directory for this process; the descriptor holds the lock. Raises `InUse`, `StoreError`."""
    try:
        descriptor = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"cannot open {place.lock}: {error.strerror}{_way_out(place)}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).strip()
        os.close(descriptor)
        pid = int(text) if text.isdigit() else 0
        raise InUse(
            f"cannot open the store in {place.directory}: the broker with pid {pid or 'unknown'} has it open",
            pid,
        ) from None
    with contextlib.suppress(OSError):  # a full disk: the lock counts, the pid is only for the message
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    return descriptor


def open_database(place: Place, *, start_empty: bool, steps: Sequence[str]) -> sqlite3.Connection:
    """The one connection to a whole database of the newest schema, made if there never was one.

    The caller holds the lock. Raises `Damaged`, `TooNew`, `StoreError`.
    """
    if not (place.base.exists() or _remains(place)):
        _create(place, steps)
    try:
        return _open_whole(place, steps)
    except Damaged:
        if not start_empty:
            raise
    set_aside(place)
    _create(place, steps)
    return _open_whole(place, steps)


def _open_whole(place: Place, steps: Sequence[str]) -> sqlite3.Connection:
    _refuse_hollow(place.base, at_least=read_head(place.head))
    with _log_kept(place), contextlib.ExitStack() as undo, in_words(place.base):
        connection = sqlite3.connect(
            place.base, isolation_level=None, timeout=BUSY_S, check_same_thread=False
        )
        undo.callback(connection.close)
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        check(connection, place.base, known=len(steps), at_least=read_head(place.head))
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        _take_steps(connection, steps, place.directory)
        _lay_out(place.wal)
        undo.pop_all()
    return connection


def _lay_out(log: Path) -> None:
    """Write zeros where the log will be, which SQLite takes for its end: where a file does not grow, its sync
    has only data to write, and waits for no other file. Without room for that the log grows as it is written.
    """
    with contextlib.suppress(OSError):
        status = os.statvfs(log.parent)
        missing = LOG_BYTES - log.stat().st_size
        if missing > 0 and status.f_bavail * status.f_frsize > 16 * LOG_BYTES:
            with log.open("ab") as file:
                file.write(bytes(missing))


@contextlib.contextmanager
def _log_kept(place: Place) -> Iterator[None]:
    """SQLite deletes the log of a database when it closes it, whatever was wrong: then it is put back."""
    spare = place.directory / "facts.db-wal.kept"
    with contextlib.suppress(OSError):  # no links here, or no room: then it is as SQLite does it
        if place.wal.exists():
            spare.unlink(missing_ok=True)
            os.link(place.wal, spare)
    try:
        yield
    except StoreError:
        with contextlib.suppress(OSError):
            if not place.wal.exists():
                spare.rename(place.wal)
        raise
    finally:
        with contextlib.suppress(OSError):
            spare.unlink(missing_ok=True)


def check(connection: sqlite3.Connection, base: Path, *, known: int, at_least: int = 0) -> int:
    """The last revision of a whole database; changes nothing. Raises `Damaged`, `TooNew`, sqlite3.Error.

    `known` is the newest schema that is understood, `at_least` the revision that is known to have been there.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > known:
        raise TooNew(
            f"cannot open {base}: it has schema {version}, this version knows up to {known}; "
            "start the newer version of the broker, or restore a backup that was made with this one"
        )
    if version < 1:
        raise damaged(base, "is no store of XCE's")
    problems = [text for (text,) in connection.execute("PRAGMA quick_check(3)")]
    if problems != ["ok"]:
        raise damaged(base, "; ".join(line for text in problems for line in text.splitlines()))
    last: int = connection.execute("SELECT coalesce(max(revision), 0) FROM facts").fetchone()[0]
    if last < at_least:
        head = base.with_suffix(".head")
        raise Damaged(
            f"{base} ends at revision {last}, and {head} shows that {at_least} was recorded: facts are lost",
            f"Bring back a copy with 'xce-broker restore FILE', or remove {head} to go on with what is left",
        )
    return last


def _refuse_hollow(base: Path, *, at_least: int = 0) -> None:
    """Before SQLite sees it: beside a database of 0 bytes it deletes the log, with the facts in it."""
    if not base.exists() or base.stat().st_size == 0:
        what = "is empty" if base.exists() else "is missing"
        raise damaged(base, f"{what}, and facts were recorded (at least {at_least})")


@contextlib.contextmanager
def in_words(base: Path) -> Iterator[None]:
    """SQLite's errors become `Damaged` or `StoreError`."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or "no such table" in str(error):
            raise damaged(base, str(error)) from error
        raise StoreError(f"cannot use {base}: {words(error, base.parent)}") from error


def words(error: sqlite3.Error | OSError, directory: Path) -> str:
    """What went wrong with the database in `directory`, for people."""
    name = getattr(error, "sqlite_errorname", "")
    full, read_only = name == "SQLITE_FULL" or getattr(error, "errno", 0) == errno.ENOSPC, False
    if name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY")):
        with contextlib.suppress(OSError):
            status = os.statvfs(directory)
            full = status.f_bavail * status.f_frsize < 1 << 16
            read_only = bool(status.f_flag & os.ST_RDONLY)
    if read_only:
        return f"the file system of {directory} is read-only: the kernel's log says why"
    if full:
        return (
            f"no space left on the file system of {directory}; free some (a running broker goes on by itself)"
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "another program has it open; end that one"
    if name.startswith("SQLITE_IOERR") or getattr(error, "errno", 0) == errno.EIO:
        what = f"{error} ({name})" if name else os.strerror(errno.EIO)
        return f"the disk of {directory} fails: {what}; look at the kernel's log"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"{error} ({name})"


def damaged(base: Path, what: str) -> Damaged:
    """The error for a damaged database, with the ways out."""
    return Damaged(
        f"{base} is damaged: {what}",
        "Bring back a copy with 'xce-broker restore FILE'; or, accepting that every drain, hold and key is "
        "forgotten, start once with --start-empty (the files are kept aside)",
    )


def set_aside(place: Place) -> Path:
    """Rename the database's files, so that nothing of them is lost; gives the new name.

    `facts.head` is copied: it shows whoever starts before there is a new database that one was here.
    """
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    number = 0
    while (aside := place.directory / f"facts.db.damaged-{stamp}.{number}").exists():
        number += 1
    for path, suffix in list(place.pieces()):
        path.rename(f"{aside}{suffix}")
    with contextlib.suppress(OSError):
        Path(f"{aside}.head").write_bytes(place.head.read_bytes())
    return aside


def restore(directory: Path, copy: Path) -> int:
    """Put a backup in the place of the database, which is kept aside; gives its last revision.

    The broker must not run (`InUse`). A damaged copy is refused and changes nothing.
    """
    place = Place(directory)
    descriptor = lock(place)
    try:
        _refuse_hollow(copy)
        with in_words(copy), _reading(copy) as source:
            last = check(source, copy, known=len(STEPS))
            new = copy_database(source, place.base.with_suffix(".new"))
        set_aside(place)
        new.rename(place.base)
        sync_directory(directory)
        write_head(place.head, last)
        return last
    finally:
        os.close(descriptor)


def copy_database(source: sqlite3.Connection, target: Path) -> Path:
    """A consistent copy, synced, by SQLite's online backup; commits on `source` go on meanwhile."""
    with _making(target) as connection:
        source.backup(connection, pages=256, sleep=0.005)
        connection.execute("PRAGMA journal_mode = DELETE")
    return target


def last_revision(copy: Path) -> int:
    """The last revision of a copy, which is checked."""
    with in_words(copy), _reading(copy) as connection:
        return check(connection, copy, known=len(STEPS))


@contextlib.contextmanager
def reading(copy: Path) -> Iterator[sqlite3.Connection]:
    """A connection to a copy, which is checked."""
    _refuse_hollow(copy)
    with in_words(copy), _reading(copy) as connection:
        check(connection, copy, known=len(STEPS))
        yield connection


def _reading(base: Path) -> contextlib.closing[sqlite3.Connection]:
    """A connection that only reads."""
    return contextlib.closing(sqlite3.connect(base.absolute().as_uri() + "?mode=ro", uri=True))


def _create(place: Place, steps: Sequence[str]) -> None:
    new = place.base.with_suffix(".new")
    with _making(new) as connection:
        _take_steps(connection, steps, place.directory)
    new.rename(place.base)
    sync_directory(place.directory)
    write_head(place.head, 0)


def _take_steps(connection: sqlite3.Connection, steps: Sequence[str], place: Path) -> None:
    """Each step in a transaction of its own, with the number of the version it leads to."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for number in range(version, len(steps)):
        try:
            connection.executescript(f"BEGIN; {steps[number]}; PRAGMA user_version = {number + 1}; COMMIT")
        except sqlite3.Error as error:
            why = words(error, place)
            raise StoreError(
                f"cannot bring the store to schema {number + 1}: {why}; it was left at schema {number}"
            ) from error


@contextlib.contextmanager
def _making(path: Path) -> Iterator[sqlite3.Connection]:
    """A new database file of mode 0600, synced at the end; a failure leaves no file."""
    try:
        path.unlink(missing_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            yield connection
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except (OSError, sqlite3.Error) as error:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise StoreError(f"cannot make {path}: {words(error, path.absolute().parent)}") from error


def _remains(place: Place) -> bool:
    """Whether something shows that a database was here, although it is not."""
    return read_head(place.head) > 0 or (place.wal.exists() and place.wal.stat().st_size > 0)


def read_head(head: Path) -> int:
    """The revision that `facts.head`, or another head, shows; 0 when there is none or it cannot be read."""
    try:
        return int(head.read_text("ascii"))
    except (OSError, ValueError):
        return 0


def write_head(head: Path, revision: int) -> None:
    """Set a head. Not synced, and never an obstacle: it is evidence, not truth."""
    with contextlib.suppress(OSError):
        descriptor = os.open(head, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, head_text(revision), 0)
        finally:
            os.close(descriptor)


def head_text(revision: int) -> bytes:
    """The content of a head; always of the same length, so that it can be written in place."""
    return b"%020d\n" % revision


def sync_directory(directory: Path) -> None:
    """Make renames in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
