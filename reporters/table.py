"""The readings of one node: who gives which name, how fresh it is, and what has not been told yet.

Pure: `now` and `at` are seconds of one monotonic clock and come with each call. Costs are in what changes,
not in what is held. The rules:

- A *feed* is all that one reporter gives. Its freshness is that of its newest good frame; each name's time to
  live is its type's, else the feed's. When that is over, the reading becomes an absence and stays one until
  the reporter gives the name again.
- A name has one owner. The first reporter that gives it keeps it, whatever others say, until it is removed or
  does not give it any more; `builtin` comes before all others. Until `settled_in` is called, which ends the
  cold start, the alphabet decides instead of the order of arrival, so that a restart changes nothing.
- What was withdrawn is told as None, once.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping

from xce.model.builtin_types import BUILTIN
from xce.model.message import FeedTick
from xce.model.resource import ResourceType, value_problem
from xce.model.value import Absent, Presence, Reading, Value, digest, settle
from xce.reporters.explanation import Change, Explanation, Rival
from xce.reporters.frame import Refusal, shown

HISTORY = 5
"""Changes of a name that `explain` can show."""


def kept_by(owner: str) -> str:
    """Why a name is not taken from another reporter."""
    return f"'{owner}' reports it already and keeps it"


class _Feed:
    """One reporter's share of the table."""

    def __init__(self) -> None:
        self.run = 0
        self.good_at: float | None = None
        self.ttl = 0.0
        self.fault = ""
        self.names: set[str] = set()
        """Names that it owns."""
        self.by_ttl: dict[float, set[str]] = {}
        """Those of them that have a value and therefore expire, by time to live."""
        self.untold: set[str] = set()
        """Names to tell: changed, or withdrawn when they are not this feed's any more."""
        self.refreshed = False
        """A good frame has come that may have changed nothing."""
        self.intact: Mapping[str, Reading] | None = None
        """What it gave last, if that is what the table holds of it: given again, it only counts as heard."""
        self.gone = False
        """Removed; kept until its withdrawals have been told."""

    def age(self, now: float) -> float:
        return 0.0 if self.good_at is None else max(0.0, now - self.good_at)

    def expiry(self) -> float | None:
        if self.good_at is None or not self.by_ttl:
            return None
        return self.good_at + min(self.by_ttl)


class _Entry:
    """One name."""

    def __init__(self, owner: str, reading: Reading, now: float) -> None:
        self.owner = owner
        self.reading = reading
        self.given = False
        """Whether the owner gives it: its value or null was in the newest run and has not expired."""
        self.ttl: float | None = None
        """The key in `_Feed.by_ttl`; None while it does not expire."""
        self.rivals: dict[str, tuple[float, str]] = {}
        self.history: deque[tuple[float, Reading]] = deque([(now, reading)], maxlen=HISTORY)


