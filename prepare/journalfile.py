"""The file of a node's journal: how it is opened, judged, read by others, and what is whole in a damaged one.

A record is a row with a checksum over its place and its very bytes.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from xce.linux.paths import sync_directory

Key: TypeAlias = tuple[str, str, int]
"""Kind, name, number."""
_LOG_PAGES = 100
"""Of the log, before it is taken into the file: one in some twenty strokes, for two more syncs."""
_BUSY_S = 2.0
"""For which another program's lock (an admin's sqlite3) is waited for."""
_CHECKSUM_BYTES = 16
_COPIES = 20
LOST, GONE = "its log was lost", "it is gone"
"""What can be wrong with a journal, beside damage."""
_TABLES = """
CREATE TABLE IF NOT EXISTS record (
    kind TEXT NOT NULL, name TEXT NOT NULL, number INTEGER NOT NULL,
    body BLOB NOT NULL, checksum BLOB NOT NULL,
    PRIMARY KEY (kind, name, number)
) WITHOUT ROWID
"""

STEPS: Sequence[str] = (_TABLES,)
"""Step n takes the file from version n to n + 1. Add steps; never change one that was released."""

_DAMAGE = {"SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR", "SQLITE_IOERR_SHORT_READ"}
"""What SQLite says of a file that is damaged, or has not our tables; all else it says of the disk."""

COUNT: Key = ("head", "", 0)
"""The record that says how many strokes there were."""


class TooNew(Exception):
    """The file is of a newer version than this program: it is left to that one."""


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often something was written."""

    strokes: int = 0


@contextlib.contextmanager
def copied(path: str) -> Iterator[str]:
    """File and log as they are in one moment, elsewhere: their owner lets nobody else in. Raises OSError."""
    names = [path, f"{path}-wal", f"{path}-journal"]
    with tempfile.TemporaryDirectory(prefix="xce-journal-") as folder:
        for _ in range(_COPIES):
            before = [_signature(name) for name in names]
            for name in names:
                _copy(name, f"{folder}/{os.path.basename(name)}")
            if before == [_signature(name) for name in names]:
                yield f"{folder}/{os.path.basename(path)}"
                return
        raise OSError(errno.EBUSY, "it is written all the time")


def _copy(path: str, to: str) -> None:
    try:
        shutil.copyfile(path, to)
    except FileNotFoundError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(to)


