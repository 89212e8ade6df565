"""What reporters say, judged reading by reading, and what the broker keeps of it.

A reading is taken if its name is a declared type, belongs at such a place, may come from this reporter and
fits its kind and limits. What is refused costs its neighbours nothing, is counted, and is kept with its
reason, because it is a part of the table that the agent's digest covers. What agents send all day goes
another way (`reports`), as long as nothing about it is new.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from xce.broker.core.location import Feed, Location, is_given
from xce.broker.core.supply import SupplyMap
from xce.broker.core.types import Types
from xce.model.message import ReporterState
from xce.model.resource import Scope, normalise, value_problem
from xce.model.supply import LocationKind
from xce.model.value import Absent, Presence, Reading
from xce.model.value import digest as digest_of_readings

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


class Intake:
    """Takes readings and reporters' states into a supply map."""

    def __init__(self, supply: SupplyMap, types: Types) -> None:
        self.supply = supply
        self.types = types
        """Those that hold now; `look_again` is for what is held already when they change."""
        self.reports = 0
        self.values = 0
        """Readings that came in, changed or not."""
        self.refused: Counter[str] = Counter()
        """Refused readings by reason."""

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
            self.take_one(place, feed, name, value, now)

    def take_one(self, place: Location, feed: Feed, name: str, value: Reading | None, now: float) -> None:
        """Take, refuse or withdraw one reading."""
        if value is None:
            self.withdraw(place, feed, name, now)
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
        reason, words = self.unwanted(place.kind, feed.reporter, name)
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

    def unwanted(self, where: LocationKind, reporter: str, name: str) -> tuple[str, str]:
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
        # What is heavy is not kept for its digest: its agent is asked again, and refused again.
        now_refused = value if _weight(value) <= HEAVY else Absent(Presence.UNKNOWN, cause=words), words
        if before is not None or len(feed.refused) < REFUSED:
            feed.refused[name] = now_refused
        if before is None or (before[1], is_given(*before)) != (words, is_given(*now_refused)):
            self.show_state(place, feed)

    def withdraw(self, place: Location, feed: Feed, name: str, now: float) -> None:
        """Nobody reports a name any more."""
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
                    self.withdraw(place, feed, name, now)
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
        if refused := feed.refusals():
            name, words = next(iter(refused.items()))
            more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
            own = f"{state.cause}; " if state.cause else ""
            state = msgspec.structs.replace(
                state,
                refused=state.refused + len(refused),
                cause=f"{own}broker refuses {name}: {words}{more}",
            )
        self.supply.set_entry(place, "reporters", feed.reporter, state)

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
                    self.take_one(place, feed, name, value, now)
        place.expires = 0.0


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
