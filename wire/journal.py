"""systemd's journal as a place to write to: lines with fields, by which they can be found again.

journalctl XCE_HOST=node17 -u xce-broker
journalctl XCE_REPORTER=scratch_space -u xce-agent

Whoever writes there waits while it takes nothing, as on a disk that is frozen. Lines are less than answers:
those that would wait are lost, and counted in the next one.
"""

import os
import select
import socket
from collections.abc import Callable, Mapping
from typing import TextIO

SOCKET = "/run/systemd/journal/socket"
Write = Callable[..., object]
Send = Callable[[str, int, Mapping[str, str]], bool]
"""Takes a line, its priority (syslog(3)) and its fields; False: it could not be sent, write it elsewhere."""


def listening(stream: TextIO, identifier: str) -> Send | None:
    """The journal, if it is what reads `stream` (JOURNAL_STREAM) and systemd's library is installed."""
    try:
        status = os.fstat(stream.fileno())
        if os.environ.get("JOURNAL_STREAM") != f"{status.st_dev}:{status.st_ino}":
            return None
        from systemd import journal  # noqa: PLC0415 - only where it is of use
    except (OSError, ValueError, ImportError):
        return None

    return Sender(journal.send, identifier)


class Sender:
    """A `Send`. `write` is the library's; it is called when the journal has room for a line."""

    def __init__(self, write: Write, identifier: str, path: str = SOCKET) -> None:
        self._write, self._identifier, self._path = write, identifier, path
        self._socket: socket.socket | None = None
        self._lost = 0

    def __call__(self, text: str, priority: int, fields: Mapping[str, str]) -> bool:
        """See `Send`."""
        if not self._has_room():
            self._lost += 1
            return True
        given = {name: value for name, value in fields.items() if value}
        lost = f" ({self._lost} lines before this one were lost: the journal took none)" if self._lost else ""
        try:
            self._write(f"{text}{lost}", PRIORITY=str(priority), SYSLOG_IDENTIFIER=self._identifier, **given)
        except OSError:
            return False
        self._lost = 0
        return True

    def _has_room(self) -> bool:
        """A socket of datagrams that is connected can be written to when its reader's queue is not full."""
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                self._socket.connect(self._path)
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            told = dict(poll.poll(0)).get(self._socket.fileno(), 0)
        except OSError:
            told = select.POLLERR
        if told & (select.POLLERR | select.POLLHUP):  # another reader is there, or none: that does not wait
            if self._socket is not None:
                self._socket.close()
            self._socket = None
            return True
        return bool(told & select.POLLOUT)
