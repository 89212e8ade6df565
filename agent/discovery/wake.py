"""What starts a probe that does not stay resident: something happened to links or devices.

The sockets are not read while a wake-up is under way, so a storm of events costs nothing. Events that lead to
readings without news (a node that starts containers) make the pauses longer, up to a bound.
"""

from collections.abc import Callable

from xce.linux import netlink
from xce.linux.loop import Loop, Timer

LONGEST_CALM_S = 60.0
"""Between two readings that events ask for and that bring no news; or `calm`, if that is longer."""


class Wakeup:
    """Calls `wake()` `settle` seconds after an event, and not again within `calm` seconds.

    `sockets` makes those that are listened on.
    """

    def __init__(
        self,
        loop: Loop,
        wake: Callable[[], object],
        *,
        settle: float,
        calm: float,
        sockets: Callable[[], list[netlink.Netlink]] = netlink.both,
    ) -> None:
        self._loop, self._wake, self._settle, self._calm = loop, wake, settle, calm
        self._make = sockets
        self._pause, self._last = calm, loop.now() - calm
        self._sockets: list[netlink.Netlink] = []
        self._timer: Timer | None = None
        self.count = 0
        """Wake-ups so far."""

    def open(self) -> None:
        """Listen from now on; nothing if it does."""
        if not self._sockets:
            self._sockets = self._make()
            self._listen()

    def close(self) -> None:
        """Listen no more; may be called twice."""
        self._deafen()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for one in self._sockets:
            one.close()
        self._sockets = []

    def learned(self, *, news: bool) -> None:
        """Whether the reading that came of the last wake-up brought news."""
        self._pause = self._calm if news else min(self._pause * 2, max(LONGEST_CALM_S, self._calm))

    def _listen(self) -> None:
        for one in self._sockets:
            self._loop.add_reader(one.fileno(), self._came)

    def _deafen(self) -> None:
        for one in self._sockets:
            self._loop.remove_reader(one.fileno())

    def _came(self) -> None:
        if self._timer is None:
            self._deafen()
            when = max(self._loop.now() + self._settle, self._last + self._pause)
            self._timer = self._loop.call_at(when, self._fire)

    def _fire(self) -> None:
        self._timer = None
        for one in self._sockets:
            one.drain()
        self._listen()
        self._last = self._loop.now()
        self.count += 1
        self._wake()
