"""What is remembered of an instance's health from reading to reading.

Pure. `verdict.py` looks at one reading and forgets; `step` adds what happened before: an XID is told once and
lasts until the GPU was mended, an instance that was ill comes back through probation, and one that is ill
again and again stays out until an admin clears it. A `Record` is one instance's memory and plain data:
whoever keeps it (the agent) keeps it across restarts of the probe and of itself. Nothing here knows what a
GPU is: the verdict may be that of any kind of instance.

`clear` refuses with `ValueError` what an admin cannot do.
"""

from enum import StrEnum

import msgspec

from xce.agent.probe.verdict import Fault, Verdict
from xce.model.instance import Health
from xce.model.transition import Machine


class State(StrEnum):
    """Where an instance is between well and ill."""

    HEALTHY = "healthy"
    """Nothing is known against it."""
    FAULTY = "faulty"
    """A fault is seen, or an XID was told and nothing has ended it yet."""
    LOST = "lost"
    """It was there and cannot be found."""
    PROBATION = "probation"
    """The fault is gone; it is not offered until it was well for some time."""
    QUARANTINED = "quarantined"
    """It was ill too often; only an admin brings it back."""


class Change(StrEnum):
    """What a reading, the time or an admin says to it."""

    CLEAN = "clean"
    """A reading shows no fault."""
    FAULT = "fault"
    """A reading shows a fault, or an XID still lasts."""
    VANISHED = "vanished"
    """A reading does not find it."""
    SERVED = "served"
    """Its time on probation is over."""
    TOO_OFTEN = "too-often"
    """It falls ill once more than is allowed within the time of memory."""
    CLEARED = "cleared"
    """An admin says, with a reason, that it may be used."""


MACHINE: Machine[State, Change] = Machine(
    "instance health",
    State.HEALTHY,
    {
        (State.HEALTHY, Change.CLEAN): State.HEALTHY,
        (State.HEALTHY, Change.FAULT): State.FAULTY,
        (State.HEALTHY, Change.VANISHED): State.LOST,
        (State.HEALTHY, Change.TOO_OFTEN): State.QUARANTINED,
        (State.FAULTY, Change.CLEAN): State.PROBATION,
        (State.FAULTY, Change.FAULT): State.FAULTY,
        (State.FAULTY, Change.VANISHED): State.LOST,
        (State.FAULTY, Change.CLEARED): State.HEALTHY,
        (State.LOST, Change.CLEAN): State.PROBATION,
        (State.LOST, Change.FAULT): State.FAULTY,
        (State.LOST, Change.VANISHED): State.LOST,
        (State.PROBATION, Change.CLEAN): State.PROBATION,
        (State.PROBATION, Change.FAULT): State.FAULTY,
        (State.PROBATION, Change.VANISHED): State.LOST,
        (State.PROBATION, Change.SERVED): State.HEALTHY,
        (State.PROBATION, Change.TOO_OFTEN): State.QUARANTINED,
        (State.PROBATION, Change.CLEARED): State.HEALTHY,
        (State.QUARANTINED, Change.CLEAN): State.QUARANTINED,
        (State.QUARANTINED, Change.FAULT): State.QUARANTINED,
        (State.QUARANTINED, Change.VANISHED): State.QUARANTINED,
        (State.QUARANTINED, Change.CLEARED): State.HEALTHY,
    },
    final=frozenset(),
)


