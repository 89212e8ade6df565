"""The table in `docs/performance.md`: the goals, and the figures of the last full run of the benchmarks.

The run's lines are kept in `bench/figures.jsonl` (`./dev bench --out FILE`, without its cells). The text
around the table is written by hand; only what stands between the two marks is made here.
"""

import msgspec

from bench.figures import Cell, Machine, Result, cells, markdown
from bench.goals import GOALS
from docs.generate import DOCS

FIGURES = DOCS.parent / "bench" / "figures.jsonl"
BEGIN, END = (
    "<!-- the table is generated: python docs/generate.py performance -->",
    "<!-- end of the table -->",
)

Line = Machine | Result | Cell


def render() -> dict[str, str]:
    """The one file of this generator."""
    name = "performance.md"
    text = (DOCS / name).read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return {name: f"{head}{BEGIN}\n\n{table(FIGURES.read_bytes())}\n\n{END}{tail}"}


def table(data: bytes) -> str:
    """Where and when, then one row per goal; of several results of a goal the last counts."""
    lines = [msgspec.json.decode(line, type=Line) for line in data.splitlines()]
    results = {line.goal: line for line in lines if isinstance(line, Result)}
    found = {goal: results.get(goal, Result(goal=goal)) for goal in GOALS}
    machines = [line for line in lines if isinstance(line, Machine)]
    about = "\n".join([*sorted({_about(machine) for machine in machines}), *_repetitions(machines)])
    return f"{about}\n\n{markdown(cells(GOALS[goal], result) for goal, result in found.items())}"


def _repetitions(machines: list[Machine]) -> list[str]:
    counts = [machine.repetitions for machine in machines]
    if not counts:
        return []
    fewest, most = min(counts), max(counts)
    return [f"{fewest} repetitions." if fewest == most else f"{fewest} to {most} repetitions."]


def _about(machine: Machine) -> str:
    where = ", ".join(machine.about[key] for key in ("cpu", "system", "kernel"))
    return f"{machine.at[:10]}, {where}, Python {machine.about['python']}."
