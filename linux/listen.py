"""A listening socket on the loop, and the descriptors of the process: enough of them, and a few in reserve.

Whoever connects cannot keep the loop busy: a few connections are taken in a turn, and after one that was
turned away, or when descriptors have run out, nothing is taken for a moment (epoll would call again at once,
for ever). Who must be heard even then gets in by the reserve.
"""

import contextlib
import errno
import os
import resource
import socket
from collections.abc import Callable

from xce.linux.loop import Loop, Timer

PER_TURN = 16
"""Connections taken in one turn."""
REST_S, DRY_S = 0.02, 0.5
"""Pause after a turn in which somebody was turned away, and after one without descriptors."""
DESCRIPTORS = 65_536
"""As many as the process asks for, if its hard limit lets it."""
_DRY = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def raise_limit(wanted: int = DESCRIPTORS) -> int:
    """Raise the soft limit on open files as far as may be; says what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return soft
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Reserve:
    """Descriptors that are held for a moment in which there are no others."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: list[int] = []
        self.fill()

    def spend(self) -> bool:
        """Let one go for whoever opens next; False if none is left."""
        if self._held:
            os.close(self._held.pop())
            return True
        return False

    def fill(self) -> None:
        """Take back what was spent, as far as there is any."""
        with contextlib.suppress(OSError):
            while len(self._held) < self._count:
                self._held.append(os.open("/", os.O_PATH | os.O_CLOEXEC))

    def close(self) -> None:
        """Let go of all; may be called twice."""
        self._count = 0
        while self.spend():
            pass


class Listener:
    """Takes connections of `listening`, which it owns from now on, and hands them to `take`, non-blocking.

    `take(connection)` keeps it or returns False: then it is closed. `reserve`, if there is one, is spent when
    nothing else is left; `take` is told by `scarce` and should keep only who must be heard.
    """

    def __init__(
        self,
        loop: Loop,
        listening: socket.socket,
        take: Callable[[socket.socket], bool],
        *,
        reserve: Reserve | None = None,
    ) -> None:
        self._loop, self._socket, self._take, self._reserve = loop, listening, take, reserve
        self._timer: Timer | None = None
        self.scarce = False
        """Whether descriptors ran out at the last try."""
        loop.add_reader(listening.fileno(), self._ready)

    def close(self) -> None:
        """Listen no more; may be called twice."""
        if self._socket.fileno() < 0:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _ready(self) -> None:
        if self._reserve is not None:
            self._reserve.fill()
        self.scarce = False
        turned_away = 0
        for _ in range(PER_TURN):
            try:
                connection = self._accept()
            except (BlockingIOError, ConnectionError):
                break
            except OSError as error:
                self._rest(DRY_S if error.errno in _DRY else REST_S)
                return
            if not self._take(connection):
                connection.close()
                turned_away += 1
        if self.scarce or turned_away:
            self._rest(DRY_S if self.scarce else REST_S)

    def _accept(self) -> socket.socket:
        try:
            connection, _ = self._socket.accept()
        except OSError as error:
            if error.errno not in _DRY:
                raise
            self.scarce = True
            if self._reserve is None or not self._reserve.spend():
                raise
            connection, _ = self._socket.accept()
        connection.setblocking(False)
        return connection

    def _rest(self, seconds: float) -> None:
        if self._timer is None:
            self._loop.remove_reader(self._socket.fileno())
            self._timer = self._loop.call_later(seconds, self._again)

    def _again(self) -> None:
        self._timer = None
        self._loop.add_reader(self._socket.fileno(), self._ready)
