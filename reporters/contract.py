"""What becomes of a reporter's frames: each value against its type, and a whole run by its outcome.

Pure. The rules are those of docs/reporter-contract.md:

- a value that does not fit is refused alone, keeps its text, and makes its name unknown with the reason;
- a one-shot run is taken whole when it ends with status 0, else nothing of it is. Of two lines that give one
  name the last one counts. A name that the reporter used to give and this run lacks is unknown;
- status 78 makes all names of the reporter not-applicable;
- a persistent reporter's frame is taken when it comes, and says nothing about names that are not in it.
"""

import re
import signal
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

import msgspec

from xce.model.message import ReportedCondition
from xce.model.resource import Kind, ResourceType, Scope, name_problem, normalise, value_problem
from xce.model.supply import LocationKind, split_location
from xce.model.value import Absent, Presence, Reading, Value
from xce.reporters import inventory
from xce.reporters.frame import LIMITS, Frame, Limits, Refusal, TooLong, Unfit, escape, parse_line, shown

NOT_APPLICABLE = 78
"""Exit status of a reporter whose resources have no meaning on this node (EX_CONFIG of sysexits.h)."""
REASON = 1024
"""Characters of a condition's reason."""
NO_TYPE = "no such resource type"
"""How the refusal of a name without a type begins."""
LOOKED_AT = 1024
"""Conditions of one frame, good and bad."""


class Context(msgspec.Struct, kw_only=True):
    """What a frame is checked against."""

    reporter: str
    """Name of the reporter; with `external`, the identity that types name."""
    types: Mapping[str, ResourceType]
    waiting: Mapping[str, str] = {}
    """Names whose type no broker has let in yet, and the files that declare them."""
    previous: Mapping[str, Value] = {}
    """Last good values that are still fresh, for `max_step`."""
    external: bool = False
    """Off the nodes: values of pools, groups and external things, instead of the host's own."""
    limits: Limits = LIMITS


class Checked(msgspec.Struct):
    """What the values of one frame give."""

    values: dict[str, Reading]
    """Good values, and `Absent` unknown for null."""
    silent: dict[str, Absent]
    """Declared names whose value was refused: unknown, with the reason."""
    refusals: list[Refusal]


class Verdict(StrEnum):
    """How a run or frame counts."""

    TAKEN = "taken"
    FAILED = "failed"
    NOT_APPLICABLE = "not-applicable"


class Outcome(msgspec.Struct, kw_only=True):
    """What a run, or one frame of a persistent reporter, gives. Nothing has been published yet."""

    verdict: Verdict = Verdict.TAKEN
    cause: str = ""
    """FAILED: why."""
    values: dict[str, Reading] = {}
    """What the reporter gives: good values, and `Absent` unknown for null."""
    silent: dict[str, Absent] = {}
    """Names that it should have given and did not, each with the reason: refused, missing, not applicable."""
    instances: inventory.Found | None = None
    """None: nothing was said; what is known stays."""
    conditions: list[ReportedCondition] | None = None
    """All conditions that hold now; None: nothing was said, what is known stays."""
    refusals: list[Refusal] = []
    """The first `Limits.refusals` of them."""
    refused: int = 0
    """All of them."""
    notes: list[str] = []
    frames: int = 0

    @property
    def trouble(self) -> str:
        """The refusals in one line, '' when there are none."""
        return in_one_line(self.refusals, self.refused)


def in_one_line(refusals: Sequence[Refusal], refused: int) -> str:
    """The first of so many that were refused, '' when there is none."""
    if not refusals:
        return ""
    more = f" (and {refused - 1} more)" if refused > 1 else ""
    return f"{refusals[0]}{more}"


