"""The last known values and inventories, so that a restarted broker shows them with their age.

One file, replaced whole by rename and not synced: after a crash of the machine it may be missing or torn, and
then the hosts report anew. Nothing here is a fact. What the entries mean is the core's business: bytes by
location, and bytes about the whole.

The file is a row of frames: length, CRC-32, MessagePack. The first holds the `Header`, each other one a map
of entries. So it is written in pieces that do not hold up the loop, and a torn one is noticed.
"""

import contextlib
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from xce.broker.background import Background

VERSION = 1
PIECE_BYTES = 256 * 1024
FRAME = struct.Struct(">II")


class Stamp(NamedTuple):
    """One instant, by the clocks that can be compared later."""

    boot: str
    """The kernel's random id of this boot (proc_sys_kernel(5))."""
    monotonic_ms: int
    wall_ms: int


def stamp(proc_root: str = "/proc") -> Stamp:
    """The present instant."""
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path(proc_root, "sys/kernel/random/boot_id").read_text("ascii").strip()
    return Stamp(boot, int(time.monotonic() * 1000), int(time.time() * 1000))


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a cache as a whole."""

    version: int
    written: Stamp
    revision: int
    """Of the last fact when it was written."""
    entries: int
    about: bytes


class Cached(NamedTuple):
    """A cache that was read."""

    entries: dict[str, bytes]
    """By location key."""
    about: bytes
    revision: int
    written: Stamp
    age_ms: int
    """How long ago it was written: by the monotonic clock within one boot, otherwise by the wall clock. Never
    below 0; a wall clock that was set back makes it too small, which is why hosts are *rejoining* anyway."""


class Cache:
    """The file at `path`, written through a background thread."""

    def __init__(self, path: str | os.PathLike[str], background: Background) -> None:
        self._path, self._background = Path(path), background
        self._writing = False

    def save(self, entries: Mapping[str, bytes], *, about: bytes, revision: int, now: Stamp) -> bool:
        """Write all of it soon; copies no bytes. False: the one before is still being written, skipped."""
        if self._writing:
            return False
        kept = dict(entries)
        self._writing = True

        def job() -> None:
            try:
                write(self._path, kept, about=about, revision=revision, now=now)
            finally:
                self._writing = False

        if not self._background.submit("cache of last values", job):
            self._writing = False
            return False
        return True


def write(path: Path, entries: Mapping[str, bytes], *, about: bytes, revision: int, now: Stamp) -> None:
    """Replace the file at `path`; raises OSError and leaves the old one."""
    new = path.with_name(path.name + ".new")
    header = Header(version=VERSION, written=now, revision=revision, entries=len(entries), about=about)
    encode = msgspec.msgpack.encode
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            _put(file, encode(header))
            for piece in _pieces(entries):
                _put(file, encode(piece))
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def read(path: Path, *, now: Stamp, say: Callable[[str], None]) -> Cached | None:
    """What the file holds; None when there is none, or when it cannot be used, which is said once."""
    try:
        with path.open("rb") as file:
            frames = _frames(file, os.fstat(file.fileno()).st_size)
            header = msgspec.msgpack.decode(next(frames, b""), type=Header)
            if header.version != VERSION:
                raise ValueError(f"it has version {header.version}, expected {VERSION}")
            entries: dict[str, bytes] = {}
            decoder = msgspec.msgpack.Decoder(dict[str, bytes])
            for body in frames:
                entries.update(decoder.decode(body))
        if len(entries) != header.entries:
            raise ValueError(f"it holds {len(entries)} of {header.entries} entries")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, msgspec.DecodeError) as error:
        say(f"cannot use the cache of last values {path}: {error}; values come as the hosts report")
        return None
    return Cached(entries, header.about, header.revision, header.written, age_ms(header.written, now))


def age_ms(written: Stamp, now: Stamp) -> int:
    """Milliseconds from one stamp to the other, never below 0."""
    if written.boot and written.boot == now.boot:
        return max(0, now.monotonic_ms - written.monotonic_ms)
    return max(0, now.wall_ms - written.wall_ms)


def _pieces(entries: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """The entries in maps of a quarter of a MiB: encoding one holds the interpreter for well under 1 ms."""
    piece: dict[str, bytes] = {}
    size = 0
    for key, body in entries.items():
        piece[key] = body
        size += len(key) + len(body)
        if size >= PIECE_BYTES:
            yield piece
            piece, size = {}, 0
    if piece:
        yield piece


def _put(file: BinaryIO, body: bytes) -> None:
    frame = memoryview(FRAME.pack(len(body), zlib.crc32(body)) + body)
    while frame:
        frame = frame[file.write(frame) :]


def _frames(file: BinaryIO, left: int) -> Iterator[bytes]:
    """The bodies of all frames; raises ValueError for a torn or scribbled one."""
    while left:
        head = file.read(FRAME.size)
        left -= FRAME.size
        if left < 0:
            raise ValueError("it ends in the middle of a frame")
        length, checksum = FRAME.unpack(head)
        if length > left:
            raise ValueError("it ends in the middle of a frame")
        body = file.read(length)
        left -= length
        if zlib.crc32(body) != checksum:
            raise ValueError("a checksum does not fit")
        yield body