def _signature(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def version_of(connection: sqlite3.Connection) -> int:
    """Of the tables."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def connect(path: str) -> sqlite3.Connection:
    """Exclusively: the index of the log is in memory then, and no full disk can take it away (SIGBUS)."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_S)
    try:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint={_LOG_PAGES}")
    except BaseException:
        connection.close()
        raise
    return connection


def whole(connection: sqlite3.Connection) -> bool:
    """Whether every record is as it was written."""
    rows = connection.execute("SELECT kind, name, number, body, checksum FROM record")
    return all(
        checksum == checksum_of((kind, name, number), body) for kind, name, number, body, checksum in rows
    )


def salvage(path: str) -> dict[Key, bytes]:
    """Records of a damaged file that are whole by themselves. Raises OSError: the disk lets nobody look."""
    found: dict[Key, bytes] = {}
    with (
        contextlib.suppress(sqlite3.Error),  # what was read before is whole
        copied(path) as copy,
        contextlib.closing(sqlite3.connect(copy)) as connection,
    ):
        query = "SELECT kind, name, number, body, checksum FROM record"
        for kind, name, number, body, checksum in connection.execute(query):
            if checksum == checksum_of((kind, name, number), body):
                found[(kind, name, number)] = body
    return found


def checksum_of(key: Key, body: bytes) -> bytes:
    """Of a record."""
    place = "\0".join(str(part) for part in key).encode()
    return hashlib.blake2b(place + b"\0" + body, digest_size=_CHECKSUM_BYTES).digest()


def opened(path: str, steps: Sequence[str]) -> sqlite3.Connection:
    """The file, made if it is not there, and brought up to our version. Raises OSError."""
    with in_words(path), contextlib.ExitStack() as undo:
        if not os.path.exists(path):
            _complete(path, _made(path, steps, {}))
        connection = connect(path)
        undo.callback(connection.close)
        _bring_up(connection, steps)
        undo.pop_all()
        return connection


def begin_anew(path: str, steps: Sequence[str], rows: Mapping[Key, bytes], aside: str) -> None:
    """A file with these records in the place of what is there, which is kept as `aside`. Raises OSError.

    Nothing of the old one is touched before the new one is complete: who is killed before that, or finds
    no room, leaves the old one as it was; after it, the next start finishes. None sees a file without its
    log.
    """
    with in_words(path):
        new = _made(path, steps, rows)
    for suffix in ("-wal", ""):
        with contextlib.suppress(FileNotFoundError):
            os.link(f"{path}{suffix}", f"{aside}{suffix}")
    _complete(path, new)


def finish(path: str) -> None:
    """Put a complete new file in its place, where somebody was to and came no further. Raises OSError."""
    complete, folder = complete_of(path), os.path.dirname(path)
    try:
        os.stat(complete)
    except FileNotFoundError:
        return
    sync_directory(folder)
    _remove(f"{path}-wal", f"{path}-journal")  # another file's log would be taken into this one
    sync_directory(folder)
    os.rename(complete, path)
    sync_directory(folder)


def complete_of(path: str) -> str:
    """How a new file is called that is complete and has not its place yet: it is what counts from then on."""
    return f"{path}.complete"


def write(connection: sqlite3.Connection, key: Key, body: bytes | None) -> None:
    """A record, or none any more."""
    if body is None:
        connection.execute("DELETE FROM record WHERE kind=? AND name=? AND number=?", key)
        return
    connection.execute(
        "INSERT OR REPLACE INTO record (kind, name, number, body, checksum) VALUES (?, ?, ?, ?, ?)",
        (*key, body, checksum_of(key, body)),
    )


def _bring_up(connection: sqlite3.Connection, steps: Sequence[str]) -> None:
    """Take a whole file from its version to ours: all steps, or none."""
    missing = steps[version_of(connection) :]
    if not missing:
        return
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        for step in missing:
            connection.execute(step)
        connection.execute(f"PRAGMA user_version={len(steps)}")


def _made(path: str, steps: Sequence[str], rows: Mapping[Key, bytes]) -> str:
    """A new file, whole, that has not its name yet."""
    new = f"{path}.new"
    _remove(new, f"{new}-wal", f"{new}-journal")
    os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with contextlib.closing(connect(new)) as connection:
        _bring_up(connection, steps)
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            for key, body in rows.items():
                write(connection, key, body)
    return new


def _complete(path: str, new: str) -> None:
    os.rename(new, complete_of(path))
    finish(path)


def _remove(*paths: str) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def damage(path: str, head: str, steps: Sequence[str]) -> str:
    """What is wrong with the file; '' if it is whole, or not there and never was.

    Raises `TooNew`, and OSError: nobody can say, since the disk lets nobody look, or somebody else has it.
    """
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        return GONE if told(head) else ""
    if size == 0:
        return "it is empty"
    try:
        with contextlib.closing(connect(path)) as connection:
            known, version = len(steps), version_of(connection)
            if version > known:
                words = f"{path} is of version {version}, this program knows up to {known}"
                raise TooNew(f"{words}: install the version that wrote it, or a newer one")
            if version == 0:
                return "it has no version"
            answer = connection.execute("PRAGMA integrity_check").fetchone()[0]
            if answer != "ok":
                return str(answer)
            return _lost(connection, head) if whole(connection) else "a record is damaged"
    except sqlite3.Error as error:
        if _is_damage(error):
            return str(error)
        raise _refusal(error, path) from error


@contextlib.contextmanager
def in_words(path: str) -> Iterator[None]:
    """What SQLite says of the disk becomes an OSError."""
    try:
        yield
    except sqlite3.Error as error:
        raise _refusal(error, path) from error


def _refusal(error: sqlite3.Error, path: str) -> OSError:
    return OSError(errno.EIO, f"cannot open the journal: {cause_of(error, path)}", path)


def _is_damage(error: sqlite3.Error) -> bool:
    name = getattr(error, "sqlite_errorname", "SQLITE_ERROR")
    return name in _DAMAGE or name.startswith(("SQLITE_CORRUPT_", "SQLITE_NOTADB_"))


def cause_of(error: sqlite3.Error, path: str) -> str:
    """Why the file is not read or written, and what to do."""
    name = getattr(error, "sqlite_errorname", "")
    read_only, full = name.startswith("SQLITE_READONLY"), name == "SQLITE_FULL"
    with contextlib.suppress(OSError):
        found = os.statvfs(os.path.dirname(path))
        read_only |= bool(found.f_flag & os.ST_RDONLY)
        full |= name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN")) and 0 in (found.f_bavail, found.f_favail)
    if full:
        return "no space"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "another program has it open (fuser shows which): end that one"
    if read_only:
        return "its file system is read-only: the kernel's log says why; mount it with rw once it is well"
    return f"its disk fails: {error}; look at the kernel's log, and at quotas"


def _lost(connection: sqlite3.Connection, head: str) -> str:
    """Whether strokes are missing that were written; '' if none are, or nothing tells."""
    query = "SELECT body FROM record WHERE kind=? AND name=? AND number=?"
    row = connection.execute(query, COUNT).fetchone()
    found = msgspec.json.decode(row[0], type=Head).strokes if row else 0
    return f"{LOST}: it ends with stroke {found} of {told(head)}" if found < told(head) else ""


def told(head: str) -> int:
    """How many strokes there were; 0 if nothing tells. Raises OSError: nobody can say."""
    try:
        return int(Path(head).read_text("ascii"))
    except (FileNotFoundError, ValueError):
        return 0


def tell(head: str, strokes: int) -> None:
    """Say how many there were. Raises OSError."""
    fd = os.open(head, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, f"{strokes:020d}\n".encode("ascii"))
    finally:
        os.close(fd)
