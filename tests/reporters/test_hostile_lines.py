"""Lines that once froze or confused the agent: each kind costs its own line, and little time."""

import time

import pytest

from xce.model.instance import Instance
from xce.reporters import inventory
from xce.reporters.contract import Context, finish_run
from xce.reporters.frame import LIMITS, Refusal, parse_line, shown


@pytest.mark.parametrize("line", [b"{" + b"1" * 200_000, b'{"a": ' + b"1," * 100_000, b"1,1" * 80_000])
def test_a_long_line_of_digits_is_refused_in_no_time(line: bytes) -> None:
    """The search for a decimal comma once looked at each digit from each digit: 250 KB took 100 s."""
    begun = time.process_time()
    assert isinstance(parse_line(line, 1, LIMITS), Refusal)
    assert time.process_time() - begun < 2


@pytest.mark.parametrize("depth", range(880, 1010, 10))
def test_a_value_of_any_depth_is_refused_and_its_neighbours_stay(depth: int) -> None:
    """What could just be read could not be written again for showing, and the run was never over."""
    line = b'{"x": ' + b"[" * depth + b"]" * depth + b"}"
    outcome = finish_run([line, b'{"y": 1}'], Context(reporter="r", types={}))
    assert outcome.refused >= 1


def test_what_is_too_deep_to_show_says_so() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "nested too deeply to be shown"
    while deep:  # taken apart by hand: the interpreter would do it recursively
        deep = deep[0]  # type: ignore[assignment]


def test_thousands_of_conditions_are_counted_and_not_looked_at_one_by_one() -> None:
    line = b'{"xce": 1, "conditions": [' + b",".join([b"1"] * 100_000) + b"]}"
    begun = time.process_time()
    outcome = finish_run([line], Context(reporter="r", types={}))
    assert time.process_time() - begun < 2
    assert any("100000 of them" in str(refusal) for refusal in outcome.refusals)


def test_a_long_line_of_parents_without_a_whole_unit_is_dropped_in_no_time() -> None:
    raw: list[object] = [{"id": f"u{n}", "kind": "part", "parent": f"u{n + 1}"} for n in range(4000)]
    begun = time.process_time()
    found, refusals = inventory.check([*raw, {"id": "whole", "kind": "gpu"}], complete=True)
    assert time.process_time() - begun < 2
    assert refusals
    assert found is not None
    assert [unit.id for unit in found.instances if isinstance(unit, Instance)] == ["whole"]
