"""May these instances of this host be bound? Everything that stands against a choice, in words.

Pure: raises `Refusal`, or gives the instances as they are kept with the binding. A choice is good only for
the inventory that it was made from, and nothing that is unknown, unreachable, quarantined or taken is free:
not itself, not what it is a part of, not a part of it, and not more of a parent than the parent has.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from xce.broker.core.location import Host
from xce.broker.core.situation import Refusal
from xce.model.claim import Ask, Chosen
from xce.model.instance import Health, Instance
from xce.model.message import Pick
from xce.model.supply import HostState

ANCESTORS = 8
"""How deep an instance may be a part of others."""
AGAIN = "choose again from the newest snapshot"

Inventories = Callable[[Host, str], Mapping[str, Instance]]
"""The instances of a host's reporter, by id."""


def host_problem(host: Host | None, name: str, *, settled: bool) -> str:
    """Why nothing may be bound on a host; '' if something may."""
    if host is None:
        return f"there is no host {name!r}"
    if host.rejoining:
        return f"host {name} has not confirmed itself since the broker's start"
    if host.state is not HostState.AVAILABLE:
        return f"host {name} is {host.state.value}"
    if host.peer is None:
        return f"the agent of host {name} is not connected"
    if host.agent.get("claims") == "no":
        return f"host {name} takes no claims (its agent.yaml says so: claims.enabled)"
    if not settled:
        return f"the agent of host {name} has not said what it has bound"
    if host.view.holds:
        hold = host.view.holds[0]
        return f"host {name} is held by {hold.owner}: {hold.reason}"
    return ""


def choose(
    host: Host, picks: Sequence[Pick], ask: Ask, held: Sequence[tuple[Chosen, str]], inventories: Inventories
) -> list[Chosen]:
    """The picked instances, if nothing stands against them; raises `Refusal`."""
    found: dict[str, Mapping[str, Instance]] = {}
    for pick in picks:
        if pick.reporter not in found:
            found[pick.reporter] = _inventory(host, pick, inventories)
        elif host.view.inventories[pick.reporter].generation != pick.generation:
            raise _stale(host, pick)
    chosen = [_chosen(host, pick, found[pick.reporter]) for pick in picks]
    if len({one.id for one in chosen}) != len(chosen):
        raise Refusal("invalid", f"cannot bind on {host.name}: an instance is picked twice")
    if problem := asked_problem(ask, chosen):
        hint = f"pick what it asks for by id; xce-broker instances {host.name} shows them"
        raise Refusal("invalid", f"cannot bind on {host.name}: {problem}", hint)
    _exclusive(host, chosen, held)
    for reporter, instances in found.items():
        mine = [one for one in chosen if one.reporter == reporter]
        _fits(host, mine, [one for one, _ in held], instances)
    return chosen


def asked_problem(ask: Ask, chosen: Sequence[Chosen]) -> str:
    """'' if instances are what a claim asks for: so many of each kind, or exactly those."""
    wanted: Counter[str] = Counter()
    for one in ask.instances:
        wanted[one.kind] += len(one.ids) or one.count
    given = Counter(one.kind for one in chosen)
    for kind in [*wanted, *given]:
        if wanted[kind] != given[kind]:
            return f"the claim asks for {wanted[kind]} of kind {kind!r}, {given[kind]} are picked"
    ids = {one.id for one in chosen}
    missing = [name for one in ask.instances for name in one.ids if name not in ids]
    return f"the claim asks for {missing[0]}, which is not picked" if missing else ""


def _inventory(host: Host, pick: Pick, inventories: Inventories) -> Mapping[str, Instance]:
    known = host.view.inventories.get(pick.reporter)
    if known is None:
        raise Refusal(
            "conflict", f"cannot bind on {host.name}: it has no inventory of {pick.reporter!r}", AGAIN
        )
    if known.generation != pick.generation:
        raise _stale(host, pick)
    if not known.complete:
        if (listed := inventories(host, pick.reporter).get(pick.id)) is not None:
            _need_well(host, pick, listed)  # that is the better reason
        raise Refusal(
            "conflict",
            f"cannot bind on {host.name}: the inventory of {pick.reporter} is not complete",
            "wait until its reporter has found everything",
        )
    return inventories(host, pick.reporter)


