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

from tests.system.harness import Site
from tests.system.test_claims import node, place, until_there
from tests.system.test_claims_killed import ASK, left, prepare_folders
from xce.broker.client import Client
from xce.model import message as m
from xce.model.claim import BindingState, Claim, Consumer, SharedAsk

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and device filters need root"),
]

WHOLE = "XCE_TEST_FULL" in os.environ
SOME = 3
"""Of what is passed until a claim is ready, and from then on."""
READY, RELEASED = BindingState.READY, BindingState.RELEASED
EVERY_KIND = msgspec.structs.replace(ASK, shared=[SharedAsk(volume="home")])


class Pair:
    """A broker, and an agent that can die with it; a claim at a time."""

    def __init__(self, site: Site) -> None:
        self.site, self.agent = site, node(site, "node1")
        prepare_folders(self.agent)
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
        self.asked(client, m.ClaimCreate(id=f"create-{name}", claim=Claim(id=name, ask=EVERY_KIND)))
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
        return made


def spread(points: Sequence[str]) -> list[str]:
    """Each once; by default some that are far from each other."""
    once = list(dict.fromkeys(points))
    return once if WHOLE else once[len(once) // SOME // 2 :: len(once) // SOME][:SOME]


def test_c_sta_03_both_killed_in_one_moment_at_any_point_everything_comes_to_its_end(site: Site) -> None:
    pair = Pair(site)
    with site.client() as client:
        before = len(pair.passed()) if Path(f"{pair.strike}.passed").exists() else 0
        made = pair.life(client, "still")
        points = pair.passed()
        preparing, releasing = spread(points[before:made]), spread(points[made:])
        kinds = {point.partition(".")[0] for point in points}
        assert {"group", "filter", "stage", "bind", "scratch", "shared", "ports", "environment"} <= kinds
        for number, point in enumerate(preparing):
            pair.life(client, f"p{number}", preparing=point)
        for number, point in enumerate(releasing):
            pair.life(client, f"r{number}", releasing=point)
        print(f"{len(preparing) + len(releasing)} of {len(set(points))} points")
        assert site.until(lambda: pair.agent.status().get("bindings") == [])
        assert (pair.agent.folder / "data" / "file").read_text() == "data"
        assert not any((pair.agent.folder / "home").iterdir())
