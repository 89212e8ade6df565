"""One thread for writes that nobody waits for: the cache of last values, the audit log.

What must not be lost goes to the store instead. Jobs run one after the other; the queue is bounded, and a job
that finds it full is dropped and counted. A job that fails is said once when that begins and once when the
same job works again.
"""

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable

ROOM = 64
IDLE_S = 60.0
STALLED_S = 5.0
"""Whoever is so long at one job waits for a disk."""


class Background:
    """`submit` never blocks; `say` gets one line when a fault begins or ends, from the thread."""

    def __init__(self, *, say: Callable[[str], None], room: int = ROOM, stalled_s: float = STALLED_S) -> None:
        self._say, self._stalled_s = say, stalled_s
        self._jobs: queue.Queue[tuple[str, Callable[[], object]] | None] = queue.Queue(room)
        self._closed = False
        self.dropped: Counter[str] = Counter()
        """Jobs that found the queue full, by name."""
        self._faults: dict[str, str] = {}
        self._at_work: tuple[str, float] | None = None
        """On which job, and since when."""
        self._thread = threading.Thread(target=self._work, name="background", daemon=True)
        self._thread.start()

    def submit(self, name: str, job: Callable[[], object]) -> bool:
        """Run `job` soon. False: it was dropped, because the disk does not keep up or the end has come."""
        try:
            if self._closed:
                raise queue.Full
            self._jobs.put_nowait((name, job))
        except queue.Full:
            self.dropped[name] += 1
            return False
        return True

    def faults(self) -> dict[str, str]:
        """What is wrong at present, by name of the job; one that hangs has not failed yet."""
        found, at_work = self._faults.copy(), self._at_work
        if at_work is not None and time.monotonic() - at_work[1] >= self._stalled_s:
            name = at_work[0]
            found[name] = f"cannot write the {name}: its disk or file system does not answer (dmesg)"
        return found

    def close(self, deadline: float) -> bool:
        """Finish what waits within `deadline` seconds; False if that was too short. May be called twice."""
        self._closed = True
        try:
            self._jobs.put(None, timeout=deadline)  # a second one is not looked at any more
        except queue.Full:
            return False
        self._thread.join(deadline)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            try:
                item = self._jobs.get(timeout=IDLE_S)
            except queue.Empty:
                continue
            if item is None:
                return
            name, job = item
            self._at_work = name, time.monotonic()
            try:
                job()
            except OSError as error:
                self._fault(name, f"cannot write the {name}: {error}")
            except Exception as error:  # noqa: BLE001 - a bug in one job must not end the others
                self._fault(name, f"internal error: cannot write the {name}: {error!r}")
            else:
                if self._faults.pop(name, ""):
                    self._say(f"the {name} is written again")
            self._at_work = None

    def _fault(self, name: str, words: str) -> None:
        if name not in self._faults:
            self._say(words)
        self._faults[name] = words
