"""How often a machine is read follows from what a reading takes, without going to and fro."""

import itertools
from pathlib import Path

import pytest

from xce.agent.probe.reading import Reader
from xce.model.configuration import Discovery


@pytest.mark.parametrize(("took", "interval"), [(0.01, 10), (0.4, 10), (0.6, 20), (2.0, 40)])
def test_readings_take_a_twentieth_of_the_time_at_most(tmp_path: Path, took: float, interval: float) -> None:
    reader = Reader(Discovery(root=str(tmp_path), interval=10, machine="", library="/none"))
    for _ in range(40):
        reader._measure(took)
    assert reader.settings.interval * reader._stretch == interval


def test_an_interval_that_was_made_longer_is_not_shortened_at_the_same_place(tmp_path: Path) -> None:
    reader = Reader(Discovery(root=str(tmp_path), interval=10))
    seen = []
    for round_ in range(60):
        reader._measure(0.62 if round_ % 2 else 0.42)
        seen.append(reader._stretch)
    assert seen[-1] == 2
    assert sum(one != other for one, other in itertools.pairwise(seen)) == 1
    for _ in range(40):
        reader._measure(0.1)
    assert reader._stretch == 1
