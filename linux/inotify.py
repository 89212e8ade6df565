"""Directory watches: inotify(7) for whoever wants to know that something changed, and looks for himself.

Events say only which watch they belong to and the name; after an overflow the answer is "anything". Changes
made on another host (network file systems) are never seen: callers rescan now and then.
"""

import os
import struct
from typing import NamedTuple

from xce.linux import syscalls

CHANGES = (
    syscalls.IN_MODIFY
    | syscalls.IN_ATTRIB
    | syscalls.IN_CLOSE_WRITE
    | syscalls.IN_MOVED_FROM
    | syscalls.IN_MOVED_TO
    | syscalls.IN_CREATE
    | syscalls.IN_DELETE
    | syscalls.IN_DELETE_SELF
    | syscalls.IN_MOVE_SELF
)
"""Everything that can change what a directory holds, or who may use it."""
NAMES = CHANGES & ~(syscalls.IN_MODIFY | syscalls.IN_CLOSE_WRITE)
"""Everything that can change which files it holds and whose they are, but not what is in them."""

_HEAD = struct.Struct("iIII")


class Event(NamedTuple):
    """Something changed. `watch` is -1 after an overflow: then events are missing."""

    watch: int
    mask: int
    name: bytes


class Inotify:
    """One inotify instance; `fileno()` is readable when `read()` has something."""

    def __init__(self) -> None:
        self._fd = syscalls.inotify_init()

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._fd

    def watch(self, path: str, mask: int = CHANGES) -> int:
        """Watch a directory; the same inode gives the same number again."""
        return syscalls.inotify_add_watch(self._fd, path, mask | syscalls.IN_ONLYDIR)

    def forget(self, watch: int) -> None:
        """Stop a watch; one that ended by itself (directory removed) is ignored."""
        try:
            syscalls.inotify_rm_watch(self._fd, watch)
        except OSError:
            return

    def read(self) -> list[Event]:
        """Events so far, at most 64 KiB of them; [] if there are none."""
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return []
        return parse(data)

    def close(self) -> None:
        """Let go of the descriptor; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def parse(data: bytes) -> list[Event]:
    """The events of one read(2)."""
    events, at = [], 0
    while at + _HEAD.size <= len(data):
        watch, mask, _cookie, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        events.append(Event(watch, mask, data[at : at + length].rstrip(b"\0")))
        at += length
    return events
