"""The real broker killed with kill -9 about the commits of a history with every kind of order about claims.

Before the commit of an order, after it and before the answer, when the answer has left; and about the commits
of what nodes make of the order. The order is given again with its id: it has one answer, and the end is as if
nothing had happened. By default each order meets one of these kills; with `XCE_TEST_FULL=1` all of them.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.broker.claim_history import HOSTS, Ending, ending, history
from tests.broker.nodes import gpus
from tests.broker.test_commit_matrix import WHOLE as WITHOUT
from tests.broker.test_commit_matrix import end_of
from tests.fakes.claim_agent import ClaimAgent
from tests.fakes.live_broker import LiveBroker
from xce.broker.client import BrokerRefused, BrokerUnreachable, Client
from xce.model import message as m
from xce.model.claim import ENDED, BindingState

pytestmark = [pytest.mark.system, pytest.mark.slow]

WHOLE = "XCE_TEST_FULL" in os.environ
WITHIN_S = 30.0
ANSWER_S = 0.4
"""For an answer, before it is asked again."""
SOON_S = 0.4
"""In which a node's answer to an order comes, if there is one."""


class Blow(NamedTuple):
    """Where the broker is hit in an order."""

    point: str
    changes: str = ""
    """Of nodes' reports that come of the order; '': the order itself."""


BLOWS = [
    Blow("before"),
    Blow("after"),
    Blow("answered"),
    Blow("before", "BindingMoved GangReady"),
    Blow("after", "BindingMoved GangReady"),
]


class MortalSite:
    """The broker, three nodes that work by themselves, a controller. Each order meets the next blow."""

    def __init__(self, folder: Path, blows: Callable[[int], Blow | None]) -> None:
        self.strike = folder / "strike"
        self.broker = LiveBroker(folder)
        self.broker.command = [sys.executable, "-m", "tests.fakes.mortal_broker"]
        self.broker.command += [str(folder / "broker.yaml"), str(self.strike)]
        self.agents = {
            name: ClaimAgent(self.broker.local, name, {"level": 1}, inventory=gpus()) for name in HOSTS
        }
        self._blows = blows
        self.answers: dict[str, m.Done] = {}
        self.orders: dict[str, Any] = {}
        self.felled: list[tuple[str, Blow]] = []

    def __enter__(self) -> "MortalSite":
        self._stack = ExitStack()
        self._stack.enter_context(self.broker)
        for one in self.agents.values():
            self._stack.enter_context(one)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def give(self, order: Any) -> None:
        blow = self._blows(len(self.orders))
        if blow is not None:
            self.strike.write_text(f"{blow.point} {blow.changes or order.id}")
        self.asked(order)
        self.orders[order.id] = order
        if blow is not None and (blow.changes or blow.point == "answered"):
            self.felled_soon()
        if blow is not None and not self.strike.exists():
            self.felled.append((type(order).__name__, blow))
        self.strike.unlink(missing_ok=True)
        self.revive()
        self.asked(order)

    def felled_soon(self) -> None:
        """It dies a while after the answer, or of what nodes say then; or there is nothing to die of."""
        end = time.monotonic() + SOON_S
        while self.strike.exists() and time.monotonic() < end:
            time.sleep(0.01)

    def asked(self, order: Any) -> None:
        """Until it is answered, with the broker started again whenever it has died."""

        def answered() -> bool:
            self.revive()
            try:
                with Client(self.broker.local, timeout=ANSWER_S) as client:
                    done = client.ask(order)
            except (BrokerUnreachable, BrokerRefused):  # a node that is not heard yet, for example
                return False
            assert self.answers.setdefault(order.id, done) == done, "the same order, another answer"
            return True

        self.until(answered)

    def revive(self) -> None:
        if self.broker.ended():
            self.broker.start()

    def made(self, op_id: str) -> list[str]:
        return self.answers[op_id].made

    def seen(self) -> m.Claims:
        self.revive()
        with Client(self.broker.local) as client:
            return client.ask(m.ClaimsRequest(id=""))

    def settled(self) -> bool:
        """Nothing is on its way, and both sides say the same."""
        try:
            seen = self.seen()
        except BrokerUnreachable:
            return False
        steady = {BindingState.READY, *ENDED}
        if not all(one.binding.state in steady for one in seen.bindings.values()):
            return False
        for name, agent in self.agents.items():
            live = {
                one.binding.id: one.binding.state
                for one in seen.bindings.values()
                if one.binding.host == name and one.binding.state not in ENDED
            }
            if {one: report.state for one, report in agent.holds.items()} != live:
                return False
        return True

    def work(self) -> None:
        self.until(self.settled)

    def come_back(self) -> None:
        def there() -> bool:
            with Client(self.broker.local) as client:
                seen = client.snapshot().locations
            return all(
                (view := seen.get(f"host:{name}")) and view.state == "available" and view.inventories
                for name in HOSTS
            )

        self.until(there)

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < end, f"not in time\n{self.broker.log.read_text()[-2000:]}"
            time.sleep(0.02)

    def end(self) -> Ending:
        seen = self.seen()
        return ending((one.binding for one in seen.bindings.values()), seen.claims, seen.quarantined)


def play(site: MortalSite) -> Ending:
    for act in history(site):
        act()
    site.work()
    for order in site.orders.values():
        site.asked(order)
    return site.end()


@pytest.mark.parametrize("turn", range(len(BLOWS) if WHOLE else 1))
def test_c_sta_03_killed_about_the_commits_of_any_order_the_end_is_the_same(
    tmp_path: Path, turn: int
) -> None:
    with MortalSite(tmp_path, lambda number: BLOWS[(2 * number + turn + 1) % len(BLOWS)]) as site:
        assert play(site) == end_of(WITHOUT), "what the core alone says, when nothing happens"
        assert {blow.point for _, blow in site.felled} == {"before", "after", "answered"}
        assert len(site.felled) > len(site.orders) / 2, site.felled
        if turn == 0:
            assert {blow for _, blow in site.felled} == set(BLOWS)
        for agent in site.agents.values():
            assert set(agent.prepared.values()) <= {1}, "something was prepared twice"
