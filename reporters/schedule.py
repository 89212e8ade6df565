"""When a reporter runs. Pure arithmetic on a monotonic clock in seconds.

Runs lie on a grid: `phase + n * interval`. The phase comes from host and reporter, so that a fleet is spread
and the same node always runs at the same moments. A late or long run moves nothing: the next one is on the
grid again.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

LONGEST_BACKOFF = 900.0
"""Seconds; a reporter with a longer interval waits its interval."""
SPREAD = 0.25
"""Share of a back-off that is random, on top."""
FIRST_WITHIN = 1.0
"""Seconds in which a node's reporters start for the first time."""


def phase(host: str, reporter: str, interval: float) -> float:
    """Where on the grid this reporter of this host runs: seconds in [0, interval), always the same."""
    digest = hashlib.blake2b(f"{host}\0{reporter}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 * interval


def next_run(now: float, interval: float, offset: float) -> float:
    """The first point of the grid that is later than `now`."""
    number = math.floor((now - offset) / interval) + 1
    point = offset + number * interval
    return point if point > now else point + interval  # rounding can land on `now` itself


def first_run(now: float, interval: float, offset: float) -> float:
    """When a new or changed reporter runs first: at once, spread over at most `FIRST_WITHIN` seconds."""
    return now + min(FIRST_WITHIN, interval / 2) * (offset / interval)


def overruns(started: float, now: float, interval: float, offset: float) -> int:
    """How many points of the grid passed while a run that began at `started` was still going on."""
    first = next_run(started + interval / 2, interval, offset)
    return 0 if now < first else math.floor((now - first) / interval) + 1


def backoff(failures: int, interval: float, random: Callable[[], float]) -> float:
    """Seconds until the next try after `failures` (from 1) in a row: interval, 2, 4, ... times it, jittered.

    Never shorter than the interval, so that a broken reporter costs no more than a good one. `random` gives
    numbers in [0, 1).
    """
    longest = max(interval, LONGEST_BACKOFF)
    base = min(interval * 2.0 ** min(failures - 1, 30), longest)
    return base * (1 + SPREAD * random())


def time_to_live(interval: float, timeout: float) -> float:
    """Seconds after which a reporter's values are stale, unless a type says otherwise."""
    return interval + timeout


def effective_interval(own: float | None, default: float, of_types: Iterable[float | None]) -> float:
    """Seconds between two runs: the shortest that its types ask for, else NAME.yaml's, else the default."""
    asked = [interval for interval in of_types if interval is not None]
    return min(asked) if asked else own if own is not None else default


class Waiting(msgspec.Struct, frozen=True):
    """A reporter whose time has come."""

    name: str
    weight: int
    due: float


def admit(waiting: Sequence[Waiting], *, running: int, budget: int) -> list[str]:
    """Who of the waiting may start now; `running` is the sum of the weights of runs in progress.

    The longest due goes first and nobody overtakes it, so that a heavy one is not starved by light ones. One
    that is heavier than the whole budget runs alone.
    """
    admitted = []
    for one in sorted(waiting, key=lambda item: (item.due, item.name)):
        if running and running + one.weight > budget:
            break
        running += one.weight
        admitted.append(one.name)
    return admitted
