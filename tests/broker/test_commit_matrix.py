"""The broker killed before and after each commit of a history in which every order about claims is given.

The points are those that the history passes: all commits, of orders and of what nodes report. After each kill
the broker starts anew from what is on its disk, nodes come back, and the interrupted order is given once more
with its id: the end is the same as without a kill, and an order has one answer for ever.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.broker.claim_history import HOSTS, Ending, ending, history
from tests.broker.nodes import Node
from tests.broker.world import World
from xce.broker.core import claim_orders
from xce.model import message as m
from xce.model.claim import ENDED, BindingState

READY, RELEASED = BindingState.READY, BindingState.RELEASED


class Killed(BaseException):
    """No code of the product sees it coming."""


class Point(NamedTuple):
    """The `turn`th commit, and where about it."""

    name: str
    turn: int


class Site:
    """A broker, three nodes, and a controller that gives an order until it is answered."""

    def __init__(self, at: Point | None) -> None:
        self.at: Point | None = None
        self.passed: list[Point] = []
        self.answers: dict[str, m.Done] = {}
        self.orders: dict[str, Any] = {}
        self.world = World(mark=self.mark)
        self.nodes = {name: Node(self.world, name) for name in HOSTS}
        self.kills = 0
        self.passed.clear()
        self.at = at

    def mark(self, name: str) -> None:
        point = Point(name, sum(1 for passed in self.passed if passed.name == name))
        self.passed.append(point)
        if point == self.at:
            self.at = None
            raise Killed

    def survive(self, act: Callable[[], object]) -> None:
        """Do something; if the broker dies of it, start it anew and do it again."""
        try:
            act()
        except Killed:
            self.kills += 1
            self.world = self.world.restart()
            for node in self.nodes.values():
                node.world, node.read = self.world, 0
            self.come_back()
            act()

    def come_back(self) -> None:
        for name, node in self.nodes.items():
            if name not in self.world.peers:
                node.arrive()

    def give(self, order: Any) -> None:
        """The same order twice, as a caller may who has heard no answer."""
        for _ in range(2):
            done = self.world.ask(self.world.peer("root", "admin"), order)
            assert isinstance(done, m.Done), done
            assert self.answers.setdefault(order.id, done) == done, "the same order, another answer"
            self.orders[order.id] = order

    def made(self, op_id: str) -> list[str]:
        return self.answers[op_id].made

    def work(self) -> None:
        """Nodes bring all that they have to its end."""
        for node in self.nodes.values():
            node.listen()
            for name, one in list(node.holds.items()):
                if one.state is BindingState.PREPARING:
                    node.move(name, READY, evidence=f"of {node.name}")
                elif one.state is BindingState.RELEASING:
                    node.move(name, RELEASED)
            node.tell()
            node.listen()


def end_of(site: Site) -> Ending:
    ledger = site.world.broker.state.journal.ledger.claims
    return ending(ledger.bindings.values(), ledger.claims, ledger.quarantine)


def play(at: Point | None) -> Site:
    site = Site(at)
    for act in history(site):
        site.survive(act)
    site.come_back()
    site.work()
    for order in site.orders.values():
        site.give(order)
    return site


def agrees(site: Site) -> None:
    """Nodes and broker say the same."""
    ledger = site.world.broker.state.journal.ledger.claims
    for node in site.nodes.values():
        live = {one.id: one.state for one in ledger.on(node.name)}
        assert {name: one.state for name, one in node.holds.items() if one.state not in ENDED} == live
        assert len(set(node.prepares)) == len(node.prepares), "something was prepared twice"


WHOLE = play(None)


def test_every_order_about_claims_is_in_the_history() -> None:
    """A new kind of order has to be given there."""
    assert {type(order) for order in WHOLE.orders.values()} == set(claim_orders.JUDGES)
    bindings, claims, kept = end_of(WHOLE)
    assert [one[1:4:2] for one in bindings] == [("node1", "ready"), ("node2", "released"), ("node3", "ready")]
    assert list(claims) == ["wide"]
    assert kept == {"node3": {"GPU-c": "smells"}}
    agrees(WHOLE)


@pytest.mark.parametrize("at", WHOLE.passed, ids=lambda at: f"{at.name} {at.turn}")
def test_killed_about_a_commit_the_end_is_the_same_and_each_answer_too(at: Point) -> None:
    site = play(at)
    assert site.kills == 1
    agrees(site)
    assert end_of(site) == end_of(WHOLE)
