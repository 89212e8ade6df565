"""Instances: one bad unit costs itself and the claim to be complete, never the others."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce.model.instance import INSTANCES, Health, Inventory
from xce.reporters.inventory import Found, check

GPU = {"id": "GPU-1", "kind": "gpu", "attributes": {"model": "H200", "gib": 139}, "capacity": {"slices": 7}}


def refused(item: object) -> str:
    found, refusals = check([GPU, item], complete=True)
    assert found
    assert [unit.id for unit in found.instances] == ["GPU-1"]
    assert not found.complete
    (refusal,) = refusals
    return f"{refusal.name}: {refusal.reason}"


def test_sound_units_make_a_complete_inventory() -> None:
    slice_ = {"id": "MIG-1", "kind": "mig", "parent": "GPU-1", "health": "lost", "reason": "no answer"}
    found, refusals = check([slice_, GPU], complete=True)
    assert found
    assert not refusals
    assert found.complete
    inventory = found.numbered("gpus", 3)
    assert inventory == Inventory(reporter="gpus", generation=3, complete=True, instances=found.instances)
    assert found.instances[0].health is Health.LOST
    incomplete, _ = check([GPU], complete=False)
    assert incomplete
    assert not incomplete.complete


def test_a_bad_unit_is_named_and_says_why() -> None:
    assert refused({"id": "x"}).startswith("instance x: object missing required field 'kind'")
    assert refused({"id": 5, "kind": "gpu"}) == "instance: 'id': expected a string, got an integer"
    assert refused(5) == "instance: an instance is an object"
    healths = "available, unavailable, lost, quarantined, unknown"
    unwell = refused({"id": "x", "kind": "gpu", "health": "fine"})
    assert unwell == f"instance x: 'health': expected one of {healths}, got \"fine\""
    assert "kind is empty" in refused({"id": "x", "kind": ""})
    assert "must be 1 to 255 printable bytes" in refused({"id": "a\nb", "kind": "gpu"})
    assert (
        refused({"id": "x", "kind": "g", "capacity": {"s": -1}})
        == "instance x: 'capacity[...]': expected an integer >= 0"
    )
    assert "'capacity" in refused({"id": "x", "kind": "g", "capacity": {"s": 1.5}})
    assert refused({"id": "x", "kind": "g", "attributes": {"s": {"deep": 1}}}) == (
        "instance x: 'attributes[...]': "
        "expected true or false or an integer or a number or a string or a list, got an object"
    )
    assert "invisible" in refused({"id": "x", "kind": "g", "attributes": {"s": "\ud800"}})
    assert "invisible" in refused({"id": "x", "kind": "g", "\ud800": 1})
    assert "its parent GPU-9 is not" in refused({"id": "x", "kind": "g", "parent": "GPU-9"})


@pytest.mark.parametrize("key", ["reason", "evidence", "since", "recovery", "kind"])
def test_no_text_of_a_unit_moves_a_cursor_or_is_endless(key: str) -> None:
    assert "invisible" in refused({"id": "x", "kind": "g", key: "\x1b[2J"})
    assert "longer than 1024 bytes" in refused({"id": "x", "kind": "g", key: "é" * 600})


def test_notes_and_counters_are_checked_like_other_texts_and_bounded() -> None:
    assert "invisible" in refused({"id": "x", "kind": "g", "notes": ["fine", "a\nb"]})
    assert "more than 16 notes" in refused({"id": "x", "kind": "g", "notes": ["n"] * 17})
    assert "invisible" in refused({"id": "x", "kind": "g", "parent": "GPU-1", "consumes": {"a\tb": 0}})
    assert "more than 128 counters" in refused(
        {"id": "x", "kind": "g", "capacity": {str(n): 1 for n in range(129)}}
    )


def test_a_unit_takes_from_its_parent_only_what_that_has() -> None:
    """Two slices of a GPU with 8 memory slices: one takes 4 of them, the other one that is not there."""
    whole = {"id": "GPU-1", "kind": "gpu", "capacity": {"memory-slice-0": 1}}
    good = {"id": "a", "kind": "mig", "parent": "GPU-1", "consumes": {"memory-slice-0": 1}}
    bad = {"id": "b", "kind": "mig", "parent": "GPU-1", "consumes": {"memory-slice-9": 1}}
    part = {"id": "c", "kind": "part", "parent": "b"}
    found, refusals = check([whole, good, bad, part], complete=True)
    assert found
    assert [unit.id for unit in found.instances] == ["GPU-1", "a"]
    assert not found.complete
    assert str(refusals[0]) == "instance b: it takes 1 memory-slice-9 from GPU-1, which has 0"
    assert "names none" in refused({"id": "x", "kind": "g", "consumes": {"s": 1}})


def test_two_units_with_one_id_are_both_refused() -> None:
    found, refusals = check([GPU, {"id": "x", "kind": "a"}, GPU, GPU], complete=True)
    assert found
    assert [unit.id for unit in found.instances] == ["x"]
    assert [str(refusal) for refusal in refusals] == ["instance GPU-1: its id occurs twice"]


def test_the_parts_of_a_refused_unit_go_with_it() -> None:
    chain = [{"id": str(n), "kind": "part", "parent": str(n - 1)} for n in range(1, 4)]
    found, refusals = check([*chain, GPU], complete=True)
    assert found
    assert [unit.id for unit in found.instances] == ["GPU-1"]
    assert len(refusals) == 3


def test_too_many_units_are_refused_whole() -> None:
    found, refusals = check([{"id": str(n), "kind": "x"} for n in range(INSTANCES + 1)], complete=True)
    assert found is None
    assert refusals[0].reason == "4097 of them, more than 4096"


ITEM = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(["a", "b", "c", "", 5]),
        "kind": st.sampled_from(["gpu", "", None]),
        "parent": st.sampled_from(["", "a", "b", "z"]),
        "attributes": st.dictionaries(
            st.text(max_size=3), st.integers() | st.text(max_size=3) | st.none(), max_size=2
        ),
    },
)


@given(st.lists(ITEM | st.integers() | st.none(), max_size=6))
def test_whatever_is_found_is_an_inventory(raw: list[object]) -> None:
    found, refusals = check(raw, complete=True)
    assert found
    found.numbered("x", 1)
    assert found.complete == (not refusals)


def test_a_long_line_of_orphans_costs_no_more_than_its_length() -> None:
    chain = [{"id": str(number), "kind": "k", "parent": str(number - 1)} for number in range(INSTANCES)]
    began = time.thread_time()
    found, refusals = check([*chain], complete=True)  # "-1" is not there
    assert time.thread_time() - began < 0.2  # 0.02 s; it was 0.4 s, and grew with the square
    assert found == Found([], complete=False)
    assert len(refusals) == INSTANCES


def test_units_that_are_parts_of_each_other_are_refused() -> None:
    circle = [{"id": "a", "kind": "k", "parent": "b"}, {"id": "b", "kind": "k", "parent": "a"}]
    found, refusals = check([GPU, *circle, {"id": "c", "kind": "k", "parent": "c"}], complete=True)
    assert found
    assert [unit.id for unit in found.instances] == ["GPU-1"]
    assert [refusal.reason for refusal in refusals] == [
        f"its parent {parent} is not taken, or is a part of it" for parent in "bac"
    ]
