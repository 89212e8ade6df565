"""Block devices and their partitions, as sysfs has them; all by number (`8:1`)."""

import os
from collections.abc import Callable


def whole(sys: str = "/sys") -> Callable[[str], str]:
    """Gives the disk that a partition is a part of; for anything else '', also what cannot be read."""

    def disk(number: str) -> str:
        place = f"{sys}/dev/block/{number}"
        try:
            if not os.path.exists(f"{place}/partition"):
                return ""
            with open(f"{os.path.realpath(place)}/../dev", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    return disk
