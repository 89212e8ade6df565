"""Changes in words: one line for each thing that changed, as `xce-broker watch` prints them. Pure."""

from collections.abc import Iterator, Mapping

from xce.broker.cli.output import value as in_words
from xce.broker.mirror import Mirror
from xce.broker.views import natural, trouble_of, unit_of
from xce.model.message import Delta, LocationChange, LocationView
from xce.model.resource import ResourceType
from xce.model.supply import Source
from xce.model.value import Absent, Reading

Types = Mapping[str, ResourceType]


def of_delta(
    delta: Delta, before: Mapping[str, LocationView], types: Types
) -> Iterator[tuple[str, str, str]]:
    """(location, resource, text) of everything that the delta changes; resource is '' where it is no reading.

    `before` is the map as it was. A new location gives one line and its readings.
    """
    for key in sorted(delta.removed, key=natural):
        yield key, "", "removed"
    changes = delta.changes()
    for key in sorted(changes, key=natural):
        view = None if key in delta.removed else before.get(key)
        for resource, text in of_location(changes[key], view, types):
            yield key, resource, text
    if delta.types is not None:
        yield "", "", f"types: {len(delta.types)} in force"


def of_location(change: LocationChange, view: LocationView | None, types: Types) -> Iterator[tuple[str, str]]:
    """(resource, text) of one location's change; `view` is what it was, None if it is new."""
    if view is None:
        view = LocationView(source=change.source or Source.DISCOVERED, state=change.state or "")
        yield "", f"new: {view.state} (source {view.source})"
    yield from (("", text) for text in _standing(change, view))
    for resource, new in sorted(change.values.items()):
        yield resource, reading_change(resource, view.values.get(resource), new, unit_of(types, resource))
    for resource, amount in sorted(change.amounts.items()):
        text = f"base {amount.base:g}, borrowed {amount.borrowed:g}" if amount else "gone"
        yield resource, f"{resource} {text}"
    yield from (("", text) for text in _reporters(change, view))


def reading_change(resource: str, old: Reading | None, new: Reading | None, unit: str) -> str:
    """`mem 812 → 799 MB`; an absence is told with its cause."""
    if new is None:
        return f"{resource} {_reading(old, unit)} → withdrawn"
    if old is None:
        return f"{resource} {_reading(new, unit)} (new)"
    before = _reading(old, "" if not isinstance(new, Absent) else unit)
    return f"{resource} {before} → {_reading(new, unit)}"


def summary(mirror: Mirror) -> str:
    """A new map in one line."""
    readings = sum(len(view.values) for view in mirror.locations.values())
    return f"snapshot: {len(mirror.locations)} locations, {readings} readings, revision {mirror.revision}"


def _reading(reading: Reading | None, unit: str) -> str:
    if isinstance(reading, Absent):
        return f"{reading.presence.value} ({reading.cause})" if reading.cause else reading.presence.value
    return in_words(reading, unit) or "nothing"


def _standing(change: LocationChange, view: LocationView) -> Iterator[str]:
    if change.state is not None and change.state != view.state:
        yield f"state {view.state} → {change.state}"
    if change.source is not None and change.source != view.source:
        yield f"source {view.source} → {change.source}"
    yield from _set_change("condition", view.conditions, change.conditions)
    yield from _set_change("group", view.groups, change.groups)
    if change.holds is not None:
        old, new = {hold.owner: hold for hold in view.holds}, {hold.owner: hold for hold in change.holds}
        yield from (f"held by {owner}: {new[owner].reason}" for owner in new if new[owner] != old.get(owner))
        yield from (f"no longer held by {owner}" for owner in old if owner not in new)
    if change.about is not None:
        for name in sorted({*view.about, *change.about}):
            was, now = view.about.get(name, ""), change.about.get(name, "")
            if was != now:
                yield f"{name} {was or '-'} → {now or '-'}"


def _set_change(what: str, old: list[str], new: list[str] | None) -> Iterator[str]:
    if new is not None:
        yield from (f"{what} +{name}" for name in new if name not in old)
        yield from (f"{what} -{name}" for name in old if name not in new)


def _reporters(change: LocationChange, view: LocationView) -> Iterator[str]:
    """Reporters whose state has changed for people (not each run), and inventories."""
    for name, state in sorted(change.reporters.items()):
        old = view.reporters.get(name)
        if state is None:
            yield f"reporter {name} gone"
        elif old is None:
            yield f"reporter {name} {trouble_of(state) or 'good'} (new)"
        elif trouble_of(old) != trouble_of(state):
            yield f"reporter {name} {trouble_of(old) or 'good'} → {trouble_of(state) or 'good'}"
    for name, ref in sorted(change.inventories.items()):
        if ref is None:
            yield f"inventory {name} gone"
        else:
            whole = "" if ref.complete else ", incomplete"
            yield f"inventory {name} generation {ref.generation}: {ref.count} instances{whole}"
