"""The stand-in for NVIDIA's library, loaded into this process by the real pynvml."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pynvml
import pytest

from tests.fakes.nvml.stand_in import StandIn
from xce.agent.probe.governor import Budget
from xce.agent.probe.nvml import Library

BUDGET = Budget()


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Lab:
    """A stand-in, and libraries opened on it as one process would."""

    def __init__(self, stand_in: StandIn, clock: Clock) -> None:
        self.stand_in, self.clock = stand_in, clock
        self.library = self.new()

    def new(self, budget: Budget = BUDGET) -> Library:
        """As a fresh process would start with it."""
        return Library(str(self.stand_in.library), clock=self.clock, budget=budget)


Make = Callable[..., Lab]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a `Lab` from answers; all libraries are given back at the end."""
    made: list[Lab] = []

    def make(answers: Mapping[str, object], *, absent: tuple[str, ...] = ()) -> Lab:
        stand_in = StandIn(tmp_path / f"nvml-{len(made)}", answers, absent=absent)
        monkeypatch.setenv("XCE_TEST_NVML", str(stand_in.folder))
        made.append(Lab(stand_in, Clock()))
        return made[-1]

    yield make
    for each in made:
        each.stand_in.control()
        each.library.close()
    with pytest.raises(pynvml.NVMLError):  # a test that leaves a library open holds its handles
        pynvml.nvmlDeviceGetCount()
