"""How thick messages come to the loop, and whether it pays to rest between its turns."""

BUSY_PER_S, CROWDED_PER_S = 200, 30_000
"""Messages per second between which the loop rests between turns."""
PACE_S = 0.05
"""Over which the rate is measured."""


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
