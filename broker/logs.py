"""The broker's log: the journal where that listens, with XCE_HOST for lines about a host, or standard error.
Bounded: a storm is counted, not written.
"""

import logging
import os
import sys
import time

from xce.wire import journal

log = logging.getLogger("xce.broker")


class _Levels(logging.Formatter):
    """Lines with the level that journald reads (sd-daemon(3))."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, with its level in front."""
        level = "<3>" if record.levelno >= logging.ERROR else "<4>"
        if record.levelno < logging.WARNING:
            level = "<6>"
        return "\n".join(level + line for line in super().format(record).splitlines())


class _Journal(logging.Handler):
    """Lines with fields; what the journal does not take goes to `other`."""

    def __init__(self, send: journal.Send, other: logging.Handler) -> None:
        super().__init__()
        self._send, self._other = send, other

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        priority = 3 if record.levelno >= logging.ERROR else 4 if record.levelno >= logging.WARNING else 6
        if not self._send(self.format(record), priority, {"XCE_HOST": getattr(record, "host", "")}):
            self._other.emit(record)


class _Bounded(logging.Filter):
    """At most `LINES` lines in `SECONDS`; the next line let through says how many were left out."""

    LINES, SECONDS = 200, 10.0

    def __init__(self) -> None:
        super().__init__()
        self._since, self._count = 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line is let through."""
        now = time.monotonic()
        if now - self._since > self.SECONDS:
            left_out = self._count - self.LINES
            if left_out > 0:
                record.msg = f"{record.msg} ({left_out} lines before this one were left out)"
            self._since, self._count = now, 0
        self._count += 1
        return self._count <= self.LINES


def log_to_stderr() -> None:
    """Write the broker's log to the journal or standard error from now on."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Levels("%(message)s") if os.environ.get("JOURNAL_STREAM") else logging.Formatter())
    if (send := journal.listening(sys.stderr, "xce-broker")) is not None:
        handler = _Journal(send, handler)
    handler.addFilter(_Bounded())
    log.handlers = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False
