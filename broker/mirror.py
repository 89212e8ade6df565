"""A copy of the broker's supply map, held by whoever follows it.

`Mirror` takes the messages of a snapshot and of a watch and keeps what they say. Pure: no sockets, no clock.
A view that has been handed out never changes; a change replaces it, so `dict(mirror.locations)` is a snapshot
that can be kept. A message that does not fit (a part out of order, a delta that does not follow) raises
`OutOfStep` and leaves the mirror as it was: take a new snapshot.
"""

from collections.abc import Iterable, Mapping, Set
from typing import TypeVar

import msgspec

from xce.broker import arrived
from xce.model.instance import Inventory, reference
from xce.model.message import (
    BindingView,
    ClaimView,
    Delta,
    LocationChange,
    LocationView,
    Position,
    Quality,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
)
from xce.model.resource import ResourceType

V = TypeVar("V")


class OutOfStep(Exception):
    """A message does not follow what the mirror holds."""


class Mirror:
    """The supply map at one position; complete once `end` was taken."""

    def __init__(self, begin: SnapshotBegin, *, older: "Mirror | None" = None) -> None:
        self.position: Position = begin.position
        self.revision = begin.revision
        self.broker_ms = begin.broker_ms
        """The broker's monotonic clock at `position`, in ms: `broker_ms - Absent.since_ms` is an age."""
        self.taken_at = begin.taken_at
        self.quality: Quality = begin.quality
        """Of the snapshot; deltas do not change it."""
        self._begin: SnapshotBegin | None = begin
        """Holds the types as they came, until they are read or replaced."""
        self._types: dict[str, ResourceType] = {}
        self.locations: dict[str, LocationView] = {}
        """To be read; to be encoded as JSON by way of `whole`."""
        self.claims: dict[str, ClaimView] = {}
        self.bindings: dict[str, BindingView] = {}
        """Of all claims; a binding names its claim."""
        self.complete = False
        self._bodies: dict[tuple[str, str], tuple[str, Inventory]] = {}
        if older is not None:
            self._bodies.update(older.bodies())
        self._parts_wanted = begin.parts
        self._parts = 0

    @property
    def types(self) -> dict[str, ResourceType]:
        """All types that hold at `position`."""
        if (begin := self._begin) is not None:
            self._types = {kind.name: kind for kind in arrived.types_of(begin)}
            self._begin = None
        return self._types

    def part(self, message: SnapshotPart) -> None:
        """Take the next part of the snapshot; parts are numbered from 0."""
        if self.complete or message.part != self._parts:
            raise OutOfStep(f"part {message.part} of the snapshot came instead of part {self._parts}")
        self.locations.update(message.locations)
        self.claims.update(message.claims)
        self.bindings.update(message.bindings)
        self._parts += 1

    def end(self, _message: SnapshotEnd) -> None:
        """The snapshot is whole."""
        if self._parts != self._parts_wanted:
            raise OutOfStep(f"the snapshot ended after {self._parts} of {self._parts_wanted} parts")
        self.complete = True
        self._forget_bodies({key for key, _ in self._bodies})

    def apply(self, delta: Delta) -> None:
        """Take one delta: first what was removed, then what is new or changed."""
        here, there = self.position, delta.position
        if (there.epoch, there.incarnation) != (here.epoch, here.incarnation):
            raise OutOfStep("the delta is of another incarnation of the broker")
        if there.sequence != here.sequence + 1:
            raise OutOfStep(f"delta {there.sequence} came after {here.sequence}")
        removed, locations, replace = set(delta.removed), self.locations, msgspec.structs.replace
        known = delta.values.keys() <= locations.keys()
        if not known or not removed.isdisjoint(delta.values):
            raise OutOfStep("new readings of a location that is not there")
        changed = {
            key: changed_view(None if key in removed else locations.get(key), change)
            for key, change in delta.locations.items()
        }
        for key, values in delta.values.items():  # nearly all of everything, and so in line
            view = locations[key]
            locations[key] = replace(view, values={**view.values, **values})
        for key in removed:
            locations.pop(key, None)
        locations.update(changed)
        if delta.types is not None:
            self._types, self._begin = {kind.name: kind for kind in delta.types}, None
        replace_views(self.claims, delta.claims)
        replace_views(self.bindings, delta.bindings)
        self.position, self.revision, self.broker_ms = there, delta.revision, delta.broker_ms
        if self._bodies:
            self._forget_bodies(removed | changed.keys())

    def inventory(self, key: str, reporter: str) -> Inventory | None:
        """The body that was fetched last, if there is one; `wanted` says if it is old.

        Generation and completeness can change without the body; they are those of the map.
        """
        digest, body = self._bodies.get((key, reporter), ("", None))
        view = self.locations.get(key)
        ref = view.inventories.get(reporter) if view else None
        if body is None or ref is None or ref.digest != digest:
            return body
        return msgspec.structs.replace(body, generation=ref.generation, complete=ref.complete)

    def whole(self) -> dict[str, LocationView]:
        """All locations with nothing left undecoded (`arrived`): what can be encoded."""
        return {key: arrived.whole(view) for key, view in self.locations.items()}

    def bodies(self) -> Mapping[tuple[str, str], tuple[str, Inventory]]:
        """All bodies held, by location and reporter, each with its digest."""
        return self._bodies

    def wanted(self, keys: Iterable[str] | None = None) -> dict[str, list[str]]:
        """Inventories whose body is missing or old, in the form of `InventoriesRequest.wanted`.

        `keys` bounds the search to some locations; None: all.
        """
        missing: dict[str, list[str]] = {}
        for key in self.locations if keys is None else keys:
            view = self.locations.get(key)
            for reporter, ref in view.inventories.items() if view else ():
                held = self._bodies.get((key, reporter))
                if held is None or held[0] != ref.digest:
                    missing.setdefault(key, []).append(reporter)
        return missing

    def keep(self, bodies: Mapping[str, Mapping[str, Inventory]]) -> None:
        """Keep bodies that were asked for, named by what they hold."""
        for key, of_location in bodies.items():
            for reporter, body in of_location.items():
                self._bodies[key, reporter] = (reference(body).digest, body)

    def _forget_bodies(self, keys: Set[str]) -> None:
        for key, reporter in list(self._bodies):
            if key in keys and (key not in self.locations or reporter not in self.locations[key].inventories):
                del self._bodies[key, reporter]