def check(frame: Frame, context: Context) -> Checked:
    """Each value of a frame against its type and the reporter's right to give it."""
    checked = Checked({}, {}, [])
    for name, raw in frame.values.items():
        kind, problem = _type_of(name, context)
        value: object = raw
        if kind and frame.tokens and isinstance(raw, str):
            value, problem = _from_word(kind, raw)
        if kind and not problem:
            problem = _problem(kind, value, context.previous.get(name))
        if problem:
            _refuse(
                checked, context, kind, Refusal(name=name, reason=problem, text=shown(raw), line=frame.line)
            )
        elif value is None:
            checked.values[name] = Absent(Presence.UNKNOWN, cause="the reporter says null")
        elif kind:
            checked.values[name] = normalise(kind, value)  # type: ignore[arg-type]  # value_problem found none
    for refusal in frame.refusals:
        _refuse(checked, context, _type_of(refusal.name, context)[0], refusal)
    return checked


def take_frame(frame: Frame | Refusal, context: Context) -> Outcome:
    """One frame of a persistent reporter or elim, taken at once."""
    outcome = Outcome(frames=1)
    if isinstance(frame, Refusal):
        return _refused(outcome, [frame], context.limits)
    checked = check(frame, context)
    outcome.values, outcome.silent = checked.values, checked.silent
    outcome.notes = _noted(frame)
    refusals = checked.refusals
    if frame.instances is not None:
        outcome.instances, more = inventory.check(frame.instances, complete=frame.complete, line=frame.line)
        refusals += more
        outcome.notes += _strange("an instance", inventory.strange_keys(frame.instances), frame.line)
    if frame.conditions is not None:
        outcome.conditions, more = _conditions(frame.conditions, frame.line, context.limits)
        refusals += more
        keys = {key for item in frame.conditions if isinstance(item, dict) for key in item}
        outcome.notes += _strange("a condition", sorted(keys - {"name", "reason", "hold"}), frame.line)
        outcome.notes += _mute(outcome.conditions, frame.line)
    return _refused(outcome, refusals, context.limits)


def finish_run(
    lines: Sequence[bytes | TooLong],
    context: Context,
    *,
    fault: str = "",
    not_applicable: int = 0,
    names: Collection[str] = (),
    promised: Collection[str] = (),
) -> Outcome:
    """A one-shot run that is over. `fault`: why nothing of it counts ('' after status 0, see `fault_of`).
    `not_applicable`: the status by which it said that its names have no meaning here.

    `names`: what the reporter has given before (`Table.names`); those that the run lacks become unknown.
    `promised`: what NAME.yaml says it will give; status 78 makes those not-applicable too.
    """
    if not_applicable:
        absent = Absent(Presence.NOT_APPLICABLE, cause=f"the reporter ended with status {not_applicable}")
        every = [name for name in (*names, *promised) if name in context.types]
        return Outcome(verdict=Verdict.NOT_APPLICABLE, silent=dict.fromkeys(every, absent), conditions=[])
    frames = [parse_line(line, number, context.limits) for number, line in enumerate(lines, 1)]
    parts = [take_frame(frame, context) for frame in frames if frame is not None]
    run = parts[0] if len(parts) == 1 else _joined(parts, context.limits)
    run.frames = sum(isinstance(frame, Frame) for frame in frames)
    if fault:
        # What it printed is still looked at, so that `test` and `status` can show both faults of one script.
        return Outcome(
            verdict=Verdict.FAILED, cause=fault, refusals=run.refusals, refused=run.refused, frames=run.frames
        )
    if not run.frames and not run.refused:
        run.notes.append("printed nothing")
    lost = next((refusal for refusal in run.refusals if not refusal.name), None)
    cause = "not in the last run" + (f", of which line {lost.line} was refused" if lost else "")
    for name in names:
        if name not in run.values and name not in run.silent:
            run.silent[name] = Absent(Presence.UNKNOWN, cause=cause, last=context.previous.get(name))
    run.conditions = run.conditions or []
    return run


def fault_of(*, status: int = 0, killed_by: int = 0, stderr: str = "") -> str:
    """Why a run that ended by itself does not count, '' if it does; status 78 is not a fault.

    `killed_by` is the number of the signal, `stderr` the first line that the run wrote there.
    """
    if killed_by:
        try:
            name = signal.Signals(killed_by).name
        except ValueError:
            name = f"signal {killed_by}"
        what = f"killed by {name}"
    elif status and status != NOT_APPLICABLE:
        what = f"exit status {status}"
    else:
        return ""
    said = escape(stderr.strip())
    return f"{what}: {said}" if said else what


