"""Figures and verdicts: what was measured, what it is held against, and how both are shown.

A `Figure` is a median with its least and greatest value, because a machine is rarely all ours. A `Result`
joins a goal with the product's figure, the figure of a floor or peer taken in the same run, and what is
judged (their ratio, or the product's figure itself). Nothing here measures.
"""

import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec

from bench.goals import Goal

MISSED = "MISSED"


class Figure(msgspec.Struct, frozen=True):
    """Several measurements of one thing."""

    median: float
    least: float
    greatest: float
    count: int

    def __str__(self) -> str:
        if self.count == 1:
            return number(self.median)
        return f"{number(self.median)} ({number(self.least)}..{number(self.greatest)})"


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="result", tag_field="line"):
    """One goal, as it stands."""

    goal: str
    """`Goal.key`."""
    judged: Figure | None = None
    """What must and stretch are compared with; None when it could not be measured."""
    measured: Figure | None = None
    """The product's own figure, in `unit`."""
    floor: Figure | None = None
    """The same of a bare floor in this run."""
    peer: Figure | None = None
    """The same of the peer that the goal names."""
    unit: str = ""
    trouble: str = ""
    """Why there is no verdict: the peer is not installed, the run was not valid."""
    note: str = ""


class Machine(msgspec.Struct, frozen=True, kw_only=True, tag="machine", tag_field="line"):
    """The first line of a run in the file of `--out`: where, when, how often."""

    at: str
    """ISO 8601."""
    about: dict[str, str]
    """`machine.description`."""
    repetitions: int


class Cell(msgspec.Struct, frozen=True, kw_only=True, tag="cell", tag_field="line"):
    """All that one side of one repetition gave; only for the file of `--out`."""

    suite: str
    side: str
    values: dict[str, float | str | bool | None]


def figure(values: Iterable[float]) -> Figure:
    """The figure of some measurements; there must be at least one."""
    ordered = sorted(values)
    return Figure(statistics.median(ordered), ordered[0], ordered[-1], len(ordered))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    """Ours over theirs, repetition by repetition: the sides of a repetition ran right after one another."""
    return figure(mine / other for mine, other in zip(ours, theirs, strict=True))


def verdict(goal: Goal, result: Result) -> str:
    """`stretch met`, `must met`, `MISSED`, or why there is none; `stretch missed` where there is no must."""
    if result.trouble or result.judged is None:
        return result.trouble or "not measured"
    value = result.judged.median
    if _reaches(value, goal.stretch, goal=goal):
        return "stretch met"
    if math.isinf(goal.must):
        return "stretch missed"
    return "must met" if _reaches(value, goal.must, goal=goal) else MISSED


def _reaches(value: float, bound: float, *, goal: Goal) -> bool:
    return value >= bound if goal.at_least else value <= bound


def number(value: float) -> str:
    """A number in as many digits as mean something."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def bound(value: float, goal: Goal) -> str:
    """A must or stretch with its sign and unit."""
    if math.isinf(value):
        return "-"
    return f"{'≥' if goal.at_least else '≤'} {number(value)}{unit_suffix(goal.unit)}"


def unit_suffix(unit: str) -> str:
    """How a unit follows its number."""
    return unit if unit in {"x", ""} else f" {unit}"


HEADINGS = ("goal", "what", "must", "stretch", "product", "floor", "peer", "judged", "verdict")


def cells(goal: Goal, result: Result) -> tuple[str, ...]:
    """One row of the table, in the order of `HEADINGS`."""
    suffix = unit_suffix(result.unit)
    return (
        goal.key,
        goal.what + (f" ({result.note})" if result.note else ""),
        bound(goal.must, goal),
        bound(goal.stretch, goal),
        *(f"{found}{suffix}" if found else "-" for found in (result.measured, result.floor, result.peer)),
        f"{result.judged}{unit_suffix(goal.unit)}" if result.judged else "-",
        verdict(goal, result),
    )


def markdown(rows: Iterable[tuple[str, ...]]) -> str:
    """A table of `cells`."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
