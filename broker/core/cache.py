"""The last known readings, on their way to and from the cache file that survives a restart.

Not durable and not trusted more than it should be: a cache that is missing costs nothing but the sight of old
values. Times in it are of its writer's monotonic clock; the reader shifts them by what the store found out
about the time between the two, so that nothing gets younger.
"""

import msgspec

from xce.broker.core.location import Feed, Host, Location
from xce.broker.core.state import State
from xce.model.instance import InventoryRef
from xce.model.message import ReporterState
from xce.model.supply import HostState
from xce.model.value import Absent, Reading


class CachedFeed(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A feed."""

    reporter: str
    run: int = 0
    born_s: float = 0
    """By the monotonic clock of whoever wrote it."""
    values: dict[str, Reading] = {}
    refused: dict[str, Reading] = {}
    state: ReporterState | None = None


class CachedPlace(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A location."""

    key: str
    state: str = ""
    silent: bool = False
    agent: dict[str, str] = {}
    where: str = ""
    feeds: list[CachedFeed] = []


class CachedBodies(msgspec.Struct, kw_only=True):
    """Inventories of a location, in a file of their own, since they are large and change seldom."""

    key: str
    refs: dict[str, InventoryRef]
    bodies: dict[str, bytes]


def cached(place: Location) -> CachedPlace:
    """What is kept of a location."""
    host = place if isinstance(place, Host) else None
    feeds = [
        CachedFeed(
            reporter=feed.reporter,
            run=feed.run,
            born_s=feed.born,
            values={
                name: place.overlay[name] if name in place.overlay else place.values[name]
                for name in feed.names
            },
            refused={name: value for name, (value, _) in feed.refused.items()},
            state=feed.state,
        )
        for feed in place.feeds.values()
    ]
    return CachedPlace(
        key=place.key,
        state=host.state.value if host else "",
        silent=host.silent if host else False,
        agent=host.agent if host else {},
        where=host.where if host else "",
        feeds=feeds,
    )


def restore(state: State, place: CachedPlace, *, shift_s: float, now: float, same_types: bool) -> None:
    """Put a cached location back, if the map still has a place for it.

    `shift_s` is to be added to the writer's monotonic times to make them ours. `same_types`: the values were
    taken under the types that hold now, and need not be judged again.
    """
    found = state.supply.locations.get(place.key)
    if found is None or (isinstance(found, Host) and found.state is HostState.RELEASED):
        return
    for cached_feed in place.feeds:
        feed = state.intake.feed(found, cached_feed.reporter)
        feed.run, feed.born = cached_feed.run, min(now, cached_feed.born_s + shift_s)
        feed.state = cached_feed.state
        _restore_values(state, found, feed, cached_feed, shift_s=shift_s, now=now, trusted=same_types)
        state.intake.show_state(found, feed)
    if isinstance(found, Host):
        found.agent, found.where = place.agent, place.where
        was = HostState(place.state)
        state.hosts.restored(found, state=HostState.LOST if place.silent else was)
    state.freshness.age(found, now)


def _restore_values(
    state: State,
    place: Location,
    feed: Feed,
    cached: CachedFeed,
    *,
    shift_s: float,
    now: float,
    trusted: bool,
) -> None:
    """Values as they were, with the times of absent ones made ours; what was refused is judged anew."""
    shift_ms = int(shift_s * 1000)
    values = {
        name: msgspec.structs.replace(value, since_ms=value.since_ms + shift_ms)
        if isinstance(value, Absent)
        else value
        for name, value in cached.values.items()
    }
    if not (trusted and state.reports.adopt(place, feed, values, trusted=True)):
        state.intake.take(place, feed.reporter, dict(cached.values), now)
        for name, value in values.items():
            if isinstance(value, Absent) and name in feed.names:
                state.supply.set_value(place, name, value)
    if cached.refused:
        state.intake.take(place, feed.reporter, dict(cached.refused), now)


def cached_bodies(place: Location) -> CachedBodies:
    """A location's inventories, with the references that belong to just these bodies."""
    refs = {name: ref for name, ref in place.view.inventories.items() if name in place.bodies}
    return CachedBodies(key=place.key, refs=refs, bodies={name: place.bodies[name] for name in refs})


def restore_bodies(state: State, cached: CachedBodies) -> None:
    """Put inventories back; an agent that has newer ones says so in its hello."""
    found = state.supply.locations.get(cached.key)
    if isinstance(found, Host) and found.state is not HostState.RELEASED:
        for reporter, ref in cached.refs.items():
            found.bodies[reporter] = cached.bodies[reporter]
            state.supply.set_entry(found, "inventories", reporter, ref)
