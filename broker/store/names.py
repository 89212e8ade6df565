"""Whether the names of the database still stand for the files that were opened: SQLite would go on writing
into files that were deleted, and report success.

A name does not come to stand for another file without the time of its directory changing, so a commit looks
at that, and at the files only where it has changed. For a file whose times are asked for has them noted anew
at its next write (Linux 6.13 and later, "multigrain timestamps"), and on ext4 without a journal each sync has
that to write, too: a third of the wait for the disk.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

SETTLED_NS = 50_000_000
"""What changed less than that ago may change again without another time: clocks of files tick each 10 ms."""


class Names:
    """Names of files in one directory, and what they stood for when this was made."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._directory, self._paths = str(paths[0].parent), [str(path) for path in paths]
        self._meant = self._identities()
        self._seen: tuple[int, int, int] | None = None
        """Which directory it was, and since when unchanged, when they were found to be right."""

    def stand(self) -> bool:
        """Whether they still do. Raises `OSError`: nobody can say."""
        status = os.stat(self._directory)
        seen = status.st_dev, status.st_ino, status.st_ctime_ns
        if seen == self._seen:
            return True
        try:
            right = self._identities() == self._meant
        except FileNotFoundError:
            right = False
        settled = abs(time.time_ns() - status.st_ctime_ns) > SETTLED_NS
        self._seen = seen if right and settled else None
        return right

    def _identities(self) -> list[tuple[int, int]]:
        found = [os.stat(path) for path in self._paths]
        return [(status.st_dev, status.st_ino) for status in found]
