"""A snapshot, counted part by part and not kept: what the metrics need of the whole map, in little memory."""

from collections import Counter
from collections.abc import Collection

from xce.broker.session import LinkNews, Request, op_id
from xce.broker.views import GOOD_REPORTERS
from xce.model.message import (
    Answer,
    Failed,
    LocationView,
    Quality,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRequest,
)
from xce.model.supply import LocationKind, split_location

TROUBLED = 200
"""Reporters in trouble that are named with their location."""
_SUMS = ("runs", "failures", "overruns", "refused", "abandoned")
"""Fields of `ReporterState` that are summed."""


class Tally:
    """A conversation like `session.Taking`, without the mirror."""

    def __init__(self) -> None:
        self.to_send: list[Request] = []
        self.failed: Failed | None = None
        self.whole = False
        self._id = ""
        self._clear()

    def _clear(self) -> None:
        self.quality = Quality()
        self.locations: Counter[str] = Counter()
        """By kind."""
        self.conditions: Counter[str] = Counter()
        """Of hosts."""
        self.holds: Counter[str] = Counter()
        """By owner."""
        self.reporters: Counter[tuple[str, str]] = Counter()
        """Locations by reporter and its state there."""
        self.sums: dict[str, Counter[str]] = {name: Counter() for name in _SUMS}
        """By field of `ReporterState` and reporter."""
        self.troubled: list[tuple[str, str, str]] = []
        """Location, reporter, state."""
        self.hidden = 0
        """Reporters in trouble beyond `TROUBLED`."""
        self.amounts: dict[tuple[str, str], tuple[float, float]] = {}
        """Pool and resource to base and borrowed."""
        self.reported: dict[tuple[str, str], float] = {}
        """Pool and resource to what its reporter says, as far as it is a number."""

    @property
    def done(self) -> bool:
        """Whether it is whole, or has failed."""
        return self.whole or self.failed is not None

    def waits_for(self) -> Collection[str]:
        """The id of the newest attempt."""
        return () if self.done else (self._id,)

    def take(self, answer: Answer) -> None:
        """Count what came."""
        match answer:
            case SnapshotBegin():
                self._clear()
                self.quality = answer.quality
            case SnapshotPart():
                for key, view in answer.locations.items():
                    self.count(key, view)
            case SnapshotEnd():
                self.whole = True
            case Failed():
                self.failed = answer

    def link(self, news: LinkNews) -> None:
        """Ask, or ask again."""
        self.to_send.clear()
        if news.up and not self.done:
            self._id = op_id()
            self.to_send.append(SnapshotRequest(id=self._id))

    def tick(self, now: float) -> None:
        """Nothing: the scrape has a deadline."""

    def count(self, key: str, view: LocationView) -> None:
        """Add one location."""
        kind, name = split_location(key)
        self.locations[kind.value] += 1
        self.holds.update(hold.owner for hold in view.holds)
        if kind is LocationKind.HOST:
            self.conditions.update(view.conditions)
        for reporter, state in view.reporters.items():
            self.reporters[reporter, state.state] += 1
            for field in _SUMS:
                sums, one = self.sums[field], getattr(state, field)
                # An external reporter is one program, shown at each of its places.
                sums[reporter] = (
                    sums[reporter] + one if kind is LocationKind.HOST else max(sums[reporter], one)
                )
            if state.state not in GOOD_REPORTERS:
                if len(self.troubled) < TROUBLED:
                    self.troubled.append((key, reporter, state.state))
                else:
                    self.hidden += 1
        if kind is LocationKind.POOL:
            for resource, amount in view.amounts.items():
                self.amounts[name, resource] = (amount.base, amount.borrowed)
            for resource, reading in view.values.items():
                if isinstance(reading, int | float) and not isinstance(reading, bool):
                    self.reported[name, resource] = float(reading)
