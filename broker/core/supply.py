"""The supply map: all locations, and the one way to change what controllers see of them.

Every change goes through here, so that three things are always true: a snapshot that is being sent keeps its
instant (`keep`), the bytes of a changed location are encoded anew, and the delta of the turn has every
change. Counts of readings by presence are kept as they change.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from xce.broker.core.location import Host, Location, Readings, View
from xce.model.message import LocationChange, Quality
from xce.model.supply import Condition, LocationKind, Source, location
from xce.model.value import LARGEST_INTEGER, Absent, Presence, Reading, presence_of

_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
_FIELDS = ("source", "state", "conditions", "holds", "groups", "about")
_COUNTED = frozenset({"state", "conditions"})
_MAPS = ("reporters", "inventories", "amounts", "quarantined")


class SupplyMap:
    """All locations by key; hosts a second time by name, the others a second time by key."""

    def __init__(self) -> None:
        self.locations: dict[str, Location] = {}
        self.hosts: dict[str, Host] = {}
        self.places: dict[str, Location] = {}
        """Everything but hosts, by key."""
        self.turn: list[Location] = []
        """Locations that changed in this turn."""
        self.removed: list[str] = []
        """Keys of locations that were removed in this turn and were there at its begin."""
        self.keep: Callable[[Location], None] | None = None
        """Called before a location changes, while a snapshot is being sent."""
        self._presences = dict.fromkeys(Presence, 0)
        self._states: Counter[str] = Counter()
        """Hosts by the state that their view shows."""
        self._rejoining = 0
        """Hosts whose view says so."""

    # ------------------------------------------------------------------------------------- locations

    def host(self, name: str, source: Source) -> Host:
        """The host of this name; made if it is not there."""
        host = self.hosts.get(name)
        if host is None:
            key = location(LocationKind.HOST, name)
            host = self.hosts[name] = Host(name, key, source)
            self._add(host)
            self._count(host, 1)
        return host

    def place(self, kind: LocationKind, name: str, source: Source, state: str) -> Location:
        """The group, pool or storage of this name; made if it is not there."""
        key = location(kind, name)
        place = self.locations.get(key)
        if place is None:
            place = self.places[key] = Location(kind, name, key, source, state)
            self._add(place)
        return place

    def remove(self, place: Location) -> None:
        """Take a location out of the map."""
        self.touch(place)
        for reading in place.values.values():
            self._presences[presence_of(reading)] -= 1
        del self.locations[place.key]
        if isinstance(place, Host):
            self._count(place, -1)
            del self.hosts[place.name]
        else:
            del self.places[place.key]
        self.turn.remove(place)
        place.dirty = False
        if place.news is None or "new" not in place.news:
            self.removed.append(place.key)

    def _add(self, place: Location) -> None:
        self.locations[place.key] = place
        place.news = {"new": True}
        place.dirty = True
        self.turn.append(place)

    # --------------------------------------------------------------------------------------- changes

    def touch(self, place: Location) -> None:
        """To be called before a location changes."""
        if self.keep is not None:
            self.keep(place)
        place.packed = place.text = None
        if not place.dirty:
            place.dirty = True
            self.turn.append(place)

    def set(self, place: Location, **fields: Any) -> bool:
        """Set fields of the view other than values; True if one of them is different now."""
        view, changed = place.view, False
        for name, value in fields.items():
            if getattr(view, name) != value:
                self.touch(place)
                counted = place if isinstance(place, Host) and name in _COUNTED else None
                self._count(counted, -1)
                setattr(view, name, value)
                self._count(counted, 1)
                news = place.news = place.news if place.news is not None else {}
                news[name] = value
                changed = True
        return changed

    def set_entry(self, place: Location, field: str, key: str, value: Any) -> None:
        """Set or (None) remove one entry of one of `_MAPS`."""
        entries: dict[str, Any] = getattr(place.view, field)
        if entries.get(key) == value:
            return
        self.touch(place)
        if value is None:
            del entries[key]
        else:
            entries[key] = value
        news = place.news = place.news if place.news is not None else {}
        news.setdefault(field, {})[key] = value

    def set_value(self, place: Location, name: str, reading: Reading | None) -> None:
        """Set or (None) remove a reading."""
        old = place.values.get(name)
        if reading is None and old is None:
            return
        self.touch(place)
        if old is not None:
            self._presences[presence_of(old)] -= 1
        if reading is None:
            del place.values[name]
        else:
            self._presences[presence_of(reading)] += 1
            place.values[name] = reading
        if place.pending is None:
            place.pending = {}
        elif place.pending is place.values:
            place.pending = {**place.values}
        place.pending[name] = reading
        if reading is None and place.news is None:
            place.news = {}  # no longer readings alone

    def put_values(self, place: Location, readings: Readings) -> None:
        """New values for names that have values already: counts stay, and `touch` is written out for speed.

        `readings` is the map's from now on.
        """
        if self.keep is not None:
            self.keep(place)
        if len(readings) == len(place.values):
            place.values = place.view.values = readings  # type: ignore[assignment] # all: nothing is copied
        else:
            place.values.update(readings)  # type: ignore[arg-type]
        if place.pending is None:
            place.pending = readings
        else:
            place.pending.update(readings)
        place.packed = place.text = None
        if not place.dirty:
            place.dirty = True
            self.turn.append(place)

    def add_values(self, place: Location, values: Mapping[str, Reading | None]) -> None:
        """Add readings of names that the place does not have yet."""
        self.touch(place)
        place.values.update(values)  # type: ignore[arg-type]
        absent = [value for value in values.values() if isinstance(value, Absent)]
        self._presences[Presence.VALUE] += len(values) - len(absent)
        for reading in absent:
            self._presences[reading.presence] += 1
        if place.pending is None:
            place.pending = dict(values)
        else:
            place.pending.update(values)

    # --------------------------------------------------------------------------------------- reading

    def packed(self, place: Location) -> bytes:
        """A location's key and view as they stand in a snapshot, encoded only if they changed since the last
        time.
        """
        if place.packed is None:
            place.packed = entry_of(place.key, place.view, json=False)
        return place.packed

    def text(self, place: Location) -> bytes:
        """The same in JSON."""
        if place.text is None:
            place.text = entry_of(place.key, place.view, json=True)
        return place.text

    def take_turn(self) -> tuple[dict[str, Readings], dict[str, LocationChange], list[str]]:
        """What has changed since the last call: readings alone, changes of more than that, keys that are
        gone.
        """
        values: dict[str, Readings] = {}
        changes: dict[str, LocationChange] = {}
        for place in self.turn:
            if place.news is None:
                values[place.key] = place.pending or {}
            else:
                changes[place.key] = _change(place, place.news)
        removed = self.removed
        self.forget_turn()
        return values, changes, removed

    def forget_turn(self) -> None:
        """Tell nobody what has changed: nobody follows yet, or everybody has been told."""
        for place in self.turn:
            place.dirty, place.pending, place.news = False, None, None
        self.turn, self.removed = [], []

    def quality(self) -> Quality:
        """Counts of readings by presence, and of hosts by state."""
        return Quality(
            value=self._presences[Presence.VALUE],
            unknown=self._presences[Presence.UNKNOWN],
            stale=self._presences[Presence.STALE],
            never_seen=self._presences[Presence.NEVER_SEEN],
            not_applicable=self._presences[Presence.NOT_APPLICABLE],
            hosts={state: count for state, count in sorted(self._states.items()) if count},
            rejoining=self._rejoining,
        )

    def _count(self, host: Host | None, step: int) -> None:
        """Count a host's view in or out."""
        if host is None:
            return
        self._states[host.view.state] += step
        self._rejoining += step * (Condition.REJOINING in host.view.conditions)

    def check(self, places: Iterable[Location] | None = None) -> None:
        """Assert what is always true; for tests."""
        counts = dict.fromkeys(Presence, 0)
        for place in self.locations.values() if places is None else places:
            assert place.values is place.view.values, place.key
            assert place.dirty == (place in self.turn), place.key
            for kept, json in ((place.packed, False), (place.text, True)):
                assert kept is None or kept == entry_of(place.key, place.view, json=json), place.key
            owned = [name for feed in place.feeds.values() for name in feed.names]
            assert len(owned) == len(set(owned)), place.key
            for feed in place.feeds.values():
                free = {
                    name
                    for name, one in feed.names.items()
                    if one and one[0] <= 0 and one[1] >= LARGEST_INTEGER
                }
                held = {name for name in free if place.values[name].__class__ in {int, float}}
                assert feed.plain is None or feed.plain == held, (place.key, feed.reporter, feed.plain)
            assert set(owned).isdisjoint(place.static), place.key
            assert set(place.overlay) <= set(owned), place.key
            for reading in place.values.values():
                counts[presence_of(reading)] += 1
        if places is None:
            assert counts == self._presences
            views = [host.view for host in self.hosts.values()]
            assert +self._states == Counter(view.state for view in views)
            assert self._rejoining == sum(Condition.REJOINING in view.conditions for view in views)


def entry_of(key: str, view: View, *, json: bool) -> bytes:
    """One entry of a snapshot's map of locations."""
    if json:
        return b"%b:%b" % (_encode_json(key), _encode_json(view))
    return _encode(key) + _encode(view)


def _change(place: Location, news: dict[str, Any]) -> LocationChange:
    """What changed at one location; a new one is told whole."""
    if "new" in news:
        view = place.view
        whole: dict[str, Any] = {name: getattr(view, name) for name in _FIELDS}
        maps: dict[str, Any] = {name: dict(getattr(view, name)) for name in _MAPS}
        return LocationChange(values=dict(view.values), **whole, **maps)
    return LocationChange(values=place.pending or {}, **news)
