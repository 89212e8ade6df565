"""The inventory on disk: what was once found must be there after a restart, or be known to be lost.

One file, replaced whole and synced, by the writer's thread. A damaged one is set aside under another name
and said so in words: an inventory that nobody can read is not an empty one.
"""

import os
from typing import NamedTuple

import msgspec

from xce.agent.discovery.keep import Memory
from xce.agent.writer import Writer
from xce.linux.paths import private, sync_directory

VERSION = 1
FILE = "inventory.msgpack"
FILE_BYTES = 16 << 20


class Read(NamedTuple):
    """What was read. `damage`: why nothing could be; '' if there was nothing to read, or all of it was."""

    memory: Memory
    damage: str = ""


class Store:
    """The file in `directory`; '' remembers nothing."""

    def __init__(self, directory: str, writer: Writer | None = None) -> None:
        self._writer = writer or Writer()
        self.path = f"{directory}/{FILE}" if directory else ""
        self.fault = ""
        """Why it cannot be written; '' if it can."""

    def read(self) -> Read:
        """What was kept."""
        if not self.path:
            return Read(Memory())
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(fd, "rb") as file:
                data = file.read(FILE_BYTES + 1)
        except FileNotFoundError:
            return Read(Memory())
        except OSError as error:
            return Read(Memory(), f"cannot read {self.path}: {error.strerror}")
        try:
            version, memory = msgspec.msgpack.decode(data, type=tuple[int, Memory])
        except (msgspec.MsgspecError, ValueError) as error:
            return Read(Memory(), self._set_aside(f"damaged ({str(error)[:200]})"))
        if version != VERSION:
            return Read(Memory(), self._set_aside(f"of version {version}, not {VERSION}"))
        return Read(memory)

    def write(self, memory: Memory) -> None:
        """Keep this, durably: at once, or when the disk answers again."""
        if self.path:
            data = msgspec.msgpack.encode((VERSION, memory))
            self._writer.do(FILE, lambda: self._replace(data))

    def _replace(self, data: bytes) -> None:
        try:
            with open(f"{self.path}.new", "wb", opener=private) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{self.path}.new", self.path)
            sync_directory(os.path.dirname(self.path))
            self.fault = ""
        except OSError as error:
            self.fault = f"cannot write {self.path}: {error.strerror}"

    def _set_aside(self, what: str) -> str:
        aside = f"{self.path}.damaged"
        try:
            os.replace(self.path, aside)
        except OSError as error:
            return f"{self.path} is {what} and cannot be set aside: {error.strerror}"
        return f"{self.path} was {what}; it is {aside} now"
