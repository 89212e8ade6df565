"""What was known and a new reading make the inventory of now.

Pure. A device is itself by its UUID, or by its PCI address while nobody can say its UUID. What was once found
stays until an admin clears it or the configuration lets it go: a discovery that fails, or finds fewer than
there are, never makes the inventory smaller. Only parts (MIG slices, virtual functions, ports) whose whole
was read well, and devices without any lasting identity (a bridge, a bond), go when they are not found.
Health is the reading's word and the memory's: `xce.agent.probe.health`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from xce.agent.probe import health
from xce.agent.probe.frame import NVIDIA, Line, source
from xce.agent.probe.health import Record, Rules, Shown
from xce.agent.probe.verdict import Fault, Verdict
from xce.model.instance import NOTES, Health, Instance

BY_PCI = "pci:"
"""Before the address, in the id of a device that has no better one."""
PASSING = ("net:", "rdma:")
"""Before the name of a device that is nothing but its name."""
NAMELESS = "nvml:"
"""Before the index of a GPU that the library counts and cannot say anything of: a witness, no identity."""
REMOVED = "removed"
"""How the reason of what nothing shows any more begins."""
LOST_MEMORY_S = 600.0
"""Probation of what is found after the memory of its faults was lost."""
_WORSE = frozenset({Health.LOST, Health.QUARANTINED})
_ADMIN = "by an admin: xce-agent inventory clear"


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of all instances, by id."""

    instances: dict[str, Instance] = {}
    """As they were last published."""
    records: dict[str, Record] = {}
    """Of those that have had anything to do with health."""
    complete: bool = False
    """Whether what is missing was known to be gone."""


class Moment(NamedTuple):
    """When something is: `now` of CLOCK_MONOTONIC in the boot `boot`, `wall` for showing."""

    now: float
    wall: str
    boot: str


Told: TypeAlias = tuple[Instance, Verdict | None]
"""An instance, and what is said of its health; None: what stands in it."""


def after(
    memory: Memory,
    line: Line,
    moment: Moment,
    *,
    forget: Callable[[str], bool] = lambda _: False,
    suspect: bool = False,
    rules: Rules = health.RULES,
) -> Memory:
    """What is known after a reading. `forget(kind)`: what is removed may go. `suspect`: the memory was lost,
    so whoever is met for the first time may be an old offender.
    """
    told = _found(memory.instances, line)
    _missing(memory.instances, line, told, forget)
    complete = memory.complete if line.pending else line.complete
    return _judged(memory, told, moment, complete=complete, suspect=suspect, rules=rules)


def deafened(line: Line, blind: Mapping[str, str]) -> Line:
    """A reading that waits for nobody any more: sources that do not answer say nothing, for these reasons."""
    unread = {one.id: _unread(blind[source(one)]) for one in line.instances or () if source(one) in blind}
    return msgspec.structs.replace(
        line, pending=[], blind={**line.blind, **blind}, verdicts={**line.verdicts, **unread}
    )


def blinded(memory: Memory, blind: Mapping[str, str], moment: Moment) -> Memory:
    """What is known when sources have not been heard for too long, each with the reason."""
    told: dict[str, Told] = {
        id_: (one, _unread(blind[source(one)]) if source(one) in blind else None)
        for id_, one in memory.instances.items()
    }
    return _judged(memory, told, moment, complete=False)


def cleared(memory: Memory, id_: str, verdict: Verdict, *, who: str, why: str, moment: Moment) -> Memory:
    """After an admin's word: one that was removed is forgotten with its parts, another may be used again in
    spite of `verdict`, the newest of it. Raises ValueError with the reason why not.
    """
    one = memory.instances.get(id_)
    if one is None:
        raise ValueError(f"cannot clear {id_!r}: no instance is called so")
    if not why.strip():
        raise ValueError(f"cannot clear {id_} without a reason")
    if one.health is Health.LOST and one.reason.startswith(REMOVED):
        return _forgotten(memory, id_)
    if one.health is Health.LOST:
        ends = one.recovery or "once it is found again"
        raise ValueError(f"cannot clear {id_}: it is lost ({one.reason}); that ends {ends}")
    record = memory.records.get(id_)
    if record is None:
        raise ValueError(f"cannot clear {id_}: it is {one.health.value}, and nothing is held against it")
    record = health.clear(record, verdict, who=who, why=why, now=moment.now, wall=moment.wall)
    return msgspec.structs.replace(memory, records={**memory.records, id_: record})


