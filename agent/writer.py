"""Writes files for the loop, in a thread: a disk that does not answer (frozen, hung) keeps nobody but that.

The loop waits a moment for it, so that wherever the disk is well what is told to others is on it. What counts
is the newest of each name: one that still waits when there is a newer one is not done at all.
"""

import threading
import time
from collections.abc import Callable

WAIT_S = 0.05
"""For which the loop waits, once: with a disk that is known to be late it does not."""
STALLED_S = 5.0
"""Whoever is so long at one job waits for a disk."""
_IDLE_S = 5.0
"""After which the thread ends; the next job begins another."""


class Writer:
    """`do` never waits for longer than a moment. There is no thread before the first job."""

    def __init__(self) -> None:
        self._jobs: dict[str, Callable[[], object]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = self._late = False
        self._began: float | None = None
        """When the job began that is at work; None: it rests."""
        self._bug = ""

    def do(self, name: str, job: Callable[[], object]) -> None:
        """Have it done, after all that waits; an earlier one of this name that waits is forgotten."""
        with self._changed:
            if self._closed:
                return
            self._jobs.pop(name, None)
            self._jobs[name] = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            if not self._late:
                self._late = not self._changed.wait_for(self._rests, WAIT_S)

    def trouble(self) -> str:
        """Why nothing is written at present; ''."""
        began = self._began
        if began is None or time.monotonic() - began < STALLED_S:
            return self._bug
        return "nothing is written: a disk or file system does not answer (dmesg)"

    def close(self, deadline: float) -> bool:
        """Finish what waits; False if the disk did not answer within so many seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return self._changed.wait_for(self._rests, deadline)

    def _rests(self) -> bool:
        return not self._jobs and self._began is None

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - a bug in one job must not end the others
                self._bug = f"internal error: cannot write: {error!r}; please report it"
            finally:
                with self._changed:
                    self._began = None
                    self._late = bool(self._jobs) and self._late
                    self._changed.notify_all()

    def _next(self) -> Callable[[], object] | None:
        """The oldest job, once there is one; None: the end of the thread."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._jobs or self._closed, _IDLE_S) or not self._jobs:
                self._thread = None
                return None
            name = next(iter(self._jobs))
            self._began = time.monotonic()
            return self._jobs.pop(name)
