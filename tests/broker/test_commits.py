"""What the store says, as the core hears it: callers first, and before an order what it is judged by."""

import select
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.broker.world import site
from xce.broker.commits import Commits
from xce.broker.core.effect import Audit, Effect, Persist, Send
from xce.broker.core.ledger import Ledger
from xce.broker.core.machine import Broker
from xce.broker.core.peer import Peer
from xce.broker.store.sqlite import SqliteStore
from xce.model import message as m
from xce.model.claim import Claim, ClaimForm
from xce.model.configuration import BrokerFile


class Desk:
    """A core and a real store with nothing around them; remembers what is done."""

    def __init__(self, directory: Path) -> None:
        self.store = SqliteStore(directory)
        self.broker = Broker(BrokerFile(), Ledger(), site(), incarnation="i", wall=lambda: "", now=0)
        self.commits = Commits(self.broker, self.store, self._guard)
        self.done: list[Effect] = []
        self.peer = Peer(b"p", key="", address="", uid=0, now=0)
        self._guard(lambda: self.broker.start(0))
        self.commits.submit()
        self.hear()
        self.commits.settle(0)
        self._guard(lambda: self.broker.connected(self.peer))

    def _guard(self, call: Callable[[], Iterable[Effect]]) -> None:
        for effect in call():
            if isinstance(effect, Persist):
                self.commits.waiting.append(effect)
            else:
                self.done.append(effect)

    def give(self, *orders: m.Order) -> None:
        for order in orders:
            self._guard(lambda order=order: self.broker.handle(self.peer, order, 0))  # type: ignore[misc]
        self.commits.submit()

    def hear(self) -> None:
        poll = select.poll()
        poll.register(self.store.fileno(), select.POLLIN)
        assert poll.poll(10_000), "the store said nothing"
        self.commits.take(time.monotonic())

    def answered(self) -> list[str]:
        return [
            one.document.id for one in self.done if isinstance(one, Send) and isinstance(one.document, m.Done)
        ]

    def audited(self) -> list[str]:
        return [one.op_id for one in self.done if isinstance(one, Audit)]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.store.close(10)


def claim(name: str) -> m.ClaimCreate:
    return m.ClaimCreate(id=name, claim=Claim(id=name, form=ClaimForm.STANDALONE))


def hold(name: str) -> m.HoldAdd:
    return m.HoldAdd(id=name, location="host:node1", reason=name)


def test_who_made_a_claim_is_answered_and_the_rest_has_time(desk: Desk) -> None:
    desk.give(claim("a"))
    desk.hear()
    assert desk.answered() == ["a"]
    assert (desk.audited(), list(desk.broker.state.journal.ledger.claims.claims)) == ([], [])
    desk.commits.settle(0)
    assert (desk.audited(), list(desk.broker.state.journal.ledger.claims.claims)) == (["a"], ["a"])
    desk.commits.settle(0)
    assert (desk.answered(), desk.audited()) == (["a"], ["a"])


@pytest.mark.parametrize("orders", [(hold("h"),), (claim("a"), hold("h")), (hold("h"), claim("a"))])
def test_what_stands_against_the_next_order_is_taken_up_with_the_answer(
    desk: Desk, orders: tuple[m.Order, ...]
) -> None:
    """A host is held, its owner has heard so: whoever wants to bind there from now on is refused."""
    desk.give(*orders)
    desk.hear()
    assert desk.answered() == [order.id for order in orders]
    assert [one.reason for one in desk.broker.state.supply.hosts["node1"].view.holds] == ["h"]


def test_a_claim_that_waits_for_nothing_else_is_not_lost_when_the_store_fails(desk: Desk) -> None:
    desk.give(claim("a"))
    desk.hear()
    desk.store._recorder.revision += 1  # what follows does not: as after a bug
    desk.give(claim("b"))
    desk.hear()
    ledger, draft = desk.broker.state.journal.ledger, desk.broker.state.journal.draft
    assert list(ledger.claims.claims) == list(draft.claims.claims) == ["a"]
    assert desk.answered() == ["a"]
    failed = [
        one.document for one in desk.done if isinstance(one, Send) and isinstance(one.document, m.Failed)
    ]
    assert [(one.id, one.code) for one in failed] == [("b", "not-durable")]


def test_an_order_that_is_repeated_before_its_claim_is_taken_up_is_answered_once_more(desk: Desk) -> None:
    desk.give(claim("a"))
    desk.hear()
    desk.give(claim("a"))
    desk.commits.settle(0)
    assert desk.answered() == ["a", "a"]