class Rules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How long and how often. All times in seconds."""

    probation_s: tuple[float, ...] = (0.0, 600.0, 3600.0, 21600.0)
    """By how often it fell: the first time it comes back at once; the last number holds for all others."""
    event_probation_s: float = 600.0
    """The least probation after an XID."""
    settle_s: float = 60.0
    """For so long after an XID "nothing is needed" from the driver is not yet believed."""
    memory_s: float = 86400.0
    """After so long without a fault its falls are forgotten."""
    falls: int = 5
    """One more within `memory_s`, and only an admin brings it back."""


RULES = Rules()


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is remembered of one instance. Times are CLOCK_MONOTONIC of the boot `boot`."""

    state: State = State.HEALTHY
    boot: str = ""
    entered: float = 0.0
    """When `state` began, or, on probation, when it was last unknown."""
    health: Health = Health.AVAILABLE
    """What is shown of it."""
    since: str = ""
    """Wall time at which `health` became what it is, only for showing."""
    falls: int = 0
    fell: float = 0.0
    probation_s: float = 0.0
    fault: Fault | None = None
    """The fault that it is in, or was in last."""
    event: Fault | None = None
    """An XID that nothing has ended yet."""
    told: float = 0.0
    """`at` of the newest event that was taken into account."""
    gone: float = 0.0
    """When it was last seen to be lost: what was told before then ended when it came back."""
    waived: tuple[str, ...] = ()
    """Causes that an admin has cleared; each holds until it is gone."""
    waiver: str = ""
    """By whom and why, for showing."""


_with = msgspec.structs.replace


def step(
    record: Record, verdict: Verdict, *, now: float, wall: str, boot: str, rules: Rules = RULES
) -> Record:
    """The memory after one more reading."""
    record = _rebooted(record, now=now, boot=boot)
    record = _take_events(record, verdict, now=now, rules=rules)
    unknown = any(fault.health == Health.UNKNOWN for fault in verdict.faults)
    if not unknown:
        seen = {fault.cause for fault in verdict.faults}
        record = _with(record, waived=tuple(cause for cause in record.waived if cause in seen))
    fault = _standing(record, verdict)
    if fault is not None:
        record = _fallen(record, fault, now=now, rules=rules)
    elif not unknown:
        record = _clean(record, now=now, rules=rules)
    elif record.state == State.PROBATION:
        record = _with(record, entered=now)  # time in which nothing was seen proves nothing
    health = shown(record, verdict).health
    return record if health == record.health else _with(record, health=health, since=wall)


def _rebooted(record: Record, *, now: float, boot: str) -> Record:
    """A new boot ends what an XID began; what is measured starts anew, since the clock did."""
    if record.boot == boot:
        return record
    if not record.boot:
        return _with(record, boot=boot, entered=now)
    return _with(record, boot=boot, entered=now, fell=now, event=None, told=0.0, gone=0.0)


def _take_events(record: Record, verdict: Verdict, *, now: float, rules: Rules) -> Record:
    """Take in new events; the driver's word, or a disappearance and return, ends an old one.

    A GPU that is lost has often no name under which an event could reach it: it is told when it is back.
    """
    newest = max(verdict.events, key=lambda event: event.at, default=None)
    if newest is not None and newest.at > record.told:
        record = _with(record, event=newest, told=newest.at)
    event = record.event
    if event is None or any(fault.health in (Health.UNKNOWN, Health.LOST) for fault in verdict.faults):
        return record
    came_back = event.at <= record.gone
    believed = bool(verdict.cured) and now - event.at >= rules.settle_s
    if not (came_back or believed):
        return record
    return _with(record, event=None, probation_s=max(record.probation_s, rules.event_probation_s))


def _standing(record: Record, verdict: Verdict) -> Fault | None:
    """What is wrong and not waived: this reading's worst fault, or the event that lasts."""
    for fault in verdict.faults:
        if fault.health != Health.UNKNOWN and fault.cause not in record.waived:
            return fault
    return record.event


def _fallen(record: Record, fault: Fault, *, now: float, rules: Rules) -> Record:
    falling = record.state in (State.HEALTHY, State.PROBATION)
    falls = _falls(record, now=now, rules=rules) + falling
    change = Change.VANISHED if fault.health == Health.LOST else Change.FAULT
    if falling and falls > rules.falls:
        change = Change.TOO_OFTEN
    least = rules.event_probation_s if record.event is not None else 0.0
    due = rules.probation_s[min(max(falls, 1), len(rules.probation_s)) - 1]
    record = _with(record, falls=falls, fell=now if falling else record.fell, fault=fault)
    if fault.health == Health.LOST:
        record = _with(record, gone=now)
    before = 0.0 if falling else record.probation_s
    return _moved(_with(record, probation_s=max(before, least, due)), change, now=now)