def _type_of(name: str, context: Context) -> tuple[ResourceType | None, str]:
    """The type of a name as it stands in a frame, and why this reporter may not give it ('' if it may)."""
    plain, at, where = name.partition("@")
    if problem := name_problem(plain):
        return None, f"not a name: {problem}"
    kind = context.types.get(plain)
    if kind is None and plain in context.waiting:
        return None, f"its type, declared in {context.waiting[plain]}, waits for the broker to let it in"
    if kind is None:
        own = "NAME.yaml" if context.external else f"{context.reporter}.yaml"
        return None, f"{NO_TYPE} (declare it in resources.yaml, or under 'types:' in {own})"
    if problem := _scope_problem(kind, where if at else None, context):
        return None, problem
    return kind, ""


def _scope_problem(kind: ResourceType, where: str | None, context: Context) -> str:
    if not context.external:
        if where is not None:
            return "a reporter on a node gives values of its own host: leave out '@'"
        if kind.scope is not Scope.HOST:
            return f"has scope {kind.scope.value}: only an external reporter (xce-reporter run) gives it"
        if kind.reporter == "static":
            return "only hosts.yaml gives it (reporter: static)"
        return "" if kind.reporter in {"", context.reporter} else f"only '{kind.reporter}' reports it"
    if kind.scope is Scope.HOST:
        return "has scope host: only a reporter on the host gives it"
    if kind.reporter != context.reporter:
        return f"only '{kind.reporter}' reports it" if kind.reporter else "its type names no reporter"
    return _place_problem(kind, where) if where is not None else ""


def _place_problem(kind: ResourceType, where: str) -> str:
    """Why a value of the type cannot be at a location; '' if it can, as far as is known here."""
    try:
        at, _ = split_location(where)
    except ValueError as error:
        return str(error)
    fitting = (
        (LocationKind.GROUP,) if kind.scope is Scope.HOST_GROUP else (LocationKind.POOL, LocationKind.STORAGE)
    )
    if at in fitting:
        return ""
    wanted = " or ".join(f"{one.value}:NAME" for one in fitting)
    return f"a value of scope {kind.scope.value} is at {wanted}, not at {where}"


def _problem(kind: ResourceType, value: object, previous: Value | None) -> str:
    if value is None:
        return ""
    if isinstance(value, Unfit):
        return value.reason
    problem = value_problem(kind, value, previous)
    if problem and value == "":
        problem += "; null says unknown"
    return problem


def _refuse(checked: Checked, context: Context, kind: ResourceType | None, refusal: Refusal) -> None:
    checked.refusals.append(msgspec.structs.replace(refusal, name=escape(refusal.name, 80)))
    if kind is not None:
        text = f": {refusal.text}" if refusal.text else ""
        last = context.previous.get(refusal.name)
        absent = Absent(Presence.UNKNOWN, cause=f"refused: {refusal.reason}{text}", last=last)
        checked.silent[refusal.name] = absent


_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def _from_word(kind: ResourceType, word: str) -> tuple[object, str]:
    """The value that one word of an elim line means for a type, and '' or why there is none."""
    if word == "-":
        return None, ""
    if kind.kind is Kind.NUMERIC:
        if not _NUMBER.fullmatch(word) or len(word) > 60:
            comma = "; a decimal comma? numbers have a point" if "," in word else ""
            return None, f"expected a number{comma}"
        return (int(word) if word.lstrip("+-").isdecimal() else float(word)), ""
    if kind.kind is Kind.BOOLEAN:
        meaning = {"0": False, "1": True, "false": False, "true": True}
        return meaning.get(word.lower()), "" if word.lower() in meaning else "expected 1 or 0"
    if kind.kind is Kind.STRING:
        return word, ""
    return None, "a string-set cannot be given in elim mode"


