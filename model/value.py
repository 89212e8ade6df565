"""Values, and the five ways in which a value can be there or not.

A *reading* is what a holder keeps of one resource at one location: a `Value`, or an `Absent` that says why
there is none. Ages travel and are measured with monotonic clocks; wall time is never compared.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from hashlib import blake2b
from typing import Annotated, TypeAlias

import msgspec

Value: TypeAlias = bool | int | float | str | list[str]
"""numeric: int or finite float · boolean · string · string-set: sorted list without repeats."""

_canonical = msgspec.json.Encoder(order="deterministic").encode

LARGEST_INTEGER = 2**63 - 1
"""Integers beyond this cannot travel in MessagePack and are refused where they enter."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A whole number that a peer says and others are told: JSON could bring one that MessagePack cannot carry."""


class Presence(StrEnum):
    """Why a reader sees a value, or sees none."""

    VALUE = "value"
    UNKNOWN = "unknown"
    """The reporter said so, or its last run failed and the older value's time is over."""
    STALE = "stale"
    """Not refreshed within its time to live, and nobody knows why."""
    NEVER_SEEN = "never-seen"
    """Declared for this location, and nothing has been heard yet."""
    NOT_APPLICABLE = "not-applicable"
    """The reporter said that the resource has no meaning here (exit status 78)."""


class Absent(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A reading without a value."""

    presence: Presence
    cause: str = ""
    last: Value | None = None
    """The last good value, for types whose `when_stale` is `hold-last`, and for people."""
    since_ms: int = 0
    """Monotonic clock of whoever holds the reading, in ms; 0 on the way from agent to broker."""


Reading: TypeAlias = bool | int | float | str | list[str] | Absent


def presence_of(reading: Reading) -> Presence:
    """The presence of one reading."""
    return reading.presence if isinstance(reading, Absent) else Presence.VALUE


def settle(reading: Reading, *, age_ms: float, ttl_ms: float, fault: str) -> Reading:
    """What a reader sees of a held reading once its age is counted: the one rule of freshness.

    Agent and broker both use it. `age_ms` is the age of the reporter's last good frame, `fault` what is wrong
    with the reporter's newer runs ('' when nothing is known). An absent reading does not age.
    """
    if isinstance(reading, Absent) or age_ms <= ttl_ms:
        return reading
    if fault:
        return Absent(Presence.UNKNOWN, cause=fault, last=reading)
    return Absent(Presence.STALE, cause=f"not refreshed within {ttl_ms / 1000:g} s", last=reading)


def digest(table: Mapping[str, Mapping[str, Reading]]) -> str:
    """16 hex digits over the canonical form of a table: reporter to name to reading.

    Equal tables have equal digests on every machine: names sorted, `since_ms` and `last` left out, reporters
    without names too. Who gives a name is a part of it, since age and fault are the reporter's.
    """
    plain = {
        reporter: {
            name: [reading.presence.value, reading.cause] if isinstance(reading, Absent) else [reading]
            for name, reading in readings.items()
        }
        for reporter, readings in table.items()
        if readings
    }
    return digest_of(plain)


def digest_of(plain: object) -> str:
    """16 hex digits over the canonical JSON of plain data."""
    return blake2b(_canonical(plain), digest_size=8).hexdigest()


def is_finite(value: float) -> bool:
    """Whether a number can be kept: finite, and an integer that fits in 64 bits."""
    if isinstance(value, int):
        return -LARGEST_INTEGER <= value <= LARGEST_INTEGER
    return math.isfinite(value)
