"""Ranges of host names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce.model.hostlist import expand, pattern_problem


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login", ["login"]),
        ("node[001-003,200]", ["node001", "node002", "node003", "node200"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[09-11].x", ["n09.x", "n10.x", "n11.x"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_a_range_stands_for_its_names(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("node[1-3", "brackets do not match"),
        ("node]1[", "brackets do not match"),
        ("node[]", "expected a number or FIRST-LAST"),
        ("node[a-b]", "expected a number or FIRST-LAST"),
        ("node[3-1]", "the first number is above the last"),
        ("node[1-200000]", "stands for 200000 names, more than 100000"),
        ("a[1-999999999999]b[1-999999999999]", "more than 100000"),
        ("a,b", "one name or range here"),
        ("node 1", "letters, digits"),
        ("", "must have 1 to 253 characters"),
        ("x" * 250 + "[1-10000]", "must have 1 to 253 characters"),
    ],
)
def test_a_range_that_cannot_be_meant_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        expand(text)


@given(st.integers(0, 5000), st.integers(0, 300), st.booleans())
def test_every_number_of_a_range_occurs_once_in_order(first: int, more: int, padded: bool) -> None:
    width = 6 if padded else 1
    names = expand(f"n[{first:0{width}d}-{first + more:0{width}d}]")
    assert names == [f"n{number:0{width}d}" for number in range(first, first + more + 1)]


@pytest.mark.parametrize("pattern", ["node17", "node*", "gpu?", "n[1-3]", "n[!0]", "n[01]x[a-c]", "*"])
def test_a_shell_style_pattern_is_one(pattern: str) -> None:
    assert pattern_problem(pattern) == ""


@pytest.mark.parametrize("pattern", ["node[01-16]", "n[1-10]", "n[1-3", "n1]", "n[1[2]"])
def test_what_was_meant_as_a_range_is_no_pattern(pattern: str) -> None:
    """`node[01-16]` as a pattern fits node0, node1 and node6, and not node16."""
    assert pattern_problem(pattern).startswith(f"host pattern '{pattern}': brackets ")
