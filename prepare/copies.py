"""Copies of a binding's mounts in other mount namespaces, a container's above all: looked for once for all.

A look goes by every process of the machine. So mounts say what they look like when they are taken off, and
the first of them that has to know looks for all.
"""

from collections.abc import Sequence

from xce.linux import holders
from xce.linux.holders import Holder, Sought


class Copies:
    """Of one binding."""

    def __init__(self) -> None:
        self._off: dict[str, Sought] = {}
        self._found: dict[str, list[Holder]] | None = None

    def off(self, sought: Sought) -> None:
        """It has been taken off here."""
        self._off[sought.point] = sought

    def of(self, sought: Sought) -> Sequence[Holder]:
        """Who has copies of a mount that is off."""
        if self._found is None or sought.point not in self._off:
            self.off(sought)
            self._found = holders.of_copies(list(self._off.values()))
        return self._found.get(sought.point, [])

    def look_anew(self) -> None:
        """Somebody may have let go since, and nobody can have got one."""
        self._found = None