def restless(memory: Memory) -> bool:
    """Whether time alone may change something: a probation that is served, a fault that is forgotten."""
    return any(record.state is not health.State.HEALTHY or record.falls for record in memory.records.values())


# ------------------------------------------------------------------------------------------ identity


def _found(before: Mapping[str, Instance], line: Line) -> dict[str, Told]:
    """What was found, under the ids that it had before where its UUID cannot be read now."""
    found = {one.id: one for one in line.instances or () if not one.id.startswith(NAMELESS)}
    known = {
        (one.kind, _pci(one)): one
        for one in before.values()
        if _pci(one) and not one.parent and one.id not in found and not one.id.startswith(BY_PCI)
    }
    renamed = {
        one.id: known[one.kind, _pci(one)]
        for one in found.values()
        if one.id.startswith(BY_PCI) and not one.parent and (one.kind, _pci(one)) in known
    }
    told: dict[str, Told] = {}
    for one in found.values():
        if one.id not in before and one.id not in renamed and source(one) in line.pending:
            continue  # it is named when it was asked
        verdict = line.verdicts.get(one.id)
        if source(one) in line.pending and one.id in before:
            told[one.id] = before[one.id], None
        elif (old := renamed.get(one.id)) is not None:
            told[old.id] = _adopted(old, one, verdict, pending=source(old) in line.pending)
        elif one.parent in renamed:
            told[one.id] = msgspec.structs.replace(one, parent=renamed[one.parent].id), verdict
        else:
            told[one.id] = one, verdict
    return told


def _adopted(known: Instance, seen: Instance, verdict: Verdict | None, *, pending: bool) -> Told:
    """A known device that shows only its address now: what it is stays, how it is is new."""
    if pending:
        return known, None
    merged = msgspec.structs.replace(
        known,
        health=seen.health,
        reason=seen.reason,
        evidence=seen.evidence,
        recovery=seen.recovery,
        notes=seen.notes,
        attributes={**known.attributes, **seen.attributes},
    )
    return merged, verdict


# --------------------------------------------------------------------------------- what was not found


def _missing(
    before: Mapping[str, Instance], line: Line, told: dict[str, Told], forget: Callable[[str], bool]
) -> None:
    """Add those that were not found and stay all the same."""
    places = {(one.kind, _pci(one)): one for one, _ in told.values() if _pci(one) and not one.parent}
    nameless = [one.id for one in line.instances or () if one.id.startswith(NAMELESS)]
    for one in _wholes_first(before.values()):
        if one.id in told:
            continue
        place = places.get((one.kind, _pci(one))) if not one.parent else None
        if place is not None and one.id.startswith(BY_PCI):
            continue  # it was known by its address alone, and is found under its UUID now
        if source(one) in line.pending:
            told[one.id] = one, None
        elif why := line.blind.get(source(one)):
            told[one.id] = one, None if one.health in _WORSE else _unread(why)
        elif one.parent:
            _part(one, line, told)
        elif nameless and place is None and source(one) == NVIDIA:
            told[one.id] = one, line.verdicts.get(nameless.pop(0)) or _lost("the library has lost it", "")
        elif fate := _fate(one, line, place, forget):
            told[one.id] = fate


def _fate(one: Instance, line: Line, place: Instance | None, forget: Callable[[str], bool]) -> Told | None:
    """What a whole one that was not found is from now on; None: it goes."""
    address = _pci(one)
    if one.id.startswith(PASSING):
        return (one, None) if line.holes else None
    if place is None and address in line.present:
        return one, _lost("it is there and its driver does not show it", f"PCI {address}")
    if place is None and line.holes:
        return one, _unread("not found, and not everything could be looked at")
    if forget(one.kind):
        return None
    how = f"{place.id} is in its place" if place else "nothing shows it any more"
    return one, _lost(f"{REMOVED}: {how}", f"not at PCI {address}" if address else "", _ADMIN)


def _part(one: Instance, line: Line, told: dict[str, Told]) -> None:
    """A part goes when its whole was read well, and shares its fate otherwise."""
    if one.parent not in told:
        return
    whole, verdict = told[one.parent]
    worst = verdict.worst if verdict else None
    said = worst.health if worst else whole.health
    if said in (Health.LOST, Health.UNKNOWN):
        reason = f"its whole: {worst.reason if worst else whole.reason}"
        told[one.id] = one, _lost(reason, "") if said is Health.LOST else _unread(reason)
    elif one.parent in line.partial:
        told[one.id] = one, _unread(f"the parts of {whole.id} cannot be read")