def _conditions(
    raw: list[object], line: int, limits: Limits
) -> tuple[list[ReportedCondition], list[Refusal]]:
    taken: dict[str, ReportedCondition] = {}
    refusals: list[Refusal] = []
    if len(raw) > LOOKED_AT:
        reason = f"{len(raw)} of them; only the first {LOOKED_AT} were looked at"
        refusals.append(Refusal(name="conditions", reason=reason, line=line))
    for item in raw[:LOOKED_AT]:
        name = item.get("name") if isinstance(item, dict) else None
        problem = _condition_problem(item, name, taken, limits)
        if problem or not isinstance(item, dict) or not isinstance(name, str):
            told = escape(name, 63) if isinstance(name, str) else "condition"
            refusals.append(Refusal(name=told, reason=problem, text=shown(item), line=line))
            continue
        reason = escape(item.get("reason") or "", REASON)
        taken[name] = ReportedCondition(name=name, reason=reason, hold=bool(item.get("hold")))
    return list(taken.values()), refusals


def _condition_problem(item: object, name: object, taken: Collection[str], limits: Limits) -> str:
    if not isinstance(item, dict) or not isinstance(name, str):
        return 'a condition is an object: {"name": ..., "reason": ..., "hold": true or false}'
    if problem := name_problem(name):
        return f"not a name: {problem}"
    if name in taken:
        return "given twice in one frame"
    if len(taken) >= limits.conditions:
        return f"more than {limits.conditions} conditions"
    if not isinstance(item.get("reason") or "", str):
        return "'reason' must be a string"
    if not isinstance(item.get("hold", False), bool):
        return "'hold' must be true or false"
    return ""


def _noted(frame: Frame) -> list[str]:
    place = f"line {frame.line}: " if frame.line else ""
    return [place + note for note in frame.notes]


def _mute(conditions: Sequence[ReportedCondition], line: int) -> list[str]:
    place = f"line {line}: " if line else ""
    words = "has no 'reason': whoever finds the host held will ask for one"
    return [f"{place}the condition {one.name} {words}" for one in conditions if one.hold and not one.reason]


def _strange(what: str, keys: list[str], line: int) -> list[str]:
    place = f"line {line}: " if line else ""
    return [f"{place}the key '{escape(key, 63)}' of {what} means nothing here" for key in keys[:8]]


def _joined(parts: Sequence[Outcome], limits: Limits) -> Outcome:
    """The frames of one run as one: the last line wins for a name, a condition and the inventory."""
    run = Outcome()
    refusals: list[Refusal] = []
    conditions: dict[str, ReportedCondition] | None = None
    again: set[str] = set()
    for part in parts:  # in place: a run may have ten thousand lines with a name each
        again |= run.values.keys() & part.values.keys()
        for mine, its in ((run.values, part.silent), (run.silent, part.values)):
            for name in its:
                mine.pop(name, None)
        run.values.update(part.values)
        run.silent.update(part.silent)
        run.instances = part.instances or run.instances
        if part.conditions is not None:
            conditions = {} if conditions is None else conditions
            conditions.update({item.name: item for item in part.conditions})
        refusals += part.refusals
        run.refused += part.refused - len(part.refusals)
        run.notes += part.notes
    if len(run.values) > limits.names:
        reason = f"{len(run.values)} names in one run, more than {limits.names}"
        run.values = dict(list(run.values.items())[: limits.names])
        refusals.append(Refusal(reason=reason))
    if again:
        run.notes.append("given by several lines, the last one counts: " + ", ".join(sorted(again)[:8]))
    if conditions is not None and len(conditions) > limits.conditions:
        reason = f"{len(conditions)} of them in one run, more than {limits.conditions}"
        refusals.append(Refusal(name="conditions", reason=reason))
    run.conditions = None if conditions is None else list(conditions.values())[: limits.conditions]
    run.notes = run.notes[: limits.refusals]
    return _refused(run, refusals, limits)


def _refused(outcome: Outcome, refusals: list[Refusal], limits: Limits) -> Outcome:
    outcome.refused += len(refusals)
    outcome.refusals = refusals[: limits.refusals]
    return outcome
