"""What the agent writes to its log: stderr, so the journal's.

A fault is written once when it begins and once when it ends; what happens in between is counted and shown by
`status`. Nothing secret comes here: callers pass words, never keys, frames or environments.
"""

import os
import sys
from typing import TextIO

NOTICE, WARNING = 5, 4
"""Priorities of syslog(3), as the journal reads them from a line's `<N>` prefix (sd-daemon(3))."""


class Log:
    """Lines to a stream; `journal`: with the prefixes that journald takes away again."""

    def __init__(self, stream: TextIO = sys.stderr, *, journal: bool | None = None) -> None:
        self._stream = stream
        self._journal = "JOURNAL_STREAM" in os.environ if journal is None else journal
        self._faults: dict[str, tuple[float, int]] = {}

    def notice(self, text: str) -> None:
        """Something that an admin may want to know happened."""
        self._write(NOTICE, text)

    def warning(self, text: str) -> None:
        """Something is wrong."""
        self._write(WARNING, text)

    def fault(self, about: str, text: str, now: float) -> None:
        """What is wrong with `about`, '' when it is all right; only begin and end are written."""
        begin = self._faults.get(about)
        if text and begin is None:
            self._faults[about] = (now, 1)
            self.warning(f"{about}: {text}")
        elif text and begin is not None:
            self._faults[about] = (begin[0], begin[1] + 1)
        elif begin is not None:
            del self._faults[about]
            self.notice(f"{about}: all right again after {now - begin[0]:.0f} s")

    def _write(self, priority: int, text: str) -> None:
        line = text.replace("\n", "; ")
        try:
            print(f"<{priority}>{line}" if self._journal else line, file=self._stream, flush=True)
        except (OSError, ValueError):
            return  # a closed or full log must not end the agent
