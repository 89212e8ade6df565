"""What every suite gets and gives."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from bench.figures import Cell, Result

T = TypeVar("T")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to measure."""

    repetitions: int = 5
    quick: bool = False
    """Only whether everything works: short, and the figures mean little."""
    peers: bool = True
    """Measure peers too, where they are installed."""

    def pick(self, normal: T, quick: T) -> T:
        """A size, by how thorough we are."""
        return quick if self.quick else normal


Lines = Iterator[Cell | Result]
Run = Callable[[Options], Lines]


def without_verdict(goals: tuple[str, ...], trouble: str) -> Lines:
    """Results of goals that could not be measured."""
    for goal in goals:
        yield Result(goal=goal, trouble=trouble)
