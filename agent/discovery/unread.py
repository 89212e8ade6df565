"""Since when each source of a machine has not been read, and which have waited too long. Pure."""

from collections.abc import Collection

from xce.agent.probe.frame import KERNEL, NVIDIA

SOURCES = (KERNEL, NVIDIA)


class Unread:
    """`limit`: seconds after which what a source said is not known any more."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._since: dict[str, float] = {}
        self._late: set[str] = set()

    def wanted(self, now: float) -> None:
        """All sources are to be read from now on."""
        for one in SOURCES:
            self._since.setdefault(one, now)

    def read(self, now: float, *, without: Collection[str], rest: bool) -> None:
        """They have been read, `without` some. `rest`: and need not be for a good while."""
        for one in SOURCES:
            if one not in without:
                self._late.discard(one)
                if rest:
                    self._since.pop(one, None)
                else:
                    self._since[one] = now

    def due(self) -> float | None:
        """When `late` may have something."""
        waiting = [since for one, since in self._since.items() if one not in self._late]
        return min(waiting) + self.limit if waiting else None

    def late(self, now: float) -> list[str]:
        """Sources that have just waited too long; each is told once."""
        late = [
            one for one, since in self._since.items() if one not in self._late and now >= since + self.limit
        ]
        self._late.update(late)
        return late
