"""External reporters: programs off the nodes that report values of pools, groups and storages.

Each is one identity with one connection. What it may report is written in the types: `reporter: IDENTITY`. A
name is `NAME@LOCATION`, or `NAME` where exactly one location has it. Pools and groups are those of the site's
files: a name that is mistyped makes none. Storages are there as long as somebody reports them. Readings live
at those locations, in feeds called `IDENTITY/REPORTER`.
"""

from xce.broker.core.freshness import Freshness
from xce.broker.core.intake import FEEDS, Intake
from xce.broker.core.location import NEVER, SUPPLY_AVAILABLE, Location
from xce.broker.core.peer import Peer
from xce.broker.core.situation import way_to
from xce.broker.core.supply import SupplyMap
from xce.model.message import FeedTick, ReporterState
from xce.model.resource import Scope
from xce.model.supply import LocationKind, Source, split_location
from xce.model.value import Absent, Reading
from xce.model.value import digest as digest_of_readings

POOLED = frozenset({Scope.POOL, Scope.EXTERNAL})
TABLE = 100_000
"""Names that one identity may report."""


class External:
    """One identity. It stays when its connection goes, as its values do until their time is over."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.peer: Peer | None = None
        self.nonce = ""
        self.where = ""
        self.deadline = NEVER
        self.quiet_s = NEVER
        self.tables: dict[str, dict[str, Reading]] = {}
        """All that it reported, by reporter, as it was said: what its digest covers."""
        self.states: dict[str, ReporterState] = {}
        self.refused: dict[str, str] = {}
        """Names that lead to no location, as they were said, and why."""
        self.told: dict[str, str] = {}
        """Of those, what its program has been told."""

    def digest(self) -> str:
        """Digest of the whole table."""
        return digest_of_readings(self.tables)


class Externals:
    """All identities, and the ways from their names to locations."""

    def __init__(self, supply: SupplyMap, intake: Intake, freshness: Freshness) -> None:
        self.supply, self.intake, self._freshness = supply, intake, freshness
        self.known: dict[str, External] = {}

    def identity(self, name: str) -> External:
        """The identity of this name; made if it is new."""
        external = self.known.get(name)
        if external is None:
            external = self.known[name] = External(name)
        return external

    def report(self, external: External, feeds: list[FeedTick], now: float, *, full: bool) -> None:
        """Take one tick; each value goes where its name says."""
        if full:
            self._withdraw_unsaid(external, feeds, now)
        for tick in feeds:
            if tick.reporter not in external.tables and len(external.tables) >= FEEDS:
                self.intake.refused["feed"] += len(tick.values)
                continue
            table = external.tables.setdefault(tick.reporter, {})
            self.intake.values += len(tick.values)
            for name, value in tick.values.items():
                if value is None:
                    table.pop(name, None)
                elif name in table or len(table) < TABLE:
                    table[name] = value
                self._take(external, tick, name, value, now)
            self.heard(external, {tick.reporter: tick.age_ms}, now)
        self.intake.reports += 1

    def heard(self, external: External, ages_ms: dict[str, int], now: float) -> None:
        """Feeds were refreshed."""
        labels = {f"{external.name}/{reporter}": age for reporter, age in ages_ms.items()}
        for place in self.supply.places.values():
            if ages := {label: age for label, age in labels.items() if label in place.feeds}:
                self._freshness.heard(place, ages, now)

    def reporter(self, external: External, reporter: str, state: ReporterState | None, now: float) -> None:
        """A reporter's state goes to every location that it reports about; None: it is gone."""
        label = f"{external.name}/{reporter}"
        if state is None:
            external.states.pop(reporter, None)
            for name in external.tables.pop(reporter, {}):
                external.refused.pop(name, None)
        elif reporter in external.states or len(external.states) < FEEDS:
            external.states[reporter] = state
        for place in list(self.supply.places.values()):
            if label in place.feeds:
                self.intake.reporter(place, label, state, now)
                self._drop_if_empty(place)

    def look_again(self, now: float) -> None:
        """Types or pools have changed: find the way of each name anew."""
        for external in self.known.values():
            for reporter, table in external.tables.items():
                tick = FeedTick(reporter, 0, 0)
                for name, value in list(table.items()):
                    self._take(external, tick, name, value, now, aged=False)

    def refusals(self, external: External) -> dict[str, str]:
        """All names of it that are not taken, as they were said, and why: no way leads there, or no value."""
        found = dict(external.refused)
        for place in self.supply.places.values():
            for reporter, table in external.tables.items():
                feed = place.feeds.get(f"{external.name}/{reporter}")
                for name, (_, words) in feed.refused.items() if feed else ():
                    found |= {said: words for said in (name, f"{name}@{place.key}") if said in table}
        return found

    # ------------------------------------------------------------------------------------------- ways

    def _take(
        self,
        external: External,
        tick: FeedTick,
        name: str,
        value: Reading | None,
        now: float,
        *,
        aged: bool = True,
    ) -> None:
        plain, _, key = name.partition("@")
        place, problem = self._place(external, plain, key)
        if place is None:
            given = value is not None and not isinstance(value, Absent)
            if given and (name in external.refused or len(external.refused) < TABLE):
                self.intake.refused["location"] += name not in external.refused
                external.refused[name] = problem
            else:
                external.refused.pop(name, None)
            return
        external.refused.pop(name, None)
        if isinstance(value, Absent) and self._has_other_name(external, tick.reporter, plain, key, place):
            return
        label = f"{external.name}/{tick.reporter}"
        feed = self.intake.feed(place, label)
        if aged:
            feed.run, feed.born = tick.run, now - tick.age_ms * 0.001
        if feed.state is None and tick.reporter in external.states:
            self.intake.reporter(place, label, external.states[tick.reporter], now)
        self.intake.take(place, label, {plain: value}, now)
        if value is None:
            self._drop_if_empty(place)

    def _has_other_name(
        self, external: External, reporter: str, plain: str, key: str, place: Location
    ) -> bool:
        """Whether a place has a value under the other of its names: with the location, or without."""
        other = external.tables.get(reporter, {}).get(plain if key else f"{plain}@{place.key}")
        if other is None or isinstance(other, Absent):
            return False
        return not key or self._place(external, plain, "")[0] is place

    def _place(self, external: External, name: str, key: str) -> tuple[Location | None, str]:
        """The location that a name means, or why there is none."""
        kind = self.intake.types.all.get(name)
        if kind is None:
            return None, "no such resource type"
        if kind.scope is Scope.HOST:
            return None, "is a type of hosts; only their agents report it"
        if kind.reporter != external.name:
            assigned = f"reporter {kind.reporter} is" if kind.reporter else "no reporter is"
            return None, f"{assigned} assigned to it (reporter: in its type)"
        if not key:
            having = [
                place
                for place in self.supply.places.values()
                if name in place.view.amounts or name in place.values
            ]
            if len(having) == 1:
                return having[0], ""
            which = ", ".join(sorted(place.key for place in having)) or "no location has it"
            return None, f"say {name}@LOCATION: {which}"
        try:
            where, place_name = split_location(key)
        except ValueError as error:
            return None, str(error)
        fits = where is LocationKind.GROUP if kind.scope is Scope.HOST_GROUP else where in _POOLED_KINDS
        if not fits:
            return None, f"a type of scope {kind.scope.value} does not belong at {key}"
        if where is not LocationKind.STORAGE and key not in self.supply.locations:
            return None, f"there is no {key}; {way_to(key, self.supply.places)}"
        return self.supply.place(where, place_name, Source.REPORTER, SUPPLY_AVAILABLE), ""

    def _withdraw_unsaid(self, external: External, feeds: list[FeedTick], now: float) -> None:
        said = {tick.reporter: tick.values for tick in feeds}
        for reporter, table in external.tables.items():
            gone = [name for name in table if name not in said.get(reporter, {})]
            for name in gone:
                del table[name]
                self._take(external, FeedTick(reporter, 0, 0), name, None, now, aged=False)

    def _drop_if_empty(self, place: Location) -> None:
        """A location that only a reporter brought goes with its last value."""
        said = any(feed.names or feed.refused for feed in place.feeds.values())
        if place.view.source is Source.REPORTER and not said and not place.view.holds:
            self.supply.remove(place)


_POOLED_KINDS = frozenset({LocationKind.POOL, LocationKind.STORAGE})
