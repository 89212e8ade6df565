"""What the configuration says a host should have, held against what is there. Pure."""

from collections.abc import Iterable, Sequence

from xce.model.configuration import Expected, Tolerance
from xce.model.instance import Health, Instance
from xce.model.message import ReportedCondition

NAME = "inventory"
"""Of the condition, and so of the hold's reason."""
_NAMED = 4
_FEWER = frozenset({Tolerance.STRICT, Tolerance.ALLOW_EXTRA})
_MORE = frozenset({Tolerance.STRICT, Tolerance.ALLOW_MISSING})


def conditions(expected: Sequence[Expected], instances: Iterable[Instance]) -> list[ReportedCondition]:
    """One that holds the host for all that does not fit; none if all fits.

    There is what is not lost: a device in an ill state, or in one that nobody can read now, is not missing.
    """
    there = [one for one in instances if one.health is not Health.LOST]
    problems = [text for one in expected if (text := _problem(one, there))]
    return [ReportedCondition(name=NAME, reason="; ".join(problems)[:1024], hold=True)] if problems else []


def forgettable(expected: Sequence[Expected], kind: str) -> bool:
    """Whether one of this kind that was removed may be forgotten."""
    modes = {one.mode for one in expected if one.kind == kind}
    return bool(modes & {Tolerance.ALLOW_MISSING, Tolerance.IGNORE})


def problem(expected: Sequence[Expected]) -> str:
    """What is wrong with the configured expectation; '' if nothing is."""
    kinds = [one.kind for one in expected]
    for one in expected:
        if kinds.count(one.kind) > 1:
            return f"kind {one.kind} occurs twice"
        if one.count is not None and one.count < len(set(one.ids)):
            return f"{one.kind}: {len(set(one.ids))} ids are more than count {one.count}"
        if one.count is None and not one.ids and one.mode is not Tolerance.IGNORE:
            return f"{one.kind}: say count, or ids"
    return ""


def _problem(one: Expected, there: Sequence[Instance]) -> str:
    if one.mode is Tolerance.IGNORE:
        return ""
    found = [instance for instance in there if instance.kind == one.kind]
    names = {instance.id for instance in found}
    names |= {address for instance in found if isinstance(address := instance.attributes.get("pci"), str)}
    wanted = one.count if one.count is not None else len(one.ids)
    missing = [name for name in one.ids if name not in names]
    says = f"{one.kind}: {wanted} expected, {len(found)} found"
    if one.mode in _FEWER and (missing or len(found) < wanted):
        return says + (f", without {_listed(missing)}" if missing else "")
    if one.mode in _MORE and len(found) > wanted:
        return says
    if one.mode is Tolerance.ALLOW_MISSING and len(found) > len(one.ids) - len(missing) and not one.count:
        return f"{says}, of which {len(found) - len(one.ids) + len(missing)} are not the expected ones"
    return ""


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