def _stale(host: Host, pick: Pick) -> Refusal:
    now = host.view.inventories[pick.reporter].generation
    words = f"{pick.id} was chosen from generation {pick.generation} of {pick.reporter}, now it is {now}"
    return Refusal("conflict", f"cannot bind on {host.name}: {words}", AGAIN)


def _chosen(host: Host, pick: Pick, instances: Mapping[str, Instance]) -> Chosen:
    instance = instances.get(pick.id)
    if instance is None:
        raise Refusal("conflict", f"cannot bind on {host.name}: {pick.reporter} has no {pick.id!r}", AGAIN)
    _need_well(host, pick, instance)
    return as_chosen(pick.id, pick.reporter, pick.generation, instances)


def _need_well(host: Host, pick: Pick, instance: Instance) -> None:
    if instance.health is not Health.AVAILABLE:
        why = f"{instance.health.value}: {instance.reason}" if instance.reason else instance.health.value
        raise Refusal("conflict", f"cannot bind on {host.name}: {pick.id} is {why}", AGAIN)


def as_chosen(instance_id: str, reporter: str, generation: int, instances: Mapping[str, Instance]) -> Chosen:
    """An instance as it is kept with a binding or in quarantine."""
    instance = instances[instance_id]
    parents: list[str] = []
    above = instance.parent
    while above and above not in parents and len(parents) < ANCESTORS:
        parents.append(above)
        above = instances[above].parent if above in instances else ""
    return Chosen(
        id=instance.id,
        reporter=reporter,
        generation=generation,
        kind=instance.kind,
        parents=parents,
        consumes=instance.consumes,
    )


def _exclusive(host: Host, chosen: Sequence[Chosen], held: Sequence[tuple[Chosen, str]]) -> None:
    """None of them is taken, a part of one that is, or has a part that is."""
    taken = {one.id: why for one, why in held}
    parts = {parent: (one.id, why) for one, why in held for parent in one.parents}
    among = {parent: (one.id, "it is picked too") for one in chosen for parent in one.parents}
    for one in chosen:
        if one.id in taken:
            raise Refusal("conflict", f"cannot bind {one.id} on {host.name}: {taken[one.id]}", AGAIN)
        for parent in one.parents:
            if parent in taken:
                words = f"it is a part of {parent}, and {taken[parent]}"
                raise Refusal("conflict", f"cannot bind {one.id} on {host.name}: {words}", AGAIN)
        if (part := parts.get(one.id) or among.get(one.id)) is not None:
            words = f"{part[0]} is a part of it, and {part[1]}"
            raise Refusal("conflict", f"cannot bind {one.id} on {host.name}: {words}", AGAIN)


def _fits(
    host: Host, chosen: Sequence[Chosen], held: Sequence[Chosen], instances: Mapping[str, Instance]
) -> None:
    """Nothing takes more from a parent than it has: plain sums of counters."""
    parents = {one.parents[0] for one in chosen if one.parents}
    for parent in parents:
        capacity = instances[parent].capacity if parent in instances else {}
        used: Counter[str] = Counter()
        for one in [*held, *chosen]:
            if one.parents[:1] == [parent]:
                used.update(one.consumes)
        for counter in sorted(
            {name for one in chosen if one.parents[:1] == [parent] for name in one.consumes}
        ):
            if counter not in capacity:
                words = f"nobody knows how much {counter} {parent} has"
                raise Refusal("conflict", f"cannot bind on {host.name}: {words}", AGAIN)
            if used[counter] > capacity[counter]:
                words = f"{parent} has {capacity[counter]} of {counter}, {used[counter]} would be used"
                raise Refusal("conflict", f"cannot bind on {host.name}: {words}", AGAIN)
