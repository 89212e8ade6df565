"""How often a library may be asked, from what its calls were seen to cost.

Pure. Each call has a nominal interval. As long as all of them together take less than `share` of the time,
they keep it; if not, the expensive ones become rarer until they fit, and the cheap ones stay as they are:
every call gets the same part of the time at the most. No call becomes rarer than `longest_s`, since what is
never asked is never known; a library that is too slow even so takes more than its share, as the meters show.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

SMOOTH = 0.3
"""Weight of the newest measurement in the mean."""


class Cost(StrEnum):
    """How often a call is asked, if nothing holds it back."""

    STATIC = "static"
    """Once for each set of handles: what does not change without a new driver or a reset."""
    SLOW = "slow"
    FAST = "fast"


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What is allowed."""

    share: float = 0.02
    """Of the time, for all calls together."""
    fast_s: float = 10.0
    slow_s: float = 60.0
    longest_s: float = 600.0


class Meter(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one call, summed over the GPUs of one reading."""

    name: str
    cost: Cost
    asked: int = 0
    """Readings in which it was asked."""
    failed: int = 0
    """Answers other than a value or "not supported"."""
    last_s: float = 0.0
    mean_s: float = 0.0
    worst_s: float = 0.0
    interval_s: float | None = None
    """How often it is asked at present; None: once."""


def measured(meter: Meter, seconds: float, failed: int) -> Meter:
    """The meter after one more reading. A first call that was slow is soon forgotten, a slow call is not."""
    mean = seconds if not meter.asked else meter.mean_s + SMOOTH * (seconds - meter.mean_s)
    return msgspec.structs.replace(
        meter,
        asked=meter.asked + 1,
        failed=meter.failed + failed,
        last_s=seconds,
        mean_s=min(mean, seconds) if meter.asked == 1 else mean,
        worst_s=max(meter.worst_s, seconds),
    )


def nominal(cost: Cost, budget: Budget) -> float | None:
    """The interval of a call that nothing holds back; None: once."""
    return {Cost.STATIC: None, Cost.SLOW: budget.slow_s, Cost.FAST: budget.fast_s}[cost]


def governed(meters: Iterable[Meter], budget: Budget) -> tuple[Meter, ...]:
    """The same meters with the interval that each call gets now."""
    meters = tuple(meters)
    wanted = {
        meter.name: meter.mean_s / every
        for meter in meters
        if (every := nominal(meter.cost, budget)) is not None
    }
    cap = _cap(sorted(wanted.values()), budget.share)
    return tuple(
        msgspec.structs.replace(meter, interval_s=_interval(meter, wanted, cap, budget)) for meter in meters
    )


def _cap(loads: list[float], share: float) -> float | None:
    """The part of the time that one call may take, so that all together take `share`; None: no need."""
    if sum(loads) <= share:
        return None
    left = share
    for position, load in enumerate(loads):
        part = left / (len(loads) - position)
        if load > part:
            return part
        left -= load
    return loads[-1]


def _interval(meter: Meter, wanted: dict[str, float], cap: float | None, budget: Budget) -> float | None:
    every = nominal(meter.cost, budget)
    if every is None or cap is None or wanted[meter.name] <= cap:
        return every
    return max(every, min(meter.mean_s / cap, budget.longest_s))
