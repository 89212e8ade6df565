"""Following the broker's changes in a command, for as long as somebody reads on."""

import time
from collections.abc import Iterator

from xce.broker.client import Event, Watch
from xce.wire.ending import need_reader

LOOK_S = 1.0
"""Between two looks whether there still is a reader."""


def events(watch: Watch, seconds: float | None) -> Iterator[Event]:
    """What comes, until the time is over; None: for ever. Raises BrokenPipeError when the reader has left."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while (left := LOOK_S if deadline is None else deadline - time.monotonic()) > 0:
        need_reader()
        if (event := watch.next(min(left, LOOK_S))) is not None:
            yield event
