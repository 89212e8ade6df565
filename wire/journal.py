"""systemd's journal as a place to write to: lines with fields, by which they can be found again.

journalctl XCE_HOST=node17 -u xce-broker
journalctl XCE_REPORTER=scratch_space -u xce-agent
"""

import os
from collections.abc import Callable, Mapping
from typing import TextIO

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

    def send(text: str, priority: int, fields: Mapping[str, str]) -> bool:
        given = {name: value for name, value in fields.items() if value}
        try:
            journal.send(text, PRIORITY=str(priority), SYSLOG_IDENTIFIER=identifier, **given)
        except OSError:
            return False
        return True

    return send
