"""State machines as tables, and the one way to take a step in them.

A table maps `(state, event)` to the next state. A pair that is not in the table is a bug of the caller and
raises `IllegalTransition`, which names the machine, the state and the event. The diagrams in `docs/states.md`
are generated from these tables.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class IllegalTransition(Exception):
    """An event arrived in a state that has no place for it."""

    def __init__(self, machine: str, state: StrEnum, event: StrEnum) -> None:
        super().__init__(f"internal error: {machine}: no transition from '{state}' on '{event}'")
        self.machine, self.state, self.event = machine, state, event


class Machine(Generic[S, E]):
    """A named transition table. `final` states have no way out and are listed on purpose."""

    def __init__(self, name: str, start: S, table: Mapping[tuple[S, E], S], *, final: frozenset[S]) -> None:
        self.name, self.start, self.table, self.final = name, start, dict(table), final
        self.states: list[S] = list(type(start))
        leaving = {state for state, _ in self.table}
        for state in self.states:
            if (state in leaving) == (state in final):
                raise ValueError(f"{name}: state '{state}' must have a way out or be final")

    def step(self, state: S, event: E) -> S:
        """The state that follows; raises `IllegalTransition` for a pair that the table lacks."""
        following = self.table.get((state, event))
        if following is None:
            raise IllegalTransition(self.name, state, event)
        return following

    def allows(self, state: S, event: E) -> bool:
        """Whether the table has a place for `event` in `state`."""
        return (state, event) in self.table
