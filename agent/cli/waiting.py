"""Looking at something again and again, for commands that have no loop."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_LOOK_S = 0.02


def until(look: Callable[[], T | None], seconds: float) -> T | None:
    """What `look` gives; None when it has given nothing for so long."""
    end = time.monotonic() + seconds
    while (found := look()) is None and time.monotonic() < end:
        time.sleep(_LOOK_S)
    return found
