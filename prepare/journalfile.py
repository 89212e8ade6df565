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
from collections.abc import Iterator
from typing import TypeAlias

Key: TypeAlias = tuple[str, str, int]
"""Kind, name, number."""
_LOG_PAGES = 100
"""Of the log, before it is taken into the file: one in some twenty strokes, for two more syncs."""
_CHECKSUM_BYTES = 16
_COPIES = 20


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
    connection = sqlite3.connect(path, isolation_level=None, timeout=5)
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint={_LOG_PAGES}")
    return connection


def whole(connection: sqlite3.Connection) -> bool:
    """Whether every record is as it was written."""
    rows = connection.execute("SELECT kind, name, number, body, checksum FROM record")
    return all(
        checksum == checksum_of((kind, name, number), body) for kind, name, number, body, checksum in rows
    )


def salvage(path: str) -> dict[Key, bytes]:
    """Records of a damaged file that are whole by themselves."""
    found: dict[Key, bytes] = {}
    with (
        contextlib.suppress(sqlite3.Error, OSError),  # what was read before is whole
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
