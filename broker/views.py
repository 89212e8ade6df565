"""What people look at, as rows: pure functions from a snapshot with details to what a command shows.

Every row is a struct, so that `--json` gives the same as the table, and more. Nothing here prints, filters by
a person's wishes or talks to the broker.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from xce.broker.mirror import Mirror
from xce.model.message import LocationView, ReporterState
from xce.model.reporter import ReporterState as State
from xce.model.resource import ResourceType
from xce.model.supply import Hold, HostState, LocationKind, split_location
from xce.model.value import Absent, Presence, Reading, Value, presence_of

_DIGITS = re.compile("([0-9]+)")
GOOD_REPORTERS = frozenset({State.WAITING.value, State.RUNNING.value, State.NOT_APPLICABLE.value})
GOOD_PRESENCES = frozenset({Presence.VALUE, Presence.NOT_APPLICABLE})


class SupplyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One resource at one location."""

    resource: str
    location: str
    value: Value | None
    """None where there is none; see `presence`, and `last`."""
    unit: str
    presence: Presence
    age_s: float | None
    """Of the value, or of its absence; None: does not age (configuration), or nothing was ever heard."""
    source: str
    """Of the location: config, reporter, provisioner, discovered."""
    state: str
    """Of the location."""
    reporter: str
    """Where the value came from; '' is the configuration or an order."""
    cause: str
    """Why there is no value, or what is wrong with the reporter of one that is still good."""
    holds: list[Hold]
    last: Value | None = None
    """The last good value of one that is absent."""

    @property
    def is_problem(self) -> bool:
        """Whether somebody should look at it."""
        return self.presence not in GOOD_PRESENCES or bool(self.cause and self.presence is Presence.VALUE)


class HostRow(msgspec.Struct, frozen=True, kw_only=True):
    """One host."""

    host: str
    state: str
    conditions: list[str]
    holds: list[Hold]
    drained: str
    """Reason of the drain; '' when it is not drained."""
    source: str
    groups: list[str]
    presences: dict[str, int]
    """How many of its readings are a value, unknown, ..."""
    reporters: dict[str, str]
    """Reporter to state."""
    trouble: dict[str, str]
    """Reporter to what is wrong with it."""
    about: dict[str, str]
    instances: dict[str, tuple[int, int]]
    """Of each kind: how many are available, and how many there are."""

    @property
    def is_problem(self) -> bool:
        """Whether somebody should look at it."""
        return bool(self.trouble or self.conditions or self.state == HostState.LOST)


class PoolRow(msgspec.Struct, frozen=True, kw_only=True):
    """One resource of one pool: what it has by configuration or order, and what is reported."""

    pool: str
    resource: str
    base: float | None
    borrowed: float | None
    total: float | None
    """base + borrowed; None where only a report exists."""
    reported: Value | None
    """What its reporter says; None where nobody does, or it has no value."""
    presence: Presence | None
    age_s: float | None
    reporter: str
    cause: str
    unit: str
    state: str
    holds: list[Hold]


class HoldRow(msgspec.Struct, frozen=True, kw_only=True):
    """One hold of one location."""

    location: str
    owner: str
    reason: str
    ends: str
    since: str


def supply_rows(mirror: Mirror) -> list[SupplyRow]:
    """Every reading, and every amount of a pool that nobody reports, by resource and location."""
    rows = []
    for key, view in mirror.locations.items():
        for resource, reading in view.values.items():
            rows.append(_supply_row(mirror, key, view, resource, reading))
        for resource, amount in view.amounts.items():
            if resource not in view.values:
                rows.append(_supply_row(mirror, key, view, resource, whole(amount.base + amount.borrowed)))
    return sorted(rows, key=lambda row: (row.resource, natural(row.location)))


def host_rows(mirror: Mirror) -> list[HostRow]:
    """Every host, by name."""
    rows = []
    for key, view in of_kind(mirror, LocationKind.HOST):
        rows.append(
            HostRow(
                host=split_location(key)[1],
                state=view.state,
                conditions=view.conditions,
                holds=view.holds,
                drained=view.about.get("drained", ""),
                source=view.source,
                groups=view.groups,
                presences=Counter(presence_of(reading).value for reading in view.values.values()),
                reporters={name: state.state for name, state in view.reporters.items()},
                trouble={name: text for name, state in view.reporters.items() if (text := trouble_of(state))},
                about=view.about,
                instances=_instances(view),
            )
        )
    return sorted(rows, key=lambda row: natural(row.host))