def _clean(record: Record, *, now: float, rules: Rules) -> Record:
    record = _moved(record, Change.CLEAN, now=now)
    if record.state == State.PROBATION and now - record.entered >= record.probation_s:
        record = _moved(_with(record, probation_s=0.0), Change.SERVED, now=now)
    return _with(record, falls=_falls(record, now=now, rules=rules))


def _falls(record: Record, *, now: float, rules: Rules) -> int:
    forgotten = record.state == State.HEALTHY and now - record.fell >= rules.memory_s
    return 0 if forgotten else record.falls


def _moved(record: Record, change: Change, *, now: float) -> Record:
    state = MACHINE.step(record.state, change)
    return record if state == record.state else _with(record, state=state, entered=now)


def clear(record: Record, verdict: Verdict, *, who: str, why: str, now: float, wall: str) -> Record:
    """An admin's word that the instance may be used in spite of what was or, in `verdict`, still is seen."""
    if not why.strip():
        raise ValueError("cannot clear without a reason")
    if any(fault.health == Health.LOST for fault in verdict.faults):
        raise ValueError("cannot clear an instance that is lost: nothing is there to be used")
    if not MACHINE.allows(record.state, Change.CLEARED):
        raise ValueError(f"cannot clear an instance that is {record.state}")
    record = _with(
        _moved(record, Change.CLEARED, now=now),
        falls=0,
        probation_s=0.0,
        event=None,
        waived=tuple(fault.cause for fault in verdict.faults if fault.health != Health.UNKNOWN),
        waiver=f"cleared by {who}: {why}",
    )
    health = shown(record, verdict).health
    return record if health == record.health else _with(record, health=health, since=wall)


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """The health of an instance as it is published."""

    health: Health
    reason: str = ""
    evidence: str = ""
    since: str = ""
    recovery: str = ""
    notes: tuple[str, ...] = ()


def shown(record: Record, verdict: Verdict) -> Shown:
    """What is published after `step(record, verdict)`."""
    waived = [fault for fault in verdict.faults if fault.cause in record.waived]
    notes = (*verdict.notes, *(f"{fault.reason}; {record.waiver}" for fault in waived))
    last = record.fault or Fault(cause="", reason="")
    unknown = next((fault for fault in verdict.faults if fault.health == Health.UNKNOWN), None)
    if record.state == State.QUARANTINED:
        last = Fault(
            health=Health.QUARANTINED,
            cause=last.cause,
            reason=f"ill {record.falls} times, last: {last.reason}",
            evidence=last.evidence,
            recovery="by an admin",
        )
    elif unknown is not None:
        last = unknown
    elif record.state == State.PROBATION:
        last = Fault(
            cause=last.cause,
            reason=f"on probation after: {last.reason}",
            evidence=last.evidence,
            recovery=f"by itself after {record.probation_s:.0f} s without a fault",
        )
    elif record.state == State.HEALTHY:
        return Shown(health=Health.AVAILABLE, since=record.since, notes=notes)
    return Shown(
        health=last.health,
        reason=last.reason,
        evidence=last.evidence,
        since=record.since,
        recovery=last.recovery,
        notes=notes,
    )


def alone(verdict: Verdict) -> Shown:
    """What one reading shows where nothing is remembered, as of a machine in a file."""
    record = step(Record(), verdict, now=0.0, wall="", boot="none")
    return msgspec.structs.replace(shown(record, verdict), since="")


def below(own: Shown, parent: Shown) -> Shown:
    """The health of a part (a MIG slice): never better than that of the whole."""
    if parent.health == Health.AVAILABLE or own.health != Health.AVAILABLE:
        return own
    return msgspec.structs.replace(
        parent, reason=f"its GPU: {parent.reason}", notes=own.notes, since=parent.since
    )
