"""What the agent remembers between two starts: small files in its state directory, all of which it can lose.

The cluster's types, so that it works without the broker from the start; the generations of inventories; and
what YAML files meant, by their text, so that a start needs no YAML parser. A file that is empty, damaged, of
another version or not ours reads as nothing. What cannot be written is tried again later, and a start before
that has no head start; a disk that does not answer keeps the writer's thread alone, and on a file system that
may hang nothing is remembered: `fault` says so.
"""

import contextlib
import os
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec

from xce import model
from xce.agent.writer import Writer
from xce.linux import mountinfo
from xce.linux.paths import private
from xce.model.resource import ResourceType

T = TypeVar("T")

VERSION = 1
"""Raised when a file's meaning changes: older ones then read as nothing."""
FILE_BYTES = 16 << 20
TYPES, GENERATIONS, PARSED = "types", "generations", "parsed"
PARSED_FILES = 256
"""Remembered meanings; with more, all are forgotten."""


class Generation(msgspec.Struct, frozen=True, array_like=True):
    """The newest generation of a reporter's inventory, and the digest that it stands for."""

    number: int
    digest: str
    count: int = -1
    """Of instances; -1: not known."""


class Memory:
    """The files below `directory`; '' remembers nothing."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.writer = Writer()
        """Of all that the agent keeps there and the loop must not wait for."""
        self._faults: dict[str, str] = {}
        self._owed: dict[str, tuple[str, bytes]] = {}
        """What is not on disk yet: the newest file of each sort."""
        self._mounts = mountinfo.Table()
        self._may_use()

    @property
    def fault(self) -> str:
        """What could not be read or written, and why; '' if all could."""
        return self.writer.trouble() or next(iter(list(self._faults.values())), "")

    def types(self) -> list[ResourceType] | None:
        """The cluster's types as last learned."""
        return self._read(TYPES, list[ResourceType])

    def keep_types(self, types: list[ResourceType]) -> None:
        """Remember the cluster's types."""
        self._write(TYPES, types)

    def generations(self) -> dict[str, Generation]:
        """The newest generation of each reporter's inventory."""
        return self._read(GENERATIONS, dict[str, Generation]) or {}

    def keep_generations(self, generations: dict[str, Generation]) -> None:
        """Remember them: a restarted agent must not give an old number to a new inventory."""
        self._write(GENERATIONS, generations)

    def parsed(
        self,
        text: str,
        path: str,
        kind: type[T],
        parse: Callable[[str, str, type[T]], T],
        *,
        may_keep: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """What `parse` gives for `text`, remembered if it gives no error, and if it may be kept.

        For this version of the software alone: another one may check more.
        """
        meant = f"{VERSION}\0{model.VERSION}\0{kind.__module__}.{kind.__qualname__}\0{text}"
        mark = blake2b(meant.encode(), digest_size=12)
        name = f"{PARSED}-{mark.hexdigest()}"
        known = self._read(name, kind)
        if known is None:
            known = parse(text, path, kind)
            if not may_keep(known):
                return known
            self._write(name, known)
        return known

    def _may_use(self) -> bool:
        """Whether the directory is, now, where nothing can hang."""
        if not self.directory:
            return False
        try:
            mount = mountinfo.may_hang(self.directory, self._mounts.tops())
        except OSError:
            return True
        if mount is not None:
            self._faults[_sort("")] = (
                f"nothing is remembered: {self.directory} is on {mount.kind} from {mount.source}, "
                "which may hang; set state_directory to a local one"
            )
            self.directory = ""
        return mount is None

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}.msgpack"

    def _read(self, name: str, kind: type[T]) -> T | None:
        if not self._may_use():
            return None
        try:
            data = self._bytes(name)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._set_aside(name, error)
            return None
        try:
            version, content = msgspec.msgpack.decode(data, type=tuple[int, kind])  # type: ignore[valid-type]
        except msgspec.MsgspecError:
            return None
        return content if version == VERSION else None

    def _bytes(self, name: str) -> bytes:
        """What is in a file of ours; b'' if it is somebody else's."""
        fd = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(fd)
            if found.st_uid not in {0, os.geteuid()} or found.st_mode & 0o022:
                return b""
            data = b""
            while len(data) < FILE_BYTES and (chunk := os.read(fd, 1 << 20)):
                data += chunk
            return data
        finally:
            os.close(fd)

    def _set_aside(self, name: str, error: OSError) -> None:
        """Make room for a new one: what cannot be read now could not be replaced later, perhaps."""
        path = self._path(name)
        kept = f"{path}.unreadable"
        try:
            os.rename(path, kept)
            self._faults[_sort(name)] = f"cannot read {path}: {error.strerror}; it was set aside as {kept}"
        except OSError:
            self._faults[_sort(name)] = f"cannot read {path}: {error.strerror}; remove it"

    def _write(self, name: str, content: Any) -> None:
        """Replace a file whole. Not synced: after a power cut it may be empty, which reads as nothing."""
        if self._may_use():
            self._give(name, msgspec.msgpack.encode((VERSION, content)))

    def write_again(self) -> None:
        """Try once more what could not be written: the disk may have room by now."""
        for name, data in list(self._owed.values()) if self._may_use() else ():
            self._give(name, data)

    def _give(self, name: str, data: bytes) -> None:
        owed = self._owed[_sort(name)] = name, data
        self.writer.do(name, lambda: self._replace(owed))

    def _replace(self, owed: tuple[str, bytes]) -> None:
        name, data = owed
        path = self._path(name)
        try:
            with open(f"{path}.new", "wb", opener=private) as file:
                file.write(data)
            os.replace(f"{path}.new", path)
            if name.startswith(PARSED):
                self._forget_some()
            self._faults.pop(_sort(name), None)
            if self._owed.get(_sort(name)) is owed:
                del self._owed[_sort(name)]
        except OSError as error:
            self._faults[_sort(name)] = f"cannot write {path}: {error.strerror}"

    def _forget_some(self) -> None:
        with contextlib.suppress(OSError):
            files = [name for name in os.listdir(self.directory) if name.startswith(PARSED)]
            for name in files if len(files) > PARSED_FILES else ():
                os.unlink(f"{self.directory}/{name}")


def _sort(name: str) -> str:
    """What a file is one of: there are three sorts, and so many faults at most."""
    return name.partition("-")[0]
