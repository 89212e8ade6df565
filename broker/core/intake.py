"""What reporters say, taken into the map: the broker's hot path, and the one rule of freshness.

A reading is taken if its name is a declared type, belongs at such a place, may come from this reporter and
fits its kind and limits. What is refused costs its neighbours nothing, is counted, and is kept with its
reason, because it is a part of the table that the agent's digest covers.

`report` does for numbers that were there before what `_take` does for everything: together where the decoder
has checked them (`codec.PlainFeed`), otherwise one by one in 0.15 microseconds each.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from xce.broker.core.location import NEVER, Bounds, Feed, Location
from xce.broker.core.supply import SupplyMap
from xce.broker.core.types import Types
from xce.model.message import FeedTick, ReporterState
from xce.model.resource import Scope, normalise, value_problem
from xce.model.supply import NAME_BYTES, LocationKind
from xce.model.value import LARGEST_INTEGER, Absent, Presence, Reading, settle
from xce.model.value import digest as digest_of_readings
from xce.wire.codec import PlainFeed

UNKNOWN_TTL_S = 120.0
"""For a feed whose reporter's state has not come yet."""
REFUSED = 1024
"""Refused names that are kept per feed; more are only counted."""
FEEDS = 1024
"""Per place."""
CAUSE = 4096
"""Characters of an absence's cause."""
HEAVY, PLACE_HEAVY = 4096, 4 << 20
"""Characters of a reading from which on it counts as heavy, and of all readings of a place that takes one
more: a place must fit in a part of a snapshot."""

_SCOPES = {
    LocationKind.HOST: frozenset({Scope.HOST}),
    LocationKind.GROUP: frozenset({Scope.HOST_GROUP}),
    LocationKind.POOL: frozenset({Scope.POOL, Scope.EXTERNAL}),
    LocationKind.STORAGE: frozenset({Scope.POOL, Scope.EXTERNAL}),
}
STATIC = "static"
SETS = 10_000
_NUMBERS = frozenset({int, float})


