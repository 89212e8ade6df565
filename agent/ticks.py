"""Feeds in as few messages as they fit in. Pure."""

from collections.abc import Iterable

import msgspec

from xce.model.message import TICK_BYTES, FeedTick
from xce.model.value import Absent, Reading


def in_ticks(feeds: Iterable[FeedTick], limit: int = TICK_BYTES * 3 // 4) -> list[list[FeedTick]]:
    """Feeds in as few lists as messages are needed, in order; a large feed is spread over several.

    Always at least one list: an empty full report says that the table is empty. `limit` is compared with a
    generous estimate of the encoded size.
    """
    parts: list[list[FeedTick]] = [[]]
    room = limit
    for feed in feeds:
        piece: dict[str, Reading | None] = {}
        room -= len(feed.reporter) + 32
        for name, reading in feed.values.items():
            size = len(name) + _size(reading)
            if room < size and (piece or parts[-1]):
                if piece:
                    parts[-1].append(msgspec.structs.replace(feed, values=piece))
                parts.append([])
                piece, room = {}, limit - len(feed.reporter) - 32
            piece[name] = reading
            room -= size
        if piece or not feed.values:
            parts[-1].append(msgspec.structs.replace(feed, values=piece) if piece != feed.values else feed)
    return parts


def _size(reading: Reading | None) -> int:
    """No less than the bytes that a reading takes in MessagePack."""
    if isinstance(reading, str):
        return 4 * len(reading) + 8
    if isinstance(reading, list):
        return sum(4 * len(item) + 8 for item in reading) + 8
    if isinstance(reading, Absent):
        return 32 + 4 * len(reading.cause) + (_size(reading.last) if reading.last is not None else 0)
    return 16
