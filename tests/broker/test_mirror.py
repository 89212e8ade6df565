"""The mirror: what a follower holds is what the broker said, or it is told to start again."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce.broker.mirror import Mirror, OutOfStep
from xce.model.instance import Instance, Inventory, reference
from xce.model.message import (
    Delta,
    LocationChange,
    LocationView,
    Position,
    Quality,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
)
from xce.model.supply import Hold, Source
from xce.model.value import Absent, Presence

HERE = Position(epoch=3, incarnation="abcd", sequence=41)
HOST = LocationView(source=Source.CONFIG, state="available", values={"mem": 812, "ut": 0.5}, groups=["rack1"])


def begin(parts: int = 1) -> SnapshotBegin:
    return SnapshotBegin(
        id="s1",
        revision=9,
        position=HERE,
        broker_ms=5000,
        taken_at="",
        parts=parts,
        quality=Quality(),
        types=[],
    )


def mirror(locations: dict[str, LocationView]) -> Mirror:
    made = Mirror(begin())
    made.part(SnapshotPart(id="s1", part=0, locations=locations))
    made.end(SnapshotEnd(id="s1"))
    return made


def delta(sequence: int = 42, incarnation: str = "abcd", **fields: Any) -> Delta:
    place = Position(epoch=3, incarnation=incarnation, sequence=sequence)
    return Delta(id="w1", position=place, revision=9, broker_ms=5100, **fields)


def test_a_change_replaces_what_it_names_and_leaves_the_rest() -> None:
    held = mirror({"host:node1": HOST, "host:node2": HOST})
    before = dict(held.locations)
    hold = Hold(owner="admin:alice", reason="fan")
    change = LocationChange(values={"mem": 799, "ut": None}, holds=[hold])
    held.apply(delta(locations={"host:node1": change}))
    assert held.locations["host:node1"] == msgspec.structs.replace(HOST, values={"mem": 799}, holds=[hold])
    assert held.locations["host:node2"] == HOST
    assert before["host:node1"] == HOST, "a view that was handed out must not change"
    assert (held.position.sequence, held.broker_ms) == (42, 5100)


def test_new_readings_replace_those_of_their_names_and_leave_the_rest() -> None:
    held = mirror({"host:node1": HOST, "host:node2": HOST})
    before = held.locations["host:node1"]
    message = delta(
        values={"host:node1": {"mem": 799}}, locations={"host:node2": LocationChange(state="lost")}
    )
    held.apply(message)
    assert held.locations["host:node1"] == msgspec.structs.replace(HOST, values={**HOST.values, "mem": 799})
    assert held.locations["host:node2"] == msgspec.structs.replace(HOST, state="lost")
    assert before == HOST, "a view that was handed out must not change"
    assert message.changes() == {
        "host:node1": LocationChange(values={"mem": 799}),
        "host:node2": LocationChange(state="lost"),
    }


def test_an_empty_list_empties_and_a_missing_one_keeps() -> None:
    held = mirror({"host:node1": HOST})
    held.apply(delta(locations={"host:node1": LocationChange(state="lost")}))
    assert held.locations["host:node1"].groups == ["rack1"]
    held.apply(delta(43, locations={"host:node1": LocationChange(groups=[])}))
    assert held.locations["host:node1"].groups == []


def test_an_absence_is_a_value_and_null_is_a_removal() -> None:
    held = mirror({"host:node1": HOST})
    absent = Absent(Presence.STALE, cause="not refreshed within 5 s", last=812, since_ms=5050)
    held.apply(delta(locations={"host:node1": LocationChange(values={"mem": absent})}))
    assert held.locations["host:node1"].values["mem"] == absent


def test_a_location_that_is_removed_and_new_in_one_turn_starts_afresh() -> None:
    held = mirror({"host:node1": HOST})
    change = LocationChange(source=Source.DISCOVERED, state="joining")
    held.apply(delta(removed=["host:node1"], locations={"host:node1": change}))
    assert held.locations == {"host:node1": LocationView(source=Source.DISCOVERED, state="joining")}


@pytest.mark.parametrize(
    "message",
    [
        delta(43),
        delta(41),
        delta(42, "other"),
        delta(locations={"host:new": LocationChange(values={"mem": 1})}),
        delta(removed=["host:node1"], locations={"host:node1": LocationChange(values={"mem": 1})}),
        delta(values={"host:node1": {"mem": 1}, "host:new": {"mem": 1}}),
        delta(removed=["host:node1"], values={"host:node1": {"mem": 1}}),
    ],
    ids=[
        "gap",
        "repeat",
        "other incarnation",
        "change of an unknown location",
        "change of a removed one",
        "readings of an unknown location",
        "readings of a removed one",
    ],
)
def test_a_delta_that_does_not_follow_is_refused_and_changes_nothing(message: Delta) -> None:
    held = mirror({"host:node1": HOST})
    with pytest.raises(OutOfStep):
        held.apply(message)
    assert held.locations == {"host:node1": HOST}
    assert held.position == HERE


def test_a_snapshot_with_a_missing_part_is_not_complete() -> None:
    held = Mirror(begin(parts=2))
    held.part(SnapshotPart(id="s1", part=0, locations={}))
    with pytest.raises(OutOfStep, match="after 1 of 2 parts"):
        held.end(SnapshotEnd(id="s1"))
    assert not held.complete
    with pytest.raises(OutOfStep, match="part 2 of the snapshot came instead of part 1"):
        held.part(SnapshotPart(id="s1", part=2, locations={}))


def test_an_inventory_is_wanted_until_its_body_is_held_and_again_when_it_changes() -> None:
    old = Inventory(reporter="gpu", generation=1, complete=True, instances=[Instance(id="GPU-1", kind="gpu")])
    new = Inventory(reporter="gpu", generation=2, complete=True)
    held = mirror({"host:node1": msgspec.structs.replace(HOST, inventories={"gpu": reference(old)})})
    assert held.wanted() == {"host:node1": ["gpu"]}
    held.keep({"host:node1": {"gpu": old}})
    assert held.wanted() == {}
    assert held.inventory("host:node1", "gpu") == old
    held.apply(delta(locations={"host:node1": LocationChange(inventories={"gpu": reference(new)})}))
    assert held.wanted() == {"host:node1": ["gpu"]}
    held.apply(delta(43, locations={"host:node1": LocationChange(inventories={"gpu": None})}))
    assert held.wanted() == {}
    assert held.inventory("host:node1", "gpu") is None


def test_bodies_outlive_a_new_snapshot_as_far_as_it_still_names_them() -> None:
    body = Inventory(reporter="gpu", generation=1, complete=True)
    view = msgspec.structs.replace(HOST, inventories={"gpu": reference(body)})
    older = mirror({"host:node1": view, "host:node2": view})
    older.keep({"host:node1": {"gpu": body}, "host:node2": {"gpu": body}})
    newer = Mirror(begin(), older=older)
    newer.part(SnapshotPart(id="s1", part=0, locations={"host:node1": view}))
    newer.end(SnapshotEnd(id="s1"))
    assert newer.wanted() == {}
    assert newer.inventory("host:node2", "gpu") is None


_names = st.sampled_from(["a", "b", "c"])
_tables = st.dictionaries(_names, st.integers(0, 3))


@given(st.lists(_tables, min_size=1, max_size=8))
def test_any_history_of_tables_told_as_deltas_ends_in_the_last_table(history: list[dict[str, int]]) -> None:
    held = mirror({"host:x": LocationView(source=Source.CONFIG, state="available", values=dict(history[0]))})
    for number, (old, new) in enumerate(pairwise(history)):
        values: dict[str, int | None] = {name: None for name in old if name not in new}
        values |= {name: value for name, value in new.items() if old.get(name) != value}
        held.apply(delta(42 + number, locations={"host:x": LocationChange(values=dict(values))}))
    assert held.locations["host:x"].values == history[-1]