class Intake:
    """Takes readings and reporters' states into a supply map."""

    def __init__(self, supply: SupplyMap, types: Types) -> None:
        self.supply, self.types = supply, types
        self.reports = 0
        self.values = 0
        """Readings that came in, changed or not."""
        self._sets: dict[frozenset[str], frozenset[str]] = {}
        self._layouts: dict[
            tuple[LocationKind, str, frozenset[str]], tuple[dict[str, Bounds | None], frozenset[str]]
        ] = {}
        """What is known of a reporter's set of names; good as long as the types are."""
        self.refused: Counter[str] = Counter()
        """Refused readings by reason."""

    def use(self, types: Types) -> None:
        """Judge by these types from now on; `look_again` is for what is held already."""
        self.types = types
        self._layouts.clear()

    # ---------------------------------------------------------------------------------------- reports

    def report(self, place: Location, feeds: Sequence[FeedTick], now: float) -> None:  # noqa: C901, PLR0912
        """Take one tick of a host's agent: only what changed since its last."""
        # One function on purpose: at this rate every call would be seen in the figures.
        known, count = place.feeds, 0
        changed: dict[str, Reading | None] = {}
        for tick in feeds:
            new = tick.values
            feed = known.get(tick.reporter)
            if feed is None:
                if len(known) >= FEEDS or len(tick.reporter) > NAME_BYTES:
                    self.refused["feed"] += len(new)
                    continue
                feed = self.feed(place, tick.reporter)
            feed.run = tick.run
            feed.born = now - tick.age_ms * 0.001
            count += len(new)
            if tick.__class__ is PlainFeed:
                if not feed.names and self.adopt(place, feed, new):
                    continue
                plain = feed.plain
                if plain is None:
                    plain = self._plain_names(place, feed)
                if plain.issuperset(new):
                    # Numbers for numbers: all of it is new, as its agent says. No name is in two feeds, so
                    # that the smaller one can go into the larger.
                    if len(new) > len(changed):
                        changed, new = new, changed
                    if new:
                        changed.update(new)
                    continue
            self._take_each(place, feed, new, changed, now)
        self.reports += 1
        self.values += count
        if changed:
            supply = self.supply
            if supply.keep is not None:
                supply.keep(place)
            if len(changed) == len(place.values):
                place.values.clear()  # all of them: filling an empty dict takes half the time
            place.values.update(changed)  # type: ignore[arg-type]
            place.packed = place.text = None
            if place.pending is None:
                place.pending = changed
            else:
                place.pending.update(changed)
            if not place.dirty:
                place.dirty = True
                supply.turn.append(place)
        if place.overlay:
            self.revive(place, now)

    def _take_each(
        self,
        place: Location,
        feed: Feed,
        new: dict[str, Reading | None],
        changed: dict[str, Reading | None],
        now: float,
    ) -> None:
        """Take readings of one feed: into `changed` what is as one would expect, the rest with a closer
        look.
        """
        values, bounds_of = place.values, feed.names.get
        for name, value in new.items():
            bounds = bounds_of(name)
            if bounds is not None and value.__class__ is (old := values[name]).__class__ is not Absent:
                if value == old:
                    continue
                if bounds[0] <= value <= bounds[1]:  # type: ignore[operator]
                    changed[name] = value
                    continue
            elif self._steady(feed, name, value, values.get(name)):
                if value.__class__ is not str or value != values[name]:
                    changed[name] = value
                continue
            changed.pop(name, None)
            self._take(place, feed, name, value, now)

    def _plain_names(self, place: Location, feed: Feed) -> frozenset[str]:
        """Find `Feed.plain`. Equal sets are one object: a thousand hosts' reports find it in the processor's
        cache.
        """
        found = frozenset(
            name
            for name, bounds in feed.names.items()
            if _is_open(bounds) and place.values[name].__class__ in _NUMBERS
        )
        if len(self._sets) > SETS:
            self._sets.clear()
        feed.plain = self._sets.setdefault(found, found)
        return feed.plain

    def _steady(self, feed: Feed, name: str, value: Reading | None, old: Reading | None) -> bool:
        """Whether a value is good and just as one would expect after `old`: a text, or a number after a
        number.
        """
        bounds = feed.names.get(name, ())
        if bounds is None:
            kind = self.types.all[name]
            return value.__class__ is old.__class__ is str and not value_problem(kind, value)
        numbers = value.__class__ in _NUMBERS and old.__class__ in _NUMBERS
        return numbers and bool(bounds) and bounds[0] <= value <= bounds[1]  # type: ignore[operator,misc]

    def report_all(self, place: Location, feeds: Sequence[FeedTick], now: float) -> None:
        """Take a whole table: what is not in it is withdrawn."""
        said = {tick.reporter: tick.values.keys() for tick in feeds}
        for feed in list(place.feeds.values()):
            for name in [*feed.names, *feed.refused]:
                if name not in said.get(feed.reporter, ()):
                    self._withdraw(place, feed, name, now)
        self.report(place, [self._only_new(place, tick) for tick in feeds], now)

    def _only_new(self, place: Location, tick: FeedTick) -> FeedTick:
        """A tick without what is held already: a table that is sent again tells followers nothing."""
        feed = place.feeds.get(tick.reporter)
        if feed is None:
            return tick
        new = {
            name: value
            for name, value in tick.values.items()
            if name not in feed.names
            or (old := place.values[name]).__class__ is not value.__class__
            or old != value
        }
        return type(tick)(tick.reporter, tick.run, tick.age_ms, new)

    def adopt(
        self, place: Location, feed: Feed, values: Mapping[str, Reading | None], *, trusted: bool = False
    ) -> bool:
        """Take the first table of a feed in one go, if nothing in it needs a closer look; False if something
        does.

        Plain numbers of types that bound them no further, or whatever was taken before under the same types
        (`trusted`). A thousand hosts with the same reporter share what is found out about its names.
        """
        key = (place.kind, feed.reporter, frozenset(values))
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) > SETS:
                self._layouts.clear()
            layout = self._layouts[key] = self._layout(place.kind, feed.reporter, values)
        names, plain = layout
        if (
            not names
            or not (trusted or len(plain) == len(values))
            or not place.values.keys().isdisjoint(names)
        ):
            return False
        feed.names, feed.shared, feed.plain = names, True, None if trusted else plain
        self.supply.add_values(place, values)
        place.expires = 0.0
        return True

    def _layout(
        self, where: LocationKind, reporter: str, values: Iterable[str]
    ) -> tuple[dict[str, Bounds | None], frozenset[str]]:
        """Names of a feed with their bounds, none if one of them is refused, and those that are plain."""
        names = {name: self.types.bounds.get(name) for name in values}
        if any(self._unwanted(where, reporter, name)[0] for name in names):
            return {}, frozenset()
        plain = frozenset(name for name, bounds in names.items() if _is_open(bounds))
        return names, self._sets.setdefault(plain, plain)

    def feed(self, place: Location, reporter: str) -> Feed:
        """The feed of a reporter at a place; made if it is not there."""
        feed = place.feeds.get(reporter)
        if feed is None:
            feed = place.feeds[reporter] = Feed(reporter)
        return feed

    def take(self, place: Location, reporter: str, values: dict[str, Reading | None], now: float) -> None:
        """Take readings for any place, one by one."""
        feed = self.feed(place, reporter)
        for name, value in values.items():
            self._take(place, feed, name, value, now)

    def _take(self, place: Location, feed: Feed, name: str, value: Reading | None, now: float) -> None:
        """Take, refuse or withdraw one reading."""
        if value is None:
            self._withdraw(place, feed, name, now)
            return
        reason, words = self._problem(place, feed, name, value)
        if reason:
            self._refuse(place, feed, name, value, (reason, words), now=now)
            return
        if feed.refused and feed.refused.pop(name, None) is not None:
            self.show_state(place, feed)
        if name not in feed.names:
            self._own(place, feed, name)
        if isinstance(value, Absent):
            old = place.values.get(name)
            if isinstance(old, Absent) and _same(old, value) and name not in place.overlay:
                return
            value = msgspec.structs.replace(value, since_ms=int(now * 1000))
        else:
            value = normalise(self.types.all[name], value)
            old = place.values.get(name)
            if old is None or isinstance(old, Absent):
                place.expires = 0.0  # it may end sooner than everything that was here
            elif value.__class__ is old.__class__ and value == old:
                return
        place.overlay.pop(name, None)
        self.supply.set_value(place, name, value)
        feed.plain = None

    def _own(self, place: Location, feed: Feed, name: str) -> None:
        """The feed that reports a name owns it: which of two may, is decided on the node."""
        for other in place.feeds.values():
            if self._disown(place, other, name):
                break
        self._bind(feed, name)

    def _bind(self, feed: Feed, name: str) -> None:
        """A feed's name, with what its type allows."""
        if feed.shared:
            feed.names, feed.shared = dict(feed.names), False
        feed.names[name] = self.types.bounds.get(name)
        feed.plain = None

    def _disown(self, place: Location, feed: Feed, name: str) -> bool:
        """Take a name from a feed, if it had it; the view is the caller's."""
        if name not in feed.names:
            return False
        if feed.shared:
            feed.names, feed.shared = dict(feed.names), False
        del feed.names[name]
        feed.plain = None
        place.overlay.pop(name, None)
        return True

    def _problem(self, place: Location, feed: Feed, name: str, value: Reading) -> tuple[str, str]:
        """Why a reading is refused: a word for counting and words for people; both '' if it is good."""
        if name in place.static:
            return "static", "has a static value in hosts.yaml, which wins"
        reason, words = self._unwanted(place.kind, feed.reporter, name)
        if reason:
            return reason, words
        if isinstance(value, Absent):
            problem = _absence_problem(value)
        else:
            problem = value_problem(self.types.all[name], value)
        if not problem and (weight := _weight(value)) > HEAVY:
            others = sum(_weight(held) for other, held in place.values.items() if other != name)
            if weight + others > PLACE_HEAVY:
                problem = f"too long: all readings of a location have {PLACE_HEAVY} characters at most"
        return ("value", problem) if problem else ("", "")

    def _unwanted(self, where: LocationKind, reporter: str, name: str) -> tuple[str, str]:
        """Why no value of this name is taken from this reporter at such a place; both '' if values are."""
        kind = self.types.all.get(name)
        if kind is None:
            return (
                "unknown-type",
                "no such resource type; declare it in resources.yaml or the reporter's YAML",
            )
        if kind.scope not in _SCOPES[where]:
            return "scope", f"has scope {kind.scope.value}, not that of a {where.value}"
        if kind.reporter and where is LocationKind.HOST and kind.reporter != reporter:
            return "reporter", f"only {kind.reporter} may report it"
        return "", ""

    def _refuse(
        self, place: Location, feed: Feed, name: str, value: Reading, why: tuple[str, str], *, now: float
    ) -> None:
        reason, words = why
        self.refused[reason] += 1
        if self._disown(place, feed, name) and name not in place.static:
            self.supply.set_value(place, name, self.vacancy(place, name, now))
        before = feed.refused.get(name)
        if before is not None or len(feed.refused) < REFUSED:
            # What is heavy is not kept for its digest: its agent is asked again, and refused again.
            kept = value if _weight(value) <= HEAVY else Absent(Presence.UNKNOWN, cause=words)
            feed.refused[name] = (kept, words)
        if before is None or before[1] != words:
            self.show_state(place, feed)

    def _withdraw(self, place: Location, feed: Feed, name: str, now: float) -> None:
        if feed.refused.pop(name, None) is not None:
            self.show_state(place, feed)
        if self._disown(place, feed, name):
            self.supply.set_value(place, name, self.vacancy(place, name, now))

    def vacancy(self, place: Location, name: str, now: float) -> Absent | None:
        """What stands at a place where an assigned reporter should report a name and does not."""
        kind = self.types.all.get(name)
        if kind is None or kind.reporter in {"", STATIC} or name not in place.view.amounts:
            return None
        cause = f"nothing heard from reporter {kind.reporter} yet"
        return Absent(Presence.NEVER_SEEN, cause=cause, since_ms=int(now * 1000))

    # -------------------------------------------------------------------------------------- reporters

    def reporter(self, place: Location, reporter: str, state: ReporterState | None, now: float) -> None:
        """Take a reporter's state; None: it is gone, and its values and inventory with it."""
        if state is None:
            if (feed := place.feeds.get(reporter)) is not None:
                for name in [*feed.names, *feed.refused]:
                    self._withdraw(place, feed, name, now)
                del place.feeds[reporter]
            self.inventory_gone(place, reporter)
            self.supply.set_entry(place, "reporters", reporter, None)
            return
        feed = self.feed(place, reporter)
        if feed.state is None or feed.state.ttl_ms > state.ttl_ms:
            place.expires = 0.0
        feed.state = state
        self.show_state(place, feed)

    def inventory_gone(self, place: Location, reporter: str) -> None:
        """Forget a reporter's inventory."""
        place.bodies.pop(reporter, None)
        self.supply.set_entry(place, "inventories", reporter, None)

    def show_state(self, place: Location, feed: Feed) -> None:
        """Show a reporter's state, with what the broker refuses of it."""
        state = feed.state
        if state is None:
            return
        if feed.refused:
            name, (_, words) = next(iter(feed.refused.items()))
            more = f" (and {len(feed.refused) - 1} more)" if len(feed.refused) > 1 else ""
            own = f"{state.cause}; " if state.cause else ""
            state = msgspec.structs.replace(
                state,
                refused=state.refused + len(feed.refused),
                cause=f"{own}broker refuses {name}: {words}{more}",
            )
        self.supply.set_entry(place, "reporters", feed.reporter, state)

    # -------------------------------------------------------------------------------------- freshness

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
                    self.supply.set_value(place, name, place.overlay.pop(name))
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
            self.supply.set_value(place, name, over)

    # ------------------------------------------------------------------------------------------ whole

    def reported(self, place: Location) -> dict[str, dict[str, Reading]]:
        """The table as its reporters gave it: what the agent's digest covers."""
        table: dict[str, dict[str, Reading]] = {}
        for feed in place.feeds.values():
            given = {
                name: place.overlay[name] if name in place.overlay else place.values[name]
                for name in feed.names
            }
            table[feed.reporter] = given | {name: value for name, (value, _) in feed.refused.items()}
        return table

    def digest(self, place: Location) -> str:
        """Digest of `reported`."""
        return digest_of_readings(self.reported(place))

    def set_static(self, place: Location, static: dict[str, Reading]) -> None:
        """Replace a place's static values; reported ones come to light again where one was taken away."""
        gone = place.static.keys() - static.keys()
        place.static = static
        for name in gone:
            self.supply.set_value(place, name, None)
        for name, value in static.items():
            for feed in place.feeds.values():
                if name in feed.names:
                    held = place.overlay[name] if name in place.overlay else place.values[name]
                    self._disown(place, feed, name)
                    feed.refused[name] = (held, "has a static value in hosts.yaml, which wins")
                    self.show_state(place, feed)
            old = place.values.get(name)
            if old is None or old.__class__ is not value.__class__ or old != value:
                self.supply.set_value(place, name, value)

    def look_again(self, place: Location, now: float, names: Iterable[str] | None = None) -> None:
        """Types or static values have changed: judge anew what is held and what was refused."""
        wanted = None if names is None else set(names)
        for feed in list(place.feeds.values()):
            for name in list(feed.names):
                self._bind(feed, name)
                if wanted is None or name in wanted:
                    held = place.overlay[name] if name in place.overlay else place.values[name]
                    reason, words = self._problem(place, feed, name, held)
                    if reason:
                        self._refuse(place, feed, name, held, (reason, words), now=now)
            for name, (value, _) in list(feed.refused.items()):
                if wanted is None or name in wanted:
                    self._take(place, feed, name, value, now)
        place.expires = 0.0


def _ttl_s(feed: Feed) -> float:
    """Time to live of a feed's readings whose type has none, in seconds."""
    state = feed.state
    return state.ttl_ms * 0.001 if state is not None and state.ttl_ms else UNKNOWN_TTL_S


def _is_open(bounds: Bounds | None) -> bool:
    """Whether every plain number is within these."""
    return bounds is not None and bounds[0] <= 0 and bounds[1] >= LARGEST_INTEGER


def _same(one: Absent, other: Absent) -> bool:
    return one.presence is other.presence and one.cause == other.cause and one.last == other.last


def _absence_problem(absent: Absent) -> str:
    if absent.presence is Presence.VALUE:
        return "an absence of kind 'value'"
    if len(absent.cause) > CAUSE:
        return f"a cause of {len(absent.cause)} characters, more than {CAUSE}"
    return ""


def _weight(reading: Reading | None) -> int:
    """Characters of a reading; numbers weigh nothing."""
    if isinstance(reading, str):
        return len(reading)
    if isinstance(reading, list):
        return sum(map(len, reading)) + len(reading)
    if isinstance(reading, Absent):
        return len(reading.cause) + _weight(reading.last)
    return 0
