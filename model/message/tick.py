"""Ticks: what an agent sends all day, positional, in MessagePack alone."""

from typing import TypeAlias

import msgspec

from xce.model.value import Count, Reading


class FeedTick(msgspec.Struct, frozen=True, array_like=True):
    """What one reporter has new."""

    reporter: str
    run: Count
    age_ms: Count
    """Age of its last good frame."""
    values: dict[str, Reading | None] = {}
    """Only what changed; None: withdrawn."""


class Report(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """Changed readings of one tick, all reporters in one message."""

    sequence: Count
    """Counts the ticks of one connection from 1; a gap makes the broker ask for everything."""
    feeds: list[FeedTick]
    full: bool = False
    """The whole table: whatever is not in it is withdrawn."""


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    """Alive; answered with `Pulse`. Shares the sequence of `Report`."""

    sequence: Count
    ages_ms: dict[str, Count]
    """Reporter to age of its last good frame; ageing alone makes no delta."""
    digest: str = ""
    """`model.value.digest` of the whole table, now and then; '' when left out."""


Tick: TypeAlias = Report | Heartbeat