class Table:
    """The node's readings. Not thread-safe; owned by the loop."""

    def __init__(self, types: Mapping[str, ResourceType]) -> None:
        self._types = types
        self._feeds: dict[str, _Feed] = {}
        self._entries: dict[str, _Entry] = {}
        self._cold = True
        self._digest = ""
        self.soonest = math.inf
        """Before this, `settle` finds nothing to do; a bound, which `settle` makes exact."""
        self.moves = 0
        """Counts what may change `names` of a reporter."""
        self._urgent_s = math.inf
        """Of the last `take_feeds`: a feed that lives longer need not be told for being refreshed."""
        self.news: dict[str, None] = {}
        """Reporters of which `take_feeds` might give something."""

    # ------------------------------------------------------------------------------------ what comes in

    def publish(
        self,
        reporter: str,
        values: Mapping[str, Reading],
        *,
        run: int,
        at: float,
        ttl: float,
        now: float,
        silent: Mapping[str, Absent] | None = None,
    ) -> list[Refusal]:
        """A good run or frame (`contract.Outcome`); returns what the owner rule refuses of it.

        `at`: when the run that gave it began (one-shot), or when it came (persistent); `ttl` is the feed's.
        """
        feed = self._feed(reporter)
        feed.run, feed.good_at, feed.fault = run, at, ""
        if ttl != feed.ttl:
            feed.ttl = ttl
            for name in feed.names:
                self._file(name, feed)
        refusals = []
        for name, reading in values.items():
            owner = self._claim(name, reporter, now)
            if owner == reporter:
                self._set(name, reading, given=True, now=now)
                continue
            text = shown(reading) if not isinstance(reading, Absent) else ""
            self._entries[name].rivals[reporter] = (now, text)
            refusals.append(Refusal(name=name, reason=kept_by(owner), text=text))
        for name, absent in (silent or {}).items():
            self._fall_silent(name, reporter, absent, now)
        feed.intact = None if refusals or silent or not feed.names <= values.keys() else values
        self._bound(feed)
        self._refreshed(reporter, feed)
        return refusals

    def again(self, reporter: str, values: Mapping[str, Reading], *, run: int, at: float, ttl: float) -> bool:
        """A run that gives what the one before gave. False if more is to be done: see `publish`.

        `values` is the very object that was published then.
        """
        feed = self._feeds.get(reporter)
        if feed is None or feed.intact is not values or feed.ttl != ttl:
            return False
        feed.run, feed.good_at, feed.fault = run, at, ""
        for lived in feed.by_ttl:
            if lived < self._urgent_s:
                feed.refreshed = True
                self.news[reporter] = None
        return True

    def expect(self, reporter: str, names: Iterable[str], now: float) -> None:
        """Names that a reporter promises (`reports:`): never-seen until somebody gives them."""
        for name in names:
            if name not in self._entries:
                reading = Absent(Presence.NEVER_SEEN, cause=f"promised by '{reporter}', not heard yet")
                self._add(name, reporter, reading, now)

    def fault(self, reporter: str, cause: str) -> None:
        """A newer run failed. Older values live on until their time is over, and then `cause` is why."""
        self._feed(reporter).fault = cause

    def remove(self, reporter: str) -> None:
        """A reporter is gone, and what it gave with it."""
        feed = self._feeds.get(reporter)
        if feed is None:
            return
        for name in list(feed.names):
            self._drop(name)
        for entry in self._entries.values():
            entry.rivals.pop(reporter, None)
        feed.gone = True
        if not feed.untold:
            del self._feeds[reporter]
            self.news.pop(reporter, None)

    def settled_in(self) -> None:
        """The cold start is over: every reporter has had its first run."""
        self._cold = False

    def set_types(self, types: Mapping[str, ResourceType], now: float) -> None:
        """New types: names without a type are withdrawn, values that do not fit any more become unknown."""
        self._types = types
        for feed in self._feeds.values():
            feed.intact = None
        for name, entry in list(self._entries.items()):
            kind = types.get(name.partition("@")[0])
            if kind is None:
                self._drop(name)
                continue
            if not isinstance(entry.reading, Absent) and (problem := value_problem(kind, entry.reading)):
                cause = f"its type has changed: {problem}"
                self._set(name, Absent(Presence.UNKNOWN, cause=cause), given=entry.given, now=now)
            self._file(name, self._feeds[entry.owner])
        for feed in self._feeds.values():
            self._bound(feed)

    def settle(self, now: float) -> None:
        """Turns what is over its time into absences."""
        for feed in self._feeds.values():
            while (expiry := feed.expiry()) is not None and expiry < now:
                feed.intact = None
                ttl = min(feed.by_ttl)
                for name in list(feed.by_ttl[ttl]):
                    reading = self._entries[name].reading
                    over = settle(reading, age_ms=math.inf, ttl_ms=ttl * 1000, fault=feed.fault)
                    self._set(name, over, given=False, now=now)
        self.soonest = math.inf
        for feed in self._feeds.values():
            self._bound(feed)

    # -------------------------------------------------------------------------------------- what goes out

    def take_feeds(self, now: float, *, urgent_s: float = 0) -> list[FeedTick]:
        """What has changed since it was last taken, by reporter; names that it gives no more as None.

        Also, without values, feeds that were refreshed and have a value with a time to live below `urgent_s`;
        one that is larger than at the call before counts for what comes from now on.
        """
        ticks = []
        self._urgent_s = urgent_s
        for reporter, feed in [(reporter, self._feeds[reporter]) for reporter in self.news]:
            urgent = feed.refreshed and min(feed.by_ttl, default=urgent_s) < urgent_s
            if feed.untold or urgent:
                values: dict[str, Reading | None] = {}
                for name in sorted(feed.untold):
                    entry = self._entries.get(name)
                    values[name] = entry.reading if entry and entry.owner == reporter else None
                ticks.append(self._tick(reporter, feed, values, now))
            self._told(reporter, feed)
        return ticks

    def all_feeds(self, now: float) -> list[FeedTick]:
        """The whole table."""
        return [
            self._tick(
                reporter, feed, {name: self._entries[name].reading for name in sorted(feed.names)}, now
            )
            for reporter, feed in self._feeds.items()
            if feed.names
        ]

    def forget_told(self) -> None:
        """Counts everything as told."""
        for reporter, feed in list(self._feeds.items()):
            self._told(reporter, feed)

    def ages_ms(self, now: float) -> dict[str, int]:
        """Age of the newest good frame of every feed that has names."""
        return {
            reporter: int(feed.age(now) * 1000)
            for reporter, feed in self._feeds.items()
            if feed.names and feed.good_at is not None
        }

    def digest(self) -> str:
        """`model.value.digest` of all readings."""
        if not self._digest:
            self._digest = digest(
                {
                    reporter: {name: self._entries[name].reading for name in feed.names}
                    for reporter, feed in self._feeds.items()
                }
            )
        return self._digest

    def readings(self) -> dict[str, Reading]:
        """Every name with its reading."""
        return {name: entry.reading for name, entry in self._entries.items()}

    def owners(self) -> dict[str, str]:
        """Names that are given, with the reporters that give them."""
        return {name: entry.owner for name, entry in self._entries.items() if entry.given}

    def names(self, reporter: str) -> set[str]:
        """The names that a reporter owns and has given, now or earlier."""
        feed = self._feeds.get(reporter)
        return {name for name in feed.names if self._seen(name)} if feed else set()

    def _seen(self, name: str) -> bool:
        reading = self._entries[name].reading
        return not (isinstance(reading, Absent) and reading.presence is Presence.NEVER_SEEN)

    def previous(self, reporter: str) -> dict[str, Value]:
        """The values of a reporter that are still fresh (`contract.Context.previous`)."""
        found: dict[str, Value] = {}
        for name in self.names(reporter):
            reading = self._entries[name].reading
            if not isinstance(reading, Absent):
                found[name] = reading
        return found

    def explain(self, name: str, now: float) -> Explanation | None:
        """All that is known of a name; None when nothing is."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        feed = self._feeds[entry.owner]
        return Explanation(
            name=name,
            reading=entry.reading,
            since_s=now - entry.history[-1][0],
            reporter=entry.owner,
            run=feed.run,
            age_s=None if feed.good_at is None else feed.age(now),
            ttl_s=self._ttl(name, feed),
            fault=feed.fault,
            rivals=[Rival(other, now - at, text) for other, (at, text) in sorted(entry.rivals.items())],
            history=[Change(now - at, reading) for at, reading in reversed(entry.history)],
        )

    # ------------------------------------------------------------------------------------------- inside

    def _refreshed(self, reporter: str, feed: _Feed) -> None:
        if min(feed.by_ttl, default=math.inf) < self._urgent_s:
            feed.refreshed = True
            self.news[reporter] = None

    def _untold(self, name: str, reporter: str, feed: _Feed) -> None:
        feed.untold.add(name)
        self.news[reporter] = None
        self._digest = ""

    def _bound(self, feed: _Feed) -> None:
        expiry = feed.expiry()
        if expiry is not None and expiry < self.soonest:
            self.soonest = expiry

    def _feed(self, reporter: str) -> _Feed:
        feed = self._feeds.setdefault(reporter, _Feed())
        feed.gone = False
        return feed

    def _claim(self, name: str, reporter: str, now: float) -> str:
        """The owner of a name that `reporter` gives, after the owner rule."""
        entry = self._entries.get(name)
        if entry is None:
            self._add(name, reporter, Absent(Presence.NEVER_SEEN), now)
            return reporter
        if entry.owner == reporter:
            return reporter
        if entry.given and self._alive(name, entry, now) and not self._comes_before(reporter, entry.owner):
            return entry.owner
        self._hand_over(name, entry, reporter)
        return reporter

    def _alive(self, name: str, entry: _Entry, now: float) -> bool:
        feed = self._feeds[entry.owner]
        return feed.age(now) <= self._ttl(name, feed)

    def _comes_before(self, reporter: str, owner: str) -> bool:
        if BUILTIN in {reporter, owner}:
            return reporter == BUILTIN
        return self._cold and reporter < owner

    def _add(self, name: str, reporter: str, reading: Reading, now: float) -> None:
        feed = self._feed(reporter)
        self._entries[name] = _Entry(reporter, reading, now)
        feed.names.add(name)
        feed.intact = None
        self._untold(name, reporter, feed)
        self.moves += 1

    def _hand_over(self, name: str, entry: _Entry, reporter: str) -> None:
        before, after = self._feeds[entry.owner], self._feed(reporter)
        self._unfile(entry, name)
        before.names.discard(name)
        before.intact = None
        self._untold(name, entry.owner, before)
        after.names.add(name)
        self._untold(name, reporter, after)  # even if the value is the same: its reporter is another one
        entry.owner = reporter
        entry.rivals.pop(reporter, None)
        self.moves += 1

    def _fall_silent(self, name: str, reporter: str, absent: Absent, now: float) -> None:
        entry = self._entries.get(name)
        if entry is None:
            self._add(name, reporter, absent, now)
        elif entry.owner == reporter:
            self._set(name, absent, given=False, now=now)

    def _set(self, name: str, reading: Reading, *, given: bool, now: float) -> None:
        entry = self._entries[name]
        entry.given = given
        feed = self._feeds[entry.owner]
        if not _same(entry.reading, reading):
            self.moves += isinstance(entry.reading, Absent)  # it may never have been seen
            entry.history.append((now, reading))
            self._untold(name, entry.owner, feed)
        entry.reading = reading
        self._file(name, feed)

    def _ttl(self, name: str, feed: _Feed) -> float:
        kind = self._types.get(name.partition("@")[0])
        return kind.ttl if kind and kind.ttl is not None else feed.ttl

    def _file(self, name: str, feed: _Feed) -> None:
        """Puts a name where its expiry is looked for: by its time to live, if it has a value."""
        entry = self._entries[name]
        ttl = None if isinstance(entry.reading, Absent) else self._ttl(name, feed)
        if ttl == entry.ttl:
            return
        self._unfile(entry, name)
        entry.ttl = ttl
        if ttl is not None:
            feed.by_ttl.setdefault(ttl, set()).add(name)

    def _unfile(self, entry: _Entry, name: str) -> None:
        if entry.ttl is None:
            return
        by_ttl = self._feeds[entry.owner].by_ttl
        by_ttl[entry.ttl].discard(name)
        if not by_ttl[entry.ttl]:
            del by_ttl[entry.ttl]
        entry.ttl = None

    def _drop(self, name: str) -> None:
        entry = self._entries[name]
        feed = self._feeds[entry.owner]
        self._unfile(entry, name)
        del self._entries[name]
        feed.names.discard(name)
        feed.intact = None
        self._untold(name, entry.owner, feed)
        self.moves += 1

    def _tick(self, reporter: str, feed: _Feed, values: dict[str, Reading | None], now: float) -> FeedTick:
        return FeedTick(reporter, feed.run, int(feed.age(now) * 1000), values)

    def _told(self, reporter: str, feed: _Feed) -> None:
        feed.untold.clear()
        feed.refreshed = False
        self.news.pop(reporter, None)
        if feed.gone:
            del self._feeds[reporter]


def _same(one: Reading, other: Reading) -> bool:
    """Whether two readings are told alike; the last good value of an absence does not count."""
    if isinstance(one, Absent) and isinstance(other, Absent):
        return (one.presence, one.cause) == (other.presence, other.cause)
    return type(one) is type(other) and one == other
