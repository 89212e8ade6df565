"""Types that hosts declare, and those of files that change."""

from tests.broker.world import TYPES, Agent, World, joined, site
from xce.model import message as m
from xce.model.builtin_types import BUILTIN_TYPES
from xce.model.configuration import BrokerFile, NewTypes
from xce.model.resource import Kind, ResourceType


def test_a_new_type_is_admitted_told_to_all_and_usable() -> None:
    world, agent = joined(fan=1)
    other = Agent(world, "node2")
    other.join(fan=1)
    scratch = ResourceType(name="scratch", kind=Kind.NUMERIC, unit="MB")
    answer = world.ask("node1", m.Declare(types={"scratch.yaml": [scratch]}))
    assert world.got("node1", m.Declared)[-1].types == {"scratch": ""}
    assert isinstance(answer, m.TypesNews)
    assert scratch in world.got("node2", m.TypesNews)[-1].types
    agent.report(scratch=5)
    assert world.see("host:node1").values["scratch"] == 5
    assert scratch.name in world.restart().broker.state.types.all


def test_a_conflicting_type_is_refused_with_both_places() -> None:
    world, _ = joined()
    mine = ResourceType(name="fan", kind=Kind.STRING)
    answer = world.ask("node1", m.Declare(types={"fan.yaml": [mine, TYPES["lab"]]}))
    assert answer.types == {
        "fan": "fan.yaml defines fan differently from resources.yaml or built in, which holds",
        "lab": "",
    }


def test_two_nodes_that_declare_differently_at_the_same_time_do_not_both_win() -> None:
    world, _ = joined()
    Agent(world, "node2").join()
    world.commits = False
    world.say("node1", m.Declare(types={"x.yaml": [ResourceType(name="x", kind=Kind.NUMERIC)]}))
    second = world.ask("node2", m.Declare(types={"x.yaml": [ResourceType(name="x", kind=Kind.STRING)]}))
    assert "x.yaml of agent:node1" in second.types["x"]
    assert "resources.yaml" in second.types["x"], "which is the way out"
    assert world.got("node1", m.Declared) == [], "not before it is durable"
    world.commit()
    assert world.got("node1", m.Declared)[-1].types == {"x": ""}


def test_the_file_that_a_type_came_from_may_change_it_and_no_other() -> None:
    world, _ = joined()
    other = Agent(world, "node2")
    other.join()
    first, better = (ResourceType(name="x", kind=Kind.NUMERIC, unit=unit) for unit in ("GB", "TB"))
    world.ask("node1", m.Declare(types={"x.yaml": [first]}))
    assert "x.yaml of agent:node1" in world.ask("node2", m.Declare(types={"x.yaml": [better]})).types["x"]
    assert "of agent:node1" in world.ask("node1", m.Declare(types={"y.yaml": [better]})).types["x"]
    world.ask("node1", m.Declare(types={"x.yaml": [better]}))
    assert world.got("node1", m.Declared)[-1].types == {"x": ""}
    assert better in world.got("node2", m.TypesNews)[-1].types
    assert world.ask("node2", m.Declare(types={"x.yaml": [better]})).types == {"x": ""}
    assert world.restart().broker.state.types.all["x"] == better


def test_new_types_can_be_refused_by_policy() -> None:
    world = World(config=BrokerFile(new_types=NewTypes.REFUSE))
    Agent(world, "node1").join()
    answer = world.ask("node1", m.Declare(types={"x.yaml": [ResourceType(name="x", kind=Kind.NUMERIC)]}))
    assert "does not know x" in answer.types["x"]


def test_a_value_that_waited_for_its_type_is_taken_when_the_type_comes() -> None:
    world, agent = joined(fan=1)
    agent.report(later=5)
    assert "later" not in world.see("host:node1").values
    later = ResourceType(name="later", kind=Kind.NUMERIC)
    world._take(world.broker.reload(site(types={**BUILTIN_TYPES, **TYPES, "later": later}), world.now))
    world.turn()
    assert world.see("host:node1").values == {"fan": 1, "later": 5}


def test_a_type_that_leaves_the_files_takes_its_values_along() -> None:
    world, _ = joined(fan=1, lab="a")
    types = {name: kind for name, kind in TYPES.items() if name != "fan"}
    world._take(world.broker.reload(site(types=types), world.now))
    world.turn()
    assert world.see("host:node1").values == {"lab": "a"}