def changed_view(view: LocationView | None, change: LocationChange) -> LocationView:
    """The view after a change; `view` is None for a location that is new to the stream."""
    if view is None:
        if change.source is None or change.state is None:
            raise OutOfStep("a change of a location that is not there")
        view = LocationView(source=change.source, state=change.state)
    return LocationView(
        source=_or(change.source, view.source),
        state=_or(change.state, view.state),
        conditions=_or(change.conditions, view.conditions),
        holds=_or(change.holds, view.holds),
        groups=_or(change.groups, view.groups),
        values=merged(view.values, change.values),
        reporters=merged(view.reporters, change.reporters),
        inventories=merged(view.inventories, change.inventories),
        amounts=merged(view.amounts, change.amounts),
        quarantined=merged(view.quarantined, change.quarantined),
        about=_or(change.about, view.about),
    )


def replace_views(views: dict[str, V], changes: Mapping[str, V | None]) -> None:
    """Take whole views; None removes."""
    for key, view in changes.items():
        if view is None:
            views.pop(key, None)
        else:
            views[key] = view


def _or(new: V | None, old: V) -> V:
    return old if new is None else new


def merged(old: dict[str, V], changes: Mapping[str, V | None]) -> dict[str, V]:
    """`old` with the changes applied; a change to None removes the key."""
    if not changes:
        return old
    new: dict[str, V] = {**old, **changes}  # type: ignore[dict-item] # where it is None, it goes
    for key, value in changes.items():
        if value is None:
            del new[key]
    return new
