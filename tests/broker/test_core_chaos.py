"""Whatever happens: a mirror equals the map, and a restart shows what is durable."""

import random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.world import Agent, World, caught_up, pools_site, same
from xce.model import message as m
from xce.model.instance import Instance, Inventory
from xce.model.value import Absent, Presence


class Chaos:
    """Does one random thing after the other to a world."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.agents: dict[str, Agent] = {}
        self.orders = 0

    def step(self) -> None:
        self.random.choice(
            [self.report, self.report, self.report, self.rare, self.link, self.order, self.files, self.wait]
        )()

    def agent(self) -> Agent:
        name = self.random.choice(["node1", "node2", "node3", "stray"])
        agent = self.agents.get(name)
        if agent is None or self.world.peers[agent.peer].host is None:
            agent = self.agents[name] = Agent(
                self.world,
                name,
                peer=f"{name}-{self.random.random()}",
                key=name,
                nonce=str(self.random.random()),
            )
            if not isinstance(agent.hello(), m.Welcome):
                return self.agent_that_works()
        return agent

    def agent_that_works(self) -> Agent:
        for agent in self.agents.values():
            if self.world.peers[agent.peer].host is not None:
                return agent
        self.world.now += 100  # everybody who was there is silent by now
        return self.agent()

    def value(self) -> Any:
        return self.random.choice(
            [
                1,
                2.5,
                True,
                "a",
                "b\n",
                ["x"],
                ["b", "a"],
                None,
                9001,
                Absent(Presence.UNKNOWN, "broken"),
                float("nan"),
            ]
        )

    def report(self) -> None:
        names = ["fan", "lab", "ok", "tags", "r1m", "rack", "nonsense", "lic"]
        values = {self.random.choice(names): self.value() for _ in range(self.random.randint(0, 5))}
        reporter = self.random.choice(["probe", "other"])
        if self.random.random() < 0.3:  # enough numbers to be taken together
            values |= {
                name: self.random.choice([0, 1.5, 7]) for name in ("r15s", "r1m", "r15m", "ut", "pg", "io")
            }
        full = self.random.random() < 0.2
        agent = self.agent()
        self.world.turns = self.random.random() < 0.5
        agent.report(reporter, full=full, age_ms=self.random.choice([0, 15_000]), **values)
        self.world.turns = True

    def rare(self) -> None:
        agent = self.agent()
        reporter = self.random.choice(["probe", "other"])
        conditions = [m.ReportedCondition(name="bad", hold=True)] if self.random.random() < 0.3 else []
        state = m.ReporterState(state="waiting", ttl_ms=self.random.choice([0, 5000]), conditions=conditions)
        units = [Instance(id=str(number), kind="gpu") for number in range(self.random.randint(0, 3))]
        inventory = Inventory(reporter=reporter, generation=1, complete=True, instances=units)
        message: msgspec.Struct = self.random.choice(
            [
                m.ReporterNews(reporters={reporter: state}),
                m.ReporterNews(reporters={reporter: None}),
                m.ReporterNews(reporters={reporter: state}, full=True),
                m.InventoryNews(inventory=inventory),
                m.InventoryGone(reporter=reporter),
            ]
        )
        self.world.say(agent.peer, message)

    def link(self) -> None:
        agent = self.agent()
        if self.random.random() < 0.5:
            self.world.gone(agent.peer)
            del self.agents[agent.name]
        else:
            self.world.say(agent.peer, m.Goodbye(expected_s=self.random.choice([0, 5])))

    def order(self) -> None:
        self.orders += 1
        op_id = f"op{self.orders}"
        host = self.random.choice(["node1", "stray", "new"])
        place = self.random.choice([f"host:{host}", "pool:matlab", "group:gpu"])
        order: Any = self.random.choice(
            [
                m.HostAdd(id=op_id, host=host, groups=["gpu"], join_within_s=self.random.choice([0, 5])),
                m.HostAdmit(id=op_id, host=host),
                m.HostDrain(id=op_id, host=host, reason="x"),
                m.HostUndrain(id=op_id, host=host),
                m.HostRelease(id=op_id, host=host, reason="x"),
                m.HoldAdd(id=op_id, location=place, reason="x"),
                m.HoldRelease(id=op_id, location=place, owner="admin:chaos"),
                m.PoolSet(id=op_id, pool="matlab", resource="lic", borrowed=self.orders),
            ]
        )
        self.world.ask(self.world.peer("chaos", "admin"), order)

    def files(self) -> None:
        hosts = {name: ["gpu"] for name in ("node1", "node2", "node3") if self.random.random() < 0.7}
        values = {f"host:{name}": {"lab": "fixed"} for name in hosts if self.random.random() < 0.3}
        pools = {} if self.random.random() < 0.3 else pools_site().pools
        files = pools_site(groups_of=hosts, values=values, pools=pools, members={"gpu": []})
        self.world._take(self.world.broker.reload(files, self.world.now))
        self.world.turn()

    def wait(self) -> None:
        self.world.wait(self.random.choice([1, 7, 40]), step=2)


@given(st.integers(0, 2**32), st.integers(5, 50))
@settings(max_examples=25, deadline=None)
def test_a_mirror_equals_the_map_whatever_happens(seed: int, steps: int) -> None:
    """G13: snapshot, deltas, and the next snapshot agree in every field, with every kind of change mixed."""
    world = World(files=pools_site())
    chaos = Chaos(world, seed)
    mirror = world.snapshot(name="watcher")
    world.say("watcher", m.WatchRequest(id="w", since=mirror.position, credit=1 << 20))
    start = len(world.inbox("watcher"))
    for _ in range(steps):
        chaos.step()
    world.turn()
    caught_up(world, "watcher", mirror, start)
    same(mirror, world.snapshot(name="watcher"))
    assert world.broker.state.counts["internal_errors"] == 0


@given(st.integers(0, 2**32))
@settings(max_examples=12, deadline=None)
def test_after_a_restart_the_map_shows_what_is_durable(seed: int) -> None:
    """Replay equals state field by field, and everything that a restart must keep is shown as before."""
    world = World(files=pools_site())
    chaos = Chaos(world, seed)
    for _ in range(40):
        chaos.step()
    before = world.snapshot()
    again = world.restart()
    ledger, replayed = world.broker.state.journal.ledger, again.broker.state.journal.ledger
    assert replayed.epoch == ledger.epoch + 1
    for name in ("hosts", "holds", "pools", "types"):
        assert getattr(replayed, name) == getattr(ledger, name)
    after = again.snapshot()
    assert after.types == before.types
    for key, view in before.locations.items():
        if key not in after.locations:
            assert view.source.value in {"discovered", "reporter"} or key.startswith("host:")
            continue
        now = after.locations[key]
        durable = {hold.owner for hold in view.holds if not hold.owner.startswith(("reporter:", "broker:"))}
        assert durable == {
            hold.owner for hold in now.holds if not hold.owner.startswith(("reporter:", "broker:"))
        }
        assert (now.source, now.groups, now.amounts) == (view.source, view.groups, view.amounts)
        assert now.about.get("drained") == view.about.get("drained")
        if view.state in {"draining", "released"}:
            assert now.state == view.state
