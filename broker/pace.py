"""When the loop does what it has to do: whether it rests between turns, what may wait, and how much it takes
at once. Pure.

Who gives an order waits for the disk and for us; who follows does not wait. So while nothing comes but
orders, and what the store says to them, what is durable about claims is taken up and published later: when
somebody asks something, when nothing comes for a moment, or when that has gone on for some moments.
"""

BUSY_PER_S, CROWDED_PER_S = 200, 30_000
"""Messages per second between which the loop rests between turns."""
PACE_S = 0.05
"""Over which the rate is measured."""
SLOW_S = 0.05
"""For a portion of messages."""
PUT_OFF_MS, AT_MOST_MS = 1, 3
"""So long followers wait for what has become durable, if nothing comes; and if orders come all the while."""


class Pace:
    """How many messages come, over the last moments."""

    def __init__(self, now: float) -> None:
        self._since, self._count, self._fast = now, 0, False

    def fast(self, taken: int, now: float) -> bool:
        """Whether they come so thick that a rest pays."""
        self._count += taken
        passed = now - self._since
        if passed >= PACE_S:
            self._fast = BUSY_PER_S <= self._count / passed < CROWDED_PER_S
            self._since, self._count = now, 0
        return self._fast


class Portion:
    """How many messages are taken before anybody else is looked at: `most`, unless they are slow ones.

    One connection can send what takes a hundred times as long as a report. Connections take turns in a
    portion, so the smaller it is, the sooner the others have theirs. It grows again by a quarter at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = self.size = most

    def took(self, count: int, seconds: float) -> None:
        """So many took so long."""
        if seconds > SLOW_S:
            self.size = max(1, int(count * SLOW_S / seconds))
        elif count >= self.size:
            self.size = min(self._most, self.size + self.size // 4 + 1)


class Owed:
    """What followers are still to hear of."""

    def __init__(self) -> None:
        self.due = 0.0
        """When they hear at the latest of what has become durable; 0: they know of all."""

    def durable(self, now: float) -> None:
        """Something has become durable."""
        self.due = self.due or now + AT_MOST_MS / 1000

    def at_once(self, now: float) -> None:
        """They hear of it in this turn."""
        self.due = self.due or now

    def may_wait(self, *, taken: int, orders: int, answered: bool, now: float) -> bool:
        """Whether a turn ends without publishing: all that was taken are orders for the disk, or the disk
        has answered some.
        """
        return taken == orders and (taken > 0 or answered) and not 0 < self.due <= now

    def paid(self) -> None:
        """They know of all."""
        self.due = 0.0
