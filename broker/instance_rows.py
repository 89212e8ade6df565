"""Instances as people look at them: what hosts have, who has it, and why it may not be used: rows. Pure."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from xce.broker.mirror import Mirror
from xce.broker.views import natural
from xce.model.claim import ENDED, Binding, Chosen, Quarantine
from xce.model.instance import Health, Instance, ill
from xce.model.message import LocationView
from xce.model.supply import LocationKind, location


class InventoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One inventory of one host."""

    host: str
    reporter: str
    generation: int
    complete: bool
    """Whether its reporter has found everything, and all of it is shown."""
    count: int


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A live binding because of which an instance may not be chosen."""

    binding: str
    claim: str
    consumer: str
    state: str
    instance: str
    """What it has: this instance, what that is a part of, or a part of it."""


class InstanceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of one host."""

    host: str
    reporter: str
    listed: bool
    """Whether an inventory has it; bound and quarantined ones are shown without, too."""
    health: str
    """Its own, or `quarantined`."""
    reason: str
    holders: list[Holder]
    instance: Instance

    @property
    def is_problem(self) -> bool:
        """Whether somebody should look at it."""
        return not self.listed or self.health == Health.QUARANTINED or ill(self.instance)


def inventory_rows(mirror: Mirror, hosts: Iterable[str]) -> list[InventoryRow]:
    """The inventories of some hosts; the mirror has their bodies."""
    rows = []
    for host in hosts:
        key = location(LocationKind.HOST, host)
        for reporter, ref in sorted(mirror.locations[key].inventories.items()):
            body = mirror.inventory(key, reporter)
            rows.append(
                InventoryRow(
                    host=host,
                    reporter=reporter,
                    generation=body.generation if body else ref.generation,
                    complete=body is not None and body.complete,
                    count=len(body.instances) if body else ref.count,
                )
            )
    return rows


def instance_rows(mirror: Mirror, hosts: Iterable[str]) -> list[InstanceRow]:
    """The instances of some hosts, each above its parts; the mirror has the bodies of their inventories."""
    live = [view.binding for view in mirror.bindings.values() if view.binding.state not in ENDED]
    by_host: dict[str, list[Binding]] = {}
    for binding in sorted(live, key=lambda one: natural(one.id)):
        by_host.setdefault(binding.host, []).append(binding)
    return [row for host in hosts for row in _of_host(mirror, host, by_host.get(host, []))]


def _of_host(mirror: Mirror, host: str, bindings: list[Binding]) -> Iterator[InstanceRow]:
    view = mirror.locations[location(LocationKind.HOST, host)]
    found = dict(_listed(mirror, host, view))
    unlisted = dict(_unlisted(view, bindings, found))
    above = {name: _above(one, found) for name, (_, one) in found.items()}
    above |= {name: chosen.parents for name, chosen in unlisted.items()}
    held = [
        (has.id, {has.id, *has.parents, *above.get(has.id, [])}, binding)
        for binding in bindings
        for has in binding.instances
    ]
    for name, (reporter, one) in [*found.items(), *((name, _as_listed(c)) for name, c in unlisted.items())]:
        kept = view.quarantined.get(name)
        yield InstanceRow(
            host=host,
            reporter=reporter,
            listed=name in found,
            health=Health.QUARANTINED.value if kept else one.health.value,
            reason=kept.reason if kept else one.reason or _beside(name, above, view.quarantined),
            holders=[_holder(has, b) for has, family, b in held if name in family or has in above[name]],
            instance=one,
        )


def _listed(mirror: Mirror, host: str, view: LocationView) -> Iterator[tuple[str, tuple[str, Instance]]]:
    """What the inventories have: (reporter, instance) by id, wholes before their parts."""
    for reporter in sorted(view.inventories):
        body = mirror.inventory(location(LocationKind.HOST, host), reporter)
        parts: dict[str, list[Instance]] = {}
        for one in body.instances if body else ():
            parts.setdefault(one.parent, []).append(one)
        left = parts.pop("", [])[::-1]
        while left or parts:
            one = left.pop() if left else parts.popitem()[1].pop()  # parts of each other: none is above all
            yield one.id, (reporter, one)
            left += parts.pop(one.id, [])[::-1]


def _unlisted(
    view: LocationView, bindings: list[Binding], found: Mapping[str, object]
) -> Iterator[tuple[str, Chosen]]:
    """What is bound or quarantined, and in no inventory now."""
    kept = [one.instance for one in view.quarantined.values()]
    for chosen in [*(one for binding in bindings for one in binding.instances), *kept]:
        if chosen.id not in found:
            yield chosen.id, chosen


def _as_listed(chosen: Chosen) -> tuple[str, Instance]:
    return chosen.reporter, Instance(
        id=chosen.id,
        kind=chosen.kind or "unknown",
        parent=chosen.parents[0] if chosen.parents else "",
        health=Health.UNKNOWN,
        reason="it is in no inventory of the host",
    )


def _above(one: Instance, found: Mapping[str, tuple[str, Instance]]) -> list[str]:
    """Everything that it is a part of, the nearest first."""
    above: list[str] = []
    while one.parent and one.parent not in above:
        above.append(one.parent)
        one = found[one.parent][1]
    return above


def _beside(name: str, above: Mapping[str, list[str]], quarantined: Mapping[str, Quarantine]) -> str:
    """Whether it may not be chosen because of another that is quarantined, in words."""
    for other in quarantined:
        if other in above[name]:
            return f"{other}, which it is a part of, is quarantined"
        if name in above.get(other, []):
            return f"{other}, a part of it, is quarantined"
    return ""


def _holder(instance: str, binding: Binding) -> Holder:
    return Holder(
        binding=binding.id,
        claim=binding.claim,
        consumer=binding.consumer.name,
        state=binding.state.value,
        instance=instance,
    )
