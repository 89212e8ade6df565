"""Agent and broker killed in one moment, at points spread over all that a node does for a claim.

The points are those that a claim passes that nobody disturbs. By default a few of them, and all with
`XCE_TEST_FULL=1`, each the first time that it is passed.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.csi_node_helper.world import Plugin, program
from tests.system.harness import Site
from tests.system.test_claims import node, place, until_there
from tests.system.test_claims_killed import ASK, left, prepare_folders
from xce.broker.client import Client
from xce.model import message as m
from xce.model.claim import BindingState, Claim, Consumer, MountAsk, SharedAsk

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and device filters need root"),
]

WHOLE = "XCE_TEST_FULL" in os.environ
SOME = 3
"""Of what is passed until a claim is ready, and from then on."""
READY, RELEASED = BindingState.READY, BindingState.RELEASED
EVERY_KIND = msgspec.structs.replace(
    ASK, mounts=[*ASK.mounts, MountAsk(name="plugged", source="plugged")], shared=[SharedAsk(volume="home")]
)
WORDS = {"volume_id": "vol1", "volume_context/share": "horse-drawn-cart"}
"""Of the volume's provider: no journal has them, so a node that begins anew hears them anew."""


class Pair:
    """A broker, and an agent that can die with it; a claim at a time."""

    def __init__(self, site: Site, plugin: Plugin) -> None:
        self.site, self.agent, self.plugin = site, node(site, "node1"), plugin
        prepare_folders(self.agent)
        claims = self.agent.settings["claims"]
        claims["directory"] = str(plugin.folder.parent / "claims")
        claims["csi"] = {"plugins": {"fake": plugin.socket}, "helper": program(plugin.folder)}
        claims["profiles"]["default"]["volumes"]["plugged"] = {"csi": {"plugin": "fake"}}
        self.strike = site.folder / "strike"
        config = str(self.agent.folder / "agent.yaml")
        self.agent.argv = [sys.executable, "-m", "tests.fakes.mortal_agent", config, str(self.strike)]
        self.struck: list[str] = []
        site.broker.start()
        self.agent.start()
        until_there(site, "node1")

    def passed(self) -> list[str]:
        """All points so far."""
        return Path(f"{self.strike}.passed").read_text().split()

    def arm(self, point: str) -> None:
        self.strike.write_text(f"{point} {self.site.broker.pid}")

    def revive(self) -> None:
        """Start again what has died."""
        if not self.agent.running() or not self.site.broker.running():
            self.agent.ended()
            self.site.broker.ended()
            self.site.broker.start()
            self.agent.start()

    def asked(self, client: Client, order: m.Order) -> m.Done:
        """Until it is answered, with one id."""

        def answered() -> m.Done:
            self.revive()
            return client.ask(order, timeout=1)

        return self.site.until(answered, within_s=30)

    def bind(self, client: Client, name: str) -> m.ClaimBind:
        """An order for it, with the inventory as it is now."""
        where = place(client, name, "node1", "card-own", "")
        where = msgspec.structs.replace(where, consumer=Consumer(name=name, user="root"))
        return m.ClaimBind(id=f"bind-{name}", places=[where])

    def until(self, client: Client, binding: str, state: BindingState) -> None:
        def there() -> bool:
            self.revive()
            found = client.ask(m.ClaimsRequest(id=""), timeout=2).bindings.get(binding)
            return (found.binding.state if found else RELEASED) is state

        self.site.until(there, within_s=30)

    def life(self, client: Client, name: str, *, preparing: str = "", releasing: str = "") -> int:
        """A claim, and both die at one of these points. How many there were until it was ready."""
        until_there(self.site, "node1")
        claim = Claim(id=name, ask=EVERY_KIND, provider="store")
        self.asked(client, m.ClaimCreate(id=f"create-{name}", claim=claim))
        provided = m.ClaimProvide(id=f"provide-{name}", claim=name, state=READY, volume=WORDS)
        self.asked(client, provided)
        order = self.bind(client, name)
        if preparing:
            self.arm(preparing)
        (binding,) = self.asked(client, order).made
        self.until(client, binding, READY)
        assert self.asked(client, order).made == [binding], "the same order, another answer"
        made = len(self.passed())
        if releasing:
            self.arm(releasing)
        self.asked(client, m.ClaimRelease(id=f"release-{name}", claim=name))
        self.until(client, binding, RELEASED)
        assert not self.strike.exists(), f"{preparing}{releasing} was not passed"
        self.site.until(lambda: left(self.agent) == [], within_s=20)
        assert self.taken_back() == [True, True]
        return made

    def taken_back(self) -> list[bool]:
        """Whether the plugin was asked last to take the volume back: what is staged, what is published."""
        pairs = ("NodeStageVolume", "NodeUnstageVolume"), ("NodePublishVolume", "NodeUnpublishVolume")
        asked = [call["rpc"] for call in self.plugin.calls()]
        return [[rpc for rpc in asked if rpc in pair][-1] == pair[1] for pair in pairs]


def spread(points: Sequence[str]) -> list[str]:
    """Each once; by default some that are far from each other."""
    once = list(dict.fromkeys(points))
    return once if WHOLE else once[len(once) // SOME // 2 :: len(once) // SOME][:SOME]


def test_c_sta_03_both_killed_in_one_moment_at_any_point_everything_comes_to_its_end(
    site: Site, plugin: Plugin
) -> None:
    pair = Pair(site, plugin)
    with site.client() as client:
        before = len(pair.passed()) if Path(f"{pair.strike}.passed").exists() else 0
        made = pair.life(client, "still")
        points = pair.passed()
        preparing, releasing = spread(points[before:made]), spread(points[made:])
        kinds = {point.partition(".")[0] for point in points}
        assert {
            "group",
            "filter",
            "stage",
            "csi",
            "bind",
            "scratch",
            "shared",
            "ports",
            "environment",
        } <= kinds
        for number, point in enumerate(preparing):
            pair.life(client, f"p{number}", preparing=point)
        for number, point in enumerate(releasing):
            pair.life(client, f"r{number}", releasing=point)
        print(f"{len(preparing) + len(releasing)} of {len(set(points))} points")
        assert site.until(lambda: pair.agent.status().get("bindings") == [])
        assert (pair.agent.folder / "data" / "file").read_text() == "data"
        assert not any((pair.agent.folder / "home").iterdir())
