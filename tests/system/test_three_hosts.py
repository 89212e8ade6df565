"""Three hosts on a network of their own, and what happens when it breaks: C-MSG-02 and its kin.

Packets are dropped in both directions and nobody is told, as with a dead switch: TCP still says established.
"""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.system.harness import AgentProgram, Site
from tests.system.netlab import Lab
from xce.broker.client import Broker, Client
from xce.broker.mirror import Mirror
from xce.model.message import HoldAdd, HostDrain, HostUndrain, LocationView
from xce.model.value import Absent, Presence

pytestmark = [pytest.mark.root, pytest.mark.system]

HEARTBEAT_S = 1
MISSED = 3
BROKER = 1
"""Number of the broker's host in the lab; the agents are on the next three."""
COUNT = '#!/bin/sh\nn=$(cat "$XCE_STATE_DIR/n" 2>/dev/null || echo 0); n=$((n + 1))\n'
COUNT += 'echo $n >"$XCE_STATE_DIR/n"; echo "{\\"runs\\": $n}"\n'


class Cluster:
    """A site whose programs are on the hosts of a lab."""

    def __init__(self, site: Site, lab: Lab) -> None:
        self.site, self.lab = site, lab
        broker = site.broker
        broker.prefix = lab.command(BROKER, [])
        broker.endpoint = f"tcp://{lab.address(BROKER)}:7400"
        broker.settings |= {
            "listen": [broker.endpoint],
            "heartbeat": HEARTBEAT_S,
            "missed_heartbeats": MISSED,
            "discovered": "refuse",
        }
        broker.hosts = {"hosts": [{"name": name} for name in ("one", "two", "three")]}
        self.agents = {
            name: self._agent(name, number) for number, name in enumerate(("one", "two", "three"), 2)
        }
        broker.begin()  # not `start`, which knocks from here; nobody reaches the lab
        for agent in self.agents.values():
            agent.start()
        self.client = Client(Broker(f"ipc://{broker.settings['local']}"))

    def _agent(self, name: str, number: int) -> AgentProgram:
        agent = self.site.agent(name)
        agent.prefix = self.lab.command(number, [])
        agent.script("count", COUNT, interval=1, timeout=1, types=[{"name": "runs", "kind": "numeric"}])
        return agent

    def number(self, name: str) -> int:
        """A host's number in the lab."""
        return 2 + list(self.agents).index(name)

    def view(self, name: str) -> LocationView:
        """What the broker holds of a host."""
        return self.client.snapshot().locations[f"host:{name}"]

    def fresh(self, name: str) -> bool:
        """Whether the broker has a host as available, with a value."""
        view = self.view(name)
        return (
            view.state == "available"
            and not view.conditions
            and isinstance(view.values.get("runs"), int | float)
        )

    def all_fresh(self) -> bool:
        return all(self.fresh(name) for name in self.agents)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    folder.chmod(0o755)
    with Lab(hosts=4) as lab, Site(folder) as site:
        cluster = Cluster(site, lab)
        try:
            yield cluster
        finally:
            cluster.client.close()


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """The cluster with all hosts well; a test leaves it on a whole network."""
    shared.site.until(shared.all_fresh)
    yield shared
    shared.lab.heal()


def seconds_until(cluster: Cluster, condition: Callable[[], bool], *, within_s: float) -> float:
    """How long it took until the condition held."""
    began = time.monotonic()
    cluster.site.until(condition, within_s=within_s)
    return time.monotonic() - began


def test_a_cut_off_host_is_lost_and_comes_back_when_the_network_does(cluster: Cluster) -> None:
    """Lost after the documented heartbeats, nothing placed on it is forgotten, back without a restart."""
    cluster.client.ask(HoldAdd(id="", location="host:two", reason="a claim's hold"))
    before = cluster.client.snapshot()
    runs_before = cluster.agents["two"].reporter("count")["runs"]

    cluster.lab.cut(cluster.number("two"), BROKER)
    took = seconds_until(cluster, lambda: cluster.view("two").state == "lost", within_s=20)
    assert took >= (MISSED - 1) * HEARTBEAT_S, f"lost after {took:.1f} s: no time for {MISSED} heartbeats"

    assert cluster.fresh("one")
    assert cluster.fresh("three")
    view = cluster.view("two")
    assert [hold.reason for hold in view.holds] == ["a claim's hold"]
    cluster.site.until(lambda: presence(cluster, "two") is Presence.STALE)
    cluster.site.until(lambda: cluster.agents["two"].status()["link"]["phase"] != "synced")
    cluster.site.until(lambda: cluster.agents["two"].reporter("count")["runs"] > runs_before + 2)

    cluster.lab.heal()
    seconds_until(cluster, lambda: cluster.fresh("two"), within_s=30)
    after = cluster.client.snapshot()
    assert after.position.incarnation == before.position.incarnation
    assert [hold.reason for hold in after.locations["host:two"].holds] == ["a claim's hold"]
    assert "duplicate" not in after.locations["host:two"].conditions


def test_a_drained_host_that_is_cut_off_stays_draining(cluster: Cluster) -> None:
    """Down is not drained: silence is a condition beside the drain."""
    cluster.client.ask(HostDrain(id="", host="three", reason="fan 3"))
    cluster.lab.cut(cluster.number("three"), BROKER)
    cluster.site.until(lambda: "silent" in cluster.view("three").conditions)
    assert cluster.view("three").state == "draining"
    cluster.lab.heal()
    cluster.site.until(lambda: "silent" not in cluster.view("three").conditions, within_s=30)
    assert cluster.view("three").state == "draining"
    cluster.client.ask(HostUndrain(id="", host="three"))
    cluster.site.until(lambda: cluster.fresh("three"))


def test_a_broker_without_a_network_loses_all_hosts_and_gets_all_back(cluster: Cluster) -> None:
    """The broker's own switch is dead: every host is lost, none is forgotten, all return by themselves."""
    cluster.lab.cut(BROKER)
    cluster.site.until(lambda: states(cluster.client.snapshot()) == {"lost"})
    cluster.lab.heal()
    seconds_until(cluster, cluster.all_fresh, within_s=30)


def presence(cluster: Cluster, name: str) -> Presence:
    reading = cluster.view(name).values["runs"]
    return reading.presence if isinstance(reading, Absent) else Presence.VALUE


def states(mirror: Mirror) -> set[str]:
    return {view.state for key, view in mirror.locations.items() if key.startswith("host:")}
