"""Which of two threads has the loop: its own, or for a while the store's.

Between threads that sleep, each word takes as long as all that the loop does with an order. So an order that
comes alone is lent to the store's thread together with the loop: it records the order, answers it, and takes
the next one, while the loop's own thread sleeps. It gives the loop back as soon as there is anything else to
do. While it waits for the disk it has put the loop down, and where that takes long the loop's own thread
takes it up again: a disk that hangs stops nobody.
"""

import threading
import time
from collections.abc import Callable

PATIENCE_S = 0.01
"""So long the disk may keep the loop waiting."""


class Turns:
    """The loop's own thread has it from the start. Who has it, alone touches what the loop owns."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard, self._back = threading.Lock(), threading.Event()
        self._free, self._free_since = False, 0.0
        """It is lent, and put down at present."""

    def lend(self, begin: Callable[[], object]) -> None:
        """Lend it to the thread that `begin` sets to work; returns when it is back."""
        self._back.clear()
        with self._guard:  # who is set to work may be done before it is put down here
            begin()
            self.put_down()
        while not (self._back.wait(PATIENCE_S) or self._overdue()):
            pass

    def _overdue(self) -> bool:
        """Take it up again when the other thread has waited for the disk too long."""
        return self._clock() - self._free_since >= PATIENCE_S and self.take_up()

    def take_up(self) -> bool:
        """Have it, if it is lent and nobody has it."""
        with self._guard:
            free, self._free = self._free, False
        return free

    def put_down(self) -> None:
        """Leave it to whoever takes it up first."""
        self._free_since = self._clock()
        self._free = True

    def give_back(self) -> None:
        """The loop's own thread has it from here on."""
        self._back.set()
