"""What a node tells of what it knows: each thing once, and generations that never mean two things."""

from xce.agent.memory import Generation
from xce.agent.node import Node
from xce.agent.types import Types
from xce.model.instance import Instance
from xce.model.message import ReporterState
from xce.model.resource import Kind, ResourceType
from xce.reporters.inventory import Found

A, B = Instance(id="a", kind="k"), Instance(id="b", kind="k")


def state(**fields: object) -> ReporterState:
    return ReporterState(state="waiting", **fields)  # type: ignore[arg-type]  # whatever a test wants


def test_a_state_is_told_when_it_changes_and_counters_when_they_are_asked_for() -> None:
    node = Node(Types())
    node.set_state("r", state(runs=1))
    assert node.pending()
    assert node.take_states(counters=False) == {"r": state(runs=1)}
    assert not node.pending()
    node.set_state("r", state(runs=2))
    assert node.take_states(counters=False) == {}
    assert node.take_states(counters=True) == {"r": state(runs=2)}
    assert node.take_states(counters=True) == {}
    node.set_state("r", state(runs=3, cause="exit status 1"))
    assert node.take_states(counters=False) == {"r": state(runs=3, cause="exit status 1")}


def test_a_removed_reporter_is_told_once_and_not_at_all_if_it_was_never_told() -> None:
    node = Node(Types())
    node.set_state("r", state())
    node.remove("r")
    assert node.take_states(counters=False) == {}
    node.set_state("r", state())
    node.take_states(counters=False)
    node.remove("r")
    assert node.pending()
    assert node.take_states(counters=False) == {"r": None}
    assert node.take_states(counters=True) == {}


def test_an_equal_inventory_keeps_its_generation_and_a_new_one_gets_the_next() -> None:
    node = Node(Types())
    assert node.stock("r", Found([A, B], complete=True))
    (first,) = node.take_inventories()
    assert not isinstance(first, str)
    assert first.generation == 1
    assert not node.stock("r", Found([B, A], complete=True))
    assert node.take_inventories() == []
    assert node.stock("r", Found([A], complete=True))
    assert node.references()["r"].generation == 2
    assert node.stock("r", Found([A], complete=False))
    assert (node.references()["r"].generation, node.references()["r"].complete) == (3, False)


def test_generations_go_on_over_a_restart_and_an_unchanged_inventory_keeps_its_own() -> None:
    before = Node(Types())
    before.stock("r", Found([A], complete=True))
    before.stock("r", Found([B], complete=True))
    again = Node(Types(), generations=before.generations)
    assert not again.stock("r", Found([B], complete=True))
    assert again.references() == before.references()
    changed = Node(Types(), generations={"r": Generation(9, "of something else")})
    assert changed.stock("r", Found([B], complete=True))
    assert changed.references()["r"].generation == 10


def test_a_removed_reporters_inventory_is_told_as_gone() -> None:
    node = Node(Types())
    node.set_state("r", state())
    node.stock("r", Found([A], complete=True))
    node.take_inventories()
    node.remove("r")
    assert node.take_inventories() == ["r"]


def test_values_follow_the_types_in_force() -> None:
    types = Types([ResourceType(name="x", kind=Kind.NUMERIC)])
    node = Node(types)
    node.table.publish("r", {"x": 1}, run=1, at=0, ttl=60, now=0)
    assert not node.apply_types(1)
    types.learn([])
    assert node.apply_types(1)
    assert node.table.readings() == {}
