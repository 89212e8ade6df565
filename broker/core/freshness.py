"""The one rule of freshness, as the broker keeps it: what turns stale, and what is a value again."""

import math

import msgspec

from xce.broker.core.location import NEVER, Feed, Location
from xce.broker.core.supply import SupplyMap
from xce.broker.core.types import Types
from xce.model.value import Absent, settle

UNKNOWN_TTL_S = 120.0
"""For a feed whose reporter's state has not come yet."""


class Freshness:
    """Ages the readings of a supply map."""

    def __init__(self, supply: SupplyMap, types: Types) -> None:
        self._supply = supply
        self.types = types
        """Those that hold now."""

    def heard(self, place: Location, ages_ms: dict[str, int], now: float) -> None:
        """Feeds were refreshed without a change."""
        for reporter, age_ms in ages_ms.items():
            feed = place.feeds.get(reporter)
            if feed is not None:
                feed.born = now - age_ms * 0.001
        if place.overlay:
            self.revive(place, now)

    def revive(self, place: Location, now: float) -> None:
        """Readings whose feed was refreshed are values again."""
        for feed in place.feeds.values():
            age_s, otherwise = now - feed.born, _ttl_s(feed)
            for name in feed.names:
                if name in place.overlay and age_s <= self.types.ttls.get(name, otherwise):
                    self._supply.set_value(place, name, place.overlay.pop(name))
                    feed.plain = None
                    place.expires = 0.0

    def age(self, place: Location, now: float) -> None:
        """Turn stale what is too old, and find when to look again (`Location.expires`)."""
        following, ttls, values = NEVER, self.types.ttls, place.values
        for feed in place.feeds.values():
            born, otherwise = feed.born, _ttl_s(feed)
            due = now - born
            for name in feed.names:
                ttl_s = ttls.get(name, otherwise)
                if due <= ttl_s:
                    if born + ttl_s < following and values[name].__class__ is not Absent:
                        following = born + ttl_s
                elif values[name].__class__ is not Absent:
                    self._settle(place, feed, name, now, ttl_s=ttl_s)
        # A hair later, so that a feed which expires just then is over its time when it is looked at.
        place.expires = math.nextafter(following, NEVER)

    def _settle(self, place: Location, feed: Feed, name: str, now: float, *, ttl_s: float) -> None:
        """A reading's time is over."""
        reading = place.values[name]
        fault = feed.state.cause if feed.state else ""
        seen = settle(reading, age_ms=(now - feed.born) * 1000, ttl_ms=ttl_s * 1000, fault=fault)
        if isinstance(seen, Absent):
            place.overlay[name] = reading
            feed.plain = None
            over = msgspec.structs.replace(seen, since_ms=int((feed.born + ttl_s) * 1000))
            self._supply.set_value(place, name, over)


def _ttl_s(feed: Feed) -> float:
    """Time to live of a feed's readings whose type has none, in seconds."""
    state = feed.state
    return state.ttl_ms * 0.001 if state is not None and state.ttl_ms else UNKNOWN_TTL_S