def _instances(view: LocationView) -> dict[str, tuple[int, int]]:
    counts: dict[str, tuple[int, int]] = {}
    for ref in view.inventories.values():
        for kind, (available, every) in ref.kinds.items():
            known = counts.get(kind, (0, 0))
            counts[kind] = known[0] + available, known[1] + every
    return dict(sorted(counts.items()))


def pool_rows(mirror: Mirror) -> list[PoolRow]:
    """Every resource of every pool; a pool without any gives one row with an empty resource."""
    rows = []
    for key, view in of_kind(mirror, LocationKind.POOL):
        for resource in sorted({*view.amounts, *view.values}) or [""]:
            reading = view.values.get(resource)
            amount = view.amounts.get(resource)
            rows.append(
                PoolRow(
                    pool=split_location(key)[1],
                    resource=resource,
                    base=amount.base if amount else None,
                    borrowed=amount.borrowed if amount else None,
                    total=amount.base + amount.borrowed if amount else None,
                    reported=None if isinstance(reading, Absent) else reading,
                    presence=presence_of(reading) if reading is not None else None,
                    age_s=age_of(mirror, view, resource, reading) if reading is not None else None,
                    reporter=view.origins.get(resource, ""),
                    cause=cause_of(view, resource, reading) if reading is not None else "",
                    unit=unit_of(mirror.types, resource),
                    state=view.state,
                    holds=view.holds,
                )
            )
    return sorted(rows, key=lambda row: (natural(row.pool), row.resource))


def hold_rows(mirror: Mirror) -> list[HoldRow]:
    """Every hold, by location and owner."""
    rows = [
        HoldRow(location=key, owner=hold.owner, reason=hold.reason, ends=hold.ends.value, since=hold.since)
        for key, view in mirror.locations.items()
        for hold in view.holds
    ]
    return sorted(rows, key=lambda row: (natural(row.location), row.owner))


# ------------------------------------------------------------------------------------------------- parts


def of_kind(mirror: Mirror, kind: LocationKind) -> Iterator[tuple[str, LocationView]]:
    """The locations of one kind."""
    prefix = f"{kind.value}:"
    return ((key, view) for key, view in mirror.locations.items() if key.startswith(prefix))


def trouble_of(state: ReporterState) -> str:
    """What is wrong with a reporter in words; '' when all is well."""
    if state.state in GOOD_REPORTERS and not state.cause:
        return f"{state.refused} values refused" if state.refused else ""
    return f"{state.state}: {state.cause}" if state.cause else state.state


def age_of(mirror: Mirror, view: LocationView, resource: str, reading: Reading) -> float | None:
    """Seconds since the value was good, or since it has been absent; None where nobody can tell."""
    if isinstance(reading, Absent):
        return max(0, mirror.broker_ms - reading.since_ms) / 1000 if reading.since_ms else None
    age = view.ages_ms.get(view.origins.get(resource, ""))
    return None if age is None else age / 1000


def cause_of(view: LocationView, resource: str, reading: Reading) -> str:
    """Why there is no value, or what is wrong with the reporter of one that is still good."""
    state = view.reporters.get(view.origins.get(resource, ""))
    if isinstance(reading, Absent):
        waits = reading.presence is Presence.NEVER_SEEN and state and state.cause
        return f"{reading.cause}; {trouble_of(state)}" if state and waits else reading.cause
    return state.cause if state and state.state not in GOOD_REPORTERS else ""


def unit_of(types: Mapping[str, ResourceType], resource: str) -> str:
    """The unit of a resource; '' if it has none or is not known."""
    kind = types.get(resource)
    return kind.unit if kind else ""


def whole(number: float) -> Value:
    """A number without a fraction as an integer, so that it is shown as one."""
    return int(number) if float(number).is_integer() else number


def natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts node2 before node10."""
    return [
        (int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in _DIGITS.split(text)
    ]


def _supply_row(mirror: Mirror, key: str, view: LocationView, resource: str, reading: Reading) -> SupplyRow:
    return SupplyRow(
        resource=resource,
        location=key,
        value=None if isinstance(reading, Absent) else reading,
        unit=unit_of(mirror.types, resource),
        presence=presence_of(reading),
        age_s=age_of(mirror, view, resource, reading),
        source=view.source,
        state=view.state,
        reporter=view.origins.get(resource, ""),
        cause=cause_of(view, resource, reading),
        holds=view.holds,
        last=reading.last if isinstance(reading, Absent) else None,
    )
