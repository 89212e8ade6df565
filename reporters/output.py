"""What a run prints, as the agent reads it: pipes within bounds, and the tail of standard error.

Nothing here waits, and memory is bounded whatever is printed.
"""

import os
from collections.abc import Callable

from xce.linux.loop import Loop, Timer

CHUNK = 1 << 16
MOSTLY = 992
"""Bytes that are asked for first: most runs print less, and memory for so few is at hand."""
LARGEST_PIPE = 1 << 20
"""What a pipe can hold at most, unless root has changed that (/proc/sys/fs/pipe-max-size)."""
STDERR_BYTES = 8 << 10
FIRST_LINE_BYTES = 512
TRACEBACK = "Traceback (most recent call last):"


class Tail:
    """The first line and the last 8 KiB of standard error."""

    _first, _first_done = b"", False
    ring = b""
    """The last of it, as bytes."""

    def add(self, data: bytes) -> None:
        """More output."""
        self.ring = (self.ring + data)[-STDERR_BYTES:]
        if not self._first_done:
            stripped = (self._first + data[: FIRST_LINE_BYTES + 1]).lstrip()
            self._first_done = b"\n" in stripped or len(stripped) > FIRST_LINE_BYTES
            self._first = stripped[:FIRST_LINE_BYTES]

    @property
    def gist(self) -> str:
        """The first line that is not blank; of a traceback of Python the last, which says what was wrong."""
        first = self._first.split(b"\n")[0].decode(errors="backslashreplace").rstrip()
        if first != TRACEBACK:
            return first
        return self.text.rstrip().rpartition("\n")[2][:FIRST_LINE_BYTES]

    @property
    def text(self) -> str:
        """The last of it."""
        return self.ring.decode(errors="backslashreplace")


def remains(fd: int) -> bytes:
    """What is in a pipe now, and little more, however much is being written; then it is closed."""
    data, size = b"", MOSTLY
    try:
        while len(data) < LARGEST_PIPE:
            data += (more := os.read(fd, size))
            if len(more) < size:  # that was all, or the end
                return data
            size = CHUNK
    except BlockingIOError:
        pass
    finally:
        os.close(fd)
    return data


class Pipe:
    """The reading end of a child's output, watched; no more than `per_s` bytes a second are taken from it."""

    def __init__(self, loop: Loop, fd: int, take: Callable[[bytes], object], per_s: int = 0) -> None:
        self._loop, self._fd, self._take, self._per_s = loop, fd, take, per_s
        self._window, self._taken = 0.0, 0
        self._timer: Timer | None = None
        """While nothing is taken."""
        loop.add_reader(fd, self._ready)

    def _ready(self) -> None:
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        if self._per_s:
            self._count(len(data))
        self._take(data)

    def _count(self, taken: int) -> None:
        now = self._loop.now()
        if now - self._window >= 1:
            self._window, self._taken = now, 0
        self._taken += taken
        if self._taken >= self._per_s:
            self.pause(self._window + 1)

    def pause(self, until: float) -> None:
        """Take nothing before `until`: the child waits once its pipe is full."""
        if self._fd >= 0 and self._timer is None:
            self._loop.remove_reader(self._fd)
            self._timer = self._loop.call_at(until, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self._fd, self._ready)

    def drain(self) -> None:
        """Take what remains, and close."""
        if (fd := self._let_go()) >= 0 and (data := remains(fd)):
            self._take(data)

    def close(self) -> None:
        """Take no more; may be called twice."""
        if (fd := self._let_go()) >= 0:
            os.close(fd)

    def _let_go(self) -> int:
        """The descriptor, not watched any more; -1 if that was done before."""
        fd, self._fd = self._fd, -1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif fd >= 0:
            self._loop.remove_reader(fd)
        return fd