def _lost(reason: str, evidence: str, recovery: str = "by itself, once it is found again") -> Verdict:
    fault = Fault(health=Health.LOST, cause="lost", reason=reason, evidence=evidence, recovery=recovery)
    return Verdict(faults=(fault,))


def _unread(why: str) -> Verdict:
    fault = Fault(
        health=Health.UNKNOWN, cause="unread", reason=why, recovery="by itself, once it can be read"
    )
    return Verdict(faults=(fault,))


# -------------------------------------------------------------------------------------------- health


def _judged(
    memory: Memory,
    told: Mapping[str, Told],
    moment: Moment,
    *,
    complete: bool,
    suspect: bool = False,
    rules: Rules = health.RULES,
) -> Memory:
    """All as they are published, with what is remembered of their health."""
    instances: dict[str, Instance] = {}
    records: dict[str, Record] = {}
    faults: dict[str, Shown] = {}
    for one, verdict in _by_wholes(told):
        before, record = memory.instances.get(one.id), memory.records.get(one.id)
        if verdict is not None:
            if record is None:
                record = _suspected(moment) if suspect else Record()
            record = health.step(
                record, verdict, now=moment.now, wall=moment.wall, boot=moment.boot, rules=rules
            )
            faults[one.id] = shown = health.shown(record, verdict)
            seen = _with(one, shown)
        elif one is before:
            seen = one
        else:
            record, seen = None, _below(one, faults.get(one.parent))
        instances[one.id] = _dated(seen, before, moment.wall)
        if record is not None:
            records[one.id] = record
    return Memory(
        instances=dict(sorted(instances.items())), records=dict(sorted(records.items())), complete=complete
    )


def _by_wholes(told: Mapping[str, Told]) -> list[Told]:
    return [told[one.id] for one in _wholes_first(one for one, _ in told.values())]


def _with(one: Instance, shown: Shown) -> Instance:
    """A fault goes before what the layout says; without one the layout stands."""
    notes = list(dict.fromkeys([*one.notes, *shown.notes]))[:NOTES]
    if shown.health is Health.AVAILABLE:
        return msgspec.structs.replace(one, notes=notes)
    return msgspec.structs.replace(
        one,
        health=shown.health,
        reason=shown.reason,
        evidence=shown.evidence,
        recovery=shown.recovery,
        notes=notes,
    )


def _below(one: Instance, whole: Shown | None) -> Instance:
    """A part is no better than its whole, where only the memory knows what is wrong with that."""
    if whole is None or one.health is not Health.AVAILABLE:
        return one
    return _with(one, health.below(Shown(health=one.health), whole))


def _suspected(moment: Moment) -> Record:
    """Of an instance whose earlier faults are not known any more."""
    return Record(
        state=health.State.PROBATION,
        boot=moment.boot,
        entered=moment.now,
        since=moment.wall,
        probation_s=LOST_MEMORY_S,
        fault=Fault(cause="memory", reason="what was known of its faults is lost"),
    )


def _forgotten(memory: Memory, id_: str) -> Memory:
    gone = {id_}
    for part in _wholes_first(memory.instances.values()):
        if part.parent in gone:
            gone.add(part.id)
    return Memory(
        complete=memory.complete,
        instances={name: one for name, one in memory.instances.items() if name not in gone},
        records={name: record for name, record in memory.records.items() if name not in gone},
    )


# ------------------------------------------------------------------------------------------- helpers


def _dated(one: Instance, before: Instance | None, wall: str) -> Instance:
    """With the time from which its health is what it is."""
    same = before is not None and before.health is one.health and before.since
    since = before.since if same and before is not None else wall
    return one if one.since == since else msgspec.structs.replace(one, since=since)


def _pci(one: Instance) -> str:
    address = one.attributes.get("pci")
    return address if isinstance(address, str) else ""


def _wholes_first(instances: Iterable[Instance]) -> list[Instance]:
    """Every whole before its parts."""
    parts: dict[str, list[Instance]] = {}
    ids = set()
    for one in instances:
        ids.add(one.id)
        parts.setdefault(one.parent, []).append(one)
    ordered = [one for parent, group in parts.items() if parent not in ids for one in group]
    for one in ordered:
        ordered += parts.get(one.id, ())
    return ordered
