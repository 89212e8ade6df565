"""Agent and broker killed at random while claims come and go: nothing is lost, nothing is left.

`XCE_KILL_CLAIMS` says how many claims; 5 by default. `XCE_KILL_SEED` repeats a run.
"""

import os
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.system.harness import AgentProgram, Site
from tests.system.test_claims import node, place, until_there
from xce.broker.client import BrokerRefused, BrokerUnreachable, Client
from xce.linux import mountinfo
from xce.linux.cgroup import Cgroup
from xce.model import message as m
from xce.model.claim import Ask, BindingState, Claim, Consumer, InstanceAsk, MountAsk, PortsAsk

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and device filters need root"),
]

CLAIMS = int(os.environ.get("XCE_KILL_CLAIMS", "5"))
SEED = os.environ.get("XCE_KILL_SEED", str(os.getpid()))
ASK = Ask(
    instances=[InstanceAsk(kind="card")],
    mounts=[MountAsk(name="input", source="data", read_only=True), MountAsk(name="cache", source="staged")],
    scratch_bytes=1 << 20,
    ports=[PortsAsk(name="rpc", count=2)],
)


class Chaos:
    """Two programs, one of which dies now and then."""

    def __init__(self, site: Site, agent: AgentProgram) -> None:
        self.site, self.agent, self.chance = site, agent, random.Random(SEED)
        self.killed = 0

    def strike(self) -> None:
        """Kill one of them, or both, or none, and start it again."""
        time.sleep(self.chance.random() * 0.15)
        victims: list[Any] = [[self.agent], [self.site.broker], [self.agent, self.site.broker], []]
        chosen = self.chance.choice(victims)
        for one in chosen:
            one.kill()
        self.killed += len(chosen)
        time.sleep(self.chance.random() * 0.1)
        for one in reversed(chosen):
            one.start()

    def asked(self, client: Client, order: m.Order) -> m.Done:
        """Ask until it is answered; the same op_id gets the same answer."""
        end = time.monotonic() + 60
        while True:
            try:
                return client.ask(order)
            except BrokerUnreachable:
                assert time.monotonic() < end


def left(agent: AgentProgram) -> list[str]:
    """What is on the host of any claim."""
    settings = agent.settings["claims"]
    found = [group.path for group in Cgroup(settings["cgroup"]).children()]
    found += [one.point for one in mountinfo.read(pid=agent.pid) if f"{settings['directory']}/" in one.point]
    for place_ in (
        settings["directory"],
        settings["cdi_directory"],
        settings["profiles"]["default"]["scratch"]["disk"]["path"],
    ):
        found += [str(path) for path in Path(place_).rglob("*") if not path.name.startswith(".")]
    return [path for path in found if not path.endswith((".csi/s", ".csi/p"))]  # all volumes share them


def bound(chaos: Chaos, client: Client, number: int) -> str:
    """The binding; the host may be away for a moment, which is a new order each time."""
    order, end = 0, time.monotonic() + 60
    while True:
        order += 1
        try:
            where = place(client, f"job{number}", "node1", "card-own", "")
            where = msgspec.structs.replace(where, consumer=Consumer(name=f"j{number}", user="root"))
            return chaos.asked(client, m.ClaimBind(id=f"bind{number}-{order}", places=[where])).made[0]
        except (BrokerRefused, BrokerUnreachable, KeyError):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def until(chaos: Chaos, client: Client, binding: str, state: BindingState) -> None:
    """Wait for a state of a binding; one that is released may be forgotten."""

    def there() -> bool:
        found = client.ask(m.ClaimsRequest(id="")).bindings.get(binding)
        now = found.binding.state if found else BindingState.RELEASED
        assert now is state, (now, found, chaos.agent.status())
        return True

    chaos.site.until(there, within_s=60)


def prepare_folders(agent: AgentProgram) -> None:
    for name in ("data", "scratch", "home"):
        (agent.folder / name).mkdir()
    (agent.folder / "data" / "file").write_text("data")
    claims = agent.settings["claims"]
    claims["cdi_directory"] = str(agent.folder / "cdi")
    claims["namespace"] = "self"
    claims["profiles"]["default"] |= {
        "volumes": {
            "data": {"path": str(agent.folder / "data")},
            "staged": {"type": "tmpfs", "options": ["size=1m"]},
        },
        "scratch": {"disk": {"path": str(agent.folder / "scratch")}},
        "shared": {"home": {"path": str(agent.folder / "home"), "retention_s": 0}},
    }


def test_killed_at_random_while_claims_come_and_go_nothing_is_left(site: Site) -> None:
    print(f"seed {SEED}")
    agent = node(site, "node1")
    prepare_folders(agent)
    site.broker.start()
    agent.start()
    until_there(site, "node1")
    chaos = Chaos(site, agent)
    with site.client() as client:
        for number in range(CLAIMS):
            name = f"job{number}"
            chaos.asked(client, m.ClaimCreate(id=f"create{number}", claim=Claim(id=name, ask=ASK)))
            made = bound(chaos, client, number)
            chaos.strike()
            if chaos.chance.random() < 0.7:
                until(chaos, client, made, BindingState.READY)
            chaos.asked(client, m.ClaimRelease(id=f"release{number}", claim=name))
            chaos.strike()
            until(chaos, client, made, BindingState.RELEASED)
        site.until(lambda: left(agent) == [], within_s=30)
        print(f"{chaos.killed} killed")
        site.until(lambda: agent.status().get("bindings") == [])
        assert (agent.folder / "data" / "file").read_text() == "data"
