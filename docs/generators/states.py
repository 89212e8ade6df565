"""`docs/states.md`: every state machine of the model and of health, as a diagram and as tables."""

import ast
import importlib
import inspect
import pkgutil
import textwrap
from enum import StrEnum
from typing import Any

from xce import model
from xce.agent.probe import health
from xce.model.transition import Machine
from xce.prepare import entry
from xce.prepare.csi import usage

HEAD = """\
# State machines

Generated from the tables in `model/`, `agent/probe/health.py`, `prepare/entry.py`, `prepare/csi/usage.py`
by `python docs/generate.py`; do not edit. A pair of state and event that is not in a table cannot happen: the
code raises `IllegalTransition`.
"""

AnyMachine = Machine[Any, Any]


def render() -> dict[str, str]:
    """The one file of this generator."""
    return {"states.md": "\n".join([HEAD, *(section(machine) for machine in machines())])}


def machines() -> list[AnyMachine]:
    """Every `Machine` that is a global of a module of the model, `health`, `entry` or `usage`, in order."""
    found: dict[int, AnyMachine] = {}
    names = sorted(info.name for info in pkgutil.iter_modules(model.__path__))
    for module in (*(importlib.import_module(f"xce.model.{name}") for name in names), health, entry, usage):
        for thing in vars(module).values():
            if isinstance(thing, Machine):
                found.setdefault(id(thing), thing)
    return list(found.values())


def section(machine: AnyMachine) -> str:
    """One machine: diagram, what the states mean, the table."""
    states, events = type(machine.start), event_type(machine)
    return "\n".join(
        [
            f"## {machine.name}",
            "",
            inspect.getdoc(states) or "",
            "",
            diagram(machine),
            "",
            meanings("state", states),
            "",
            meanings("event", events),
            "",
            table(machine),
            "",
        ]
    )


def event_type(machine: AnyMachine) -> type[StrEnum]:
    """The enumeration that the events are of."""
    kinds = {type(event) for _, event in machine.table}
    if len(kinds) != 1:
        raise ValueError(f"machine {machine.name}: events of {len(kinds)} types in one table")
    kind: type[StrEnum] = kinds.pop()
    return kind


def everywhere(machine: AnyMachine) -> dict[str, str]:
    """Event to state, for the events that lead from every other state that has a way out to the same one."""
    found = {}
    for event in event_type(machine):
        targets = {following for (_, on), following in machine.table.items() if on is event}
        leaving = [state for state in machine.states if state not in machine.final | targets]
        if len(targets) == 1 and all(machine.allows(state, event) for state in leaving):
            found[event.value] = str(*targets)
    return found


def diagram(machine: AnyMachine) -> str:
    """Mermaid. Steps that stay where they are stand in the table only; events of one arrow share it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), following in machine.table.items():
        if state is not following and event not in everywhere(machine):
            arrows.setdefault((identifier(state), identifier(following)), []).append(event)
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f'    state "{state}" as {identifier(state)}' for state in machine.states if "-" in state]
    lines.append(f"    [*] --> {identifier(machine.start)}")
    lines += [f"    {start} --> {end}: {', '.join(events)}" for (start, end), events in arrows.items()]
    lines += [f"    {identifier(state)} --> [*]" for state in machine.states if state in machine.final]
    lines.append("```")
    for event, target in everywhere(machine).items():
        lines += ["", f"Not drawn: *{event}* leads from every other state to *{target}*."]
    return "\n".join(lines)


def identifier(state: str) -> str:
    """A name that Mermaid takes."""
    return state.replace("-", "_")


def meanings(title: str, kind: type[StrEnum]) -> str:
    """A table of the members and their docstrings."""
    texts = docstrings(kind)
    rows = [f"| {member} | {texts[member.name]} |" for member in kind]
    return "\n".join([f"| {title} | meaning |", "|---|---|", *rows])


def docstrings(kind: type[StrEnum]) -> dict[str, str]:
    """Member name to the docstring below it; a member without one is an error of the model."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, following in zip(body.body, [*body.body[1:], ast.Pass()], strict=True):
        if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
            continue
        match following:
            case ast.Expr(value=ast.Constant(value=str(text))):
                found[statement.targets[0].id] = " ".join(text.split())
            case _:
                raise ValueError(f"{kind.__name__}.{statement.targets[0].id}: has no docstring below it")
    return found


def table(machine: AnyMachine) -> str:
    """What follows, one row per state and one column per event."""
    events = list(event_type(machine))
    lines = [f"| from \\ on | {' | '.join(events)} |", "|---" * (len(events) + 1) + "|"]
    for state in machine.states:
        row = [machine.table.get((state, event), "") for event in events]
        lines.append(f"| **{state}** | {' | '.join(row)} |")
    return "\n".join(lines)
