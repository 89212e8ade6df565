"""What plugins say of a node and of volumes in use, as values: real claims, helper and plugin."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.csi_node_helper.world import Plugin
from tests.linux.kernel import Kernel, make_group, make_kernel
from tests.prepare.csi_world import REGISTERED, CsiWorld, asked, make_plugin
from xce.agent.claims import Claims
from xce.agent.csi_source import CsiSource
from xce.agent.node import Node
from xce.agent.types import Types
from xce.model import csi
from xce.model import message as m
from xce.model.claim import Ask, Binding, BindingState, Claim, Consumer
from xce.model.value import Absent, Presence, Reading
from xce.prepare.csi.survey import Findings, Survey
from xce.prepare.execute import Executor

pytestmark = pytest.mark.root
kernel = pytest.fixture(make_kernel, name="kernel")
group = pytest.fixture(make_group, name="group")
plugin = pytest.fixture(make_plugin, name="plugin", scope="module")
FIGURES = {
    "bytes_total": 1000,
    "bytes_used": 300,
    "bytes_available": 700,
    "inodes_total": 9,
    "inodes_used": 2,
    "inodes_available": 7,
    "abnormal": False,
}


class Agent:
    """The parts of an agent that are about CSI, at many times their speed."""

    def __init__(self, kernel: Kernel, world: CsiWorld) -> None:
        self.kernel, self.world = kernel, world
        world.stop()
        self.claims = Claims(kernel.loop, self.make, lambda _reporter: None, lambda: None)
        self.node = Node(Types(alone=True))
        self.source = CsiSource(
            kernel.loop,
            self.node,
            self.claims,
            lambda: self.node.apply_types(kernel.loop.now()),
            survey=Survey(every_s=0.2),
            tick_s=0.05,
        )
        self.source.start()

    def make(self) -> Executor:
        self.world.start()
        return self.world.executor

    def order(self, name: str, ask: Ask, **fields: Any) -> None:
        binding = Binding(id=name, claim="c", host="here", consumer=Consumer(name=name, user="alice"))
        claim = Claim(id="c", owner="alice", ask=ask, **fields)
        self.claims.ordered(m.BindingPrepare(epoch=1, op_id=name, binding=binding, claim=claim))

    def bind(self, name: str, source: str = "vol1") -> None:
        self.order(name, asked(source))
        self.kernel.until(lambda: self.state(name) is BindingState.READY)

    def release(self, name: str) -> None:
        self.claims.ordered(m.BindingRelease(epoch=1, op_id="e", binding=name))
        self.kernel.until(lambda: self.state(name) is BindingState.RELEASED)

    def state(self, name: str) -> BindingState | None:
        report = self.claims.holdings.reports.get(name)
        return report.state if report else None

    def readings(self) -> dict[str, Reading]:
        self.node.table.settle(self.kernel.loop.now())
        return {name.removeprefix("csi."): one for name, one in self.node.table.readings().items()}

    def until(self, **wanted: Any) -> dict[str, Reading]:
        """Until these readings are there; `__` stands for a dot, None for none."""
        names = {name.replace("__", "."): value for name, value in wanted.items()}
        self.kernel.until(
            lambda: all(self.readings().get(name) == value for name, value in names.items()), within=10
        )
        return self.readings()

    def close(self) -> None:
        self.source.stop()
        for name in list(self.claims.holdings.reports):
            if self.state(name) not in {BindingState.RELEASED, BindingState.FAILED}:
                self.release(name)
        assert self.claims.close(10)


@pytest.fixture(name="registry")
def make_registry() -> str:
    """Where the plugin registers; '' if the settings name it."""
    return ""


@pytest.fixture(name="agent")
def make_agent(kernel: Kernel, tmp_path: Path, plugin: Plugin, registry: str) -> Iterator[Agent]:
    plugin.renew()
    groups = make_group(tmp_path)
    world = CsiWorld(tmp_path, next(groups), plugin=plugin, registry=registry)
    agent = Agent(kernel, world)
    yield agent
    agent.close()
    world.node.csi.close()  # type: ignore[attr-defined]
    assert world.mounts() == []
    next(groups, None)


def unknown(reading: Reading | None) -> str:
    """The cause of an unknown reading."""
    assert isinstance(reading, Absent), reading
    assert reading.presence is Presence.UNKNOWN
    return reading.cause


def test_node_and_topology_are_attributes_and_the_limit_a_counter_with_its_use(agent: Agent) -> None:
    agent.world.plugin.stop()
    agent.world.plugin.control(max_volumes=5, topology={"rack": "r7", "zone": "b"}, node_id="n-1")
    agent.world.plugin.start()
    agent.until(fake__node="n-1", fake__topology=["rack=r7", "zone=b"], fake__volumes=0, fake__volumes_max=5)
    agent.bind("b1")
    agent.bind("b2")
    agent.until(fake__volumes=1, fake__volumes_free=4, fake__volumes_max=5)
    agent.bind("b3", "solo")
    agent.until(fake__volumes=2, fake__volumes_free=3)
    for name in ("b1", "b2", "b3"):
        agent.release(name)
    agent.until(fake__volumes=0, fake__volumes_free=5)


def test_a_plugin_that_has_never_answered_is_told_since_it_has_no_values(agent: Agent) -> None:
    gone = csi.Seen(plugin="gone", socket="/run/gone.sock", problem="there is no socket /run/gone.sock")
    agent.source._take(Findings([gone], []))
    assert agent.source.fault == "plugin gone: there is no socket /run/gone.sock"
    agent.until(fake__node="node-7")
    assert agent.source.fault == ""


def test_a_plugin_that_names_no_limit_has_none_and_not_a_large_one(agent: Agent) -> None:
    found = agent.until(fake__node="node-7", fake__volumes=0)
    for name in ("fake.volumes_max", "fake.volumes_free"):
        reading = found[name]
        assert isinstance(reading, Absent)
        assert reading.presence is Presence.NOT_APPLICABLE


def test_a_volume_in_use_has_its_statistics_and_one_that_is_given_back_has_none(agent: Agent) -> None:
    agent.bind("b1")
    found = agent.until(volume__vol1__bytes_used=300)
    assert {name: found[f"volume.vol1.{name}"] for name in FIGURES} == FIGURES
    explained = agent.node.table.explain("csi.volume.vol1.bytes_used", agent.kernel.loop.now())
    assert explained is not None
    assert explained.reporter == "csi:fake/vol1"
    assert explained.age_s is not None
    agent.world.plugin.control(usage=[{"total": 1000, "used": 400, "unit": 1}], abnormal=True)
    found = agent.until(volume__vol1__bytes_used=400, volume__vol1__abnormal=True)
    assert "does not say" in unknown(found["volume.vol1.inodes_used"])
    agent.node.table.forget_told()
    agent.release("b1")
    agent.until(volume__vol1__bytes_used=None, fake__volumes=0)
    (feed,) = [
        one
        for one in agent.node.take_feeds(agent.kernel.loop.now(), urgent_s=0)
        if one.reporter.endswith("vol1")
    ]
    assert set(feed.values.values()) == {None}, "told as withdrawn"


def test_statistics_grow_old_with_the_answers_and_then_unknown_with_the_reason(agent: Agent) -> None:
    agent.bind("b1")
    agent.until(volume__vol1__bytes_used=300)
    agent.world.plugin.control(faults={"NodeGetVolumeStats": {"code": 13, "message": "disk sulks"}})
    agent.kernel.until(lambda: "disk sulks" in agent.node.states["csi:fake/vol1"].cause)
    assert agent.readings()["fake.volumes"] == 1, "the plugin's other values are not touched"
    agent.kernel.until(lambda: not isinstance(agent.readings()["volume.vol1.bytes_used"], int))
    assert "disk sulks" in unknown(agent.readings()["volume.vol1.bytes_used"])
    agent.world.plugin.control()
    agent.until(volume__vol1__bytes_used=300)


def test_figures_that_cannot_be_are_refused_and_not_told(agent: Agent) -> None:
    usage = [{"total": 10, "used": -1, "available": 11, "unit": 1}, {"total": 5, "unit": 9}]
    agent.world.plugin.control(usage=usage)
    agent.bind("b1")
    found = agent.until(volume__vol1__bytes_total=10)
    assert "below the minimum" in unknown(found["volume.vol1.bytes_used"])
    assert "does not say" in unknown(found["volume.vol1.inodes_total"])


def test_a_plugin_that_announces_no_statistics_is_not_asked_for_them(agent: Agent) -> None:
    agent.world.plugin.stop()
    agent.world.plugin.control(abilities=[1])
    agent.world.plugin.start()
    agent.bind("b1")
    agent.until(fake__volumes=1)
    agent.kernel.during(0.5)
    assert agent.world.plugin.calls("NodeGetVolumeStats") == []
    assert "volume.vol1.bytes_used" not in agent.readings()


def test_statistics_that_hang_hold_up_no_release(agent: Agent) -> None:
    agent.world.plugin.control(faults={"NodeGetVolumeStats": {"delay_s": 1.0}})
    agent.bind("b1")
    agent.kernel.until(lambda: agent.world.plugin.calls("NodeGetVolumeStats"))
    agent.release("b1")
    assert agent.world.rpcs()[-1] == "unstage"


class TestRegistered:
    """The plugin comes and goes with its registrar's socket."""

    @pytest.fixture
    def registry(self, tmp_path: Path, plugin: Plugin) -> str:
        """Beside the world's things."""
        folder = tmp_path / "registry"
        folder.mkdir()
        return str(folder)

    def test_a_plugin_that_is_gone_takes_its_values_along(self, agent: Agent, registry: str) -> None:
        values = {"volume__vol1__bytes_used": 300, "fake_xce_example__volumes": 1}
        agent.world.plugin.stop()
        agent.world.plugin.control(registry=registry)
        agent.world.plugin.start()
        agent.bind("b1")
        agent.until(**values)
        Path(registry, f"{REGISTERED}-reg.sock").unlink()
        agent.kernel.until(lambda: agent.readings() == {})
        assert agent.node.states == {}
        agent.world.plugin.stop()
        agent.world.plugin.start()
        agent.until(**values)


def test_a_plugin_that_is_not_well_is_told_with_the_reason_and_keeps_its_values_for_a_while(
    agent: Agent,
) -> None:
    agent.until(fake__node="node-7")
    agent.world.plugin.stop()
    Path(agent.world.plugin.socket).unlink()
    agent.kernel.until(lambda: "no socket" in agent.node.states["csi:fake"].cause)
    assert agent.readings()["fake.node"] == "node-7"


def test_volumes_are_shown_to_people_with_what_their_plugins_say(agent: Agent) -> None:
    agent.bind("b1")
    agent.until(volume__vol1__bytes_used=300)
    told: list[Any] = []
    agent.source.documents(told.append)
    agent.kernel.until(lambda: told)
    ((one,),) = told
    assert (one["plugin"], one["volume"], one["state"], one["bindings"]) == (
        "fake",
        "vol1",
        "published",
        ["b1"],
    )
    assert one["statistics"] == FIGURES
    assert one["statistics_age_s"] >= 0
