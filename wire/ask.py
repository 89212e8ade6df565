"""One question to a broker and its answer, for commands that have no link of their own: joining, rotating.

Waits, so it has no place in a daemon. What is known of the link is told when no answer comes.
"""

import select
import time
from collections.abc import Callable

import msgspec

from xce.model.message import Done, Failed, Refused
from xce.wire import codec
from xce.wire.dealer import DEFINITE, SURE_S, Dealer, LinkEvent, LinkState
from xce.wire.keys import KeyPair

STEP_S = 0.05


class NoAnswer(Exception):
    """There is none. `state` is the link's; the broker may have done it or not, if it was ever ready."""

    def __init__(self, text: str, state: LinkState, *, asked: bool) -> None:
        super().__init__(text)
        self.state, self.asked = state, asked
        self.refused = state in {LinkState.REJECTED, LinkState.WRONG_KEY}
        """The broker is there, and one of the keys is not what it should be."""


class Denied(Exception):
    """The broker has said no; nothing has changed."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def ask(
    endpoint: str,
    question: msgspec.Struct,
    *,
    key: KeyPair,
    broker_key: bytes,
    within_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Done:
    """The answer to an order; raises `Denied`, `NoAnswer`, ValueError for an endpoint that is none."""
    dealer = Dealer(endpoint, key=key, broker_key=broker_key)
    try:
        return _converse(dealer, question, clock() + within_s, clock)
    finally:
        dealer.close()


def _converse(dealer: Dealer, question: msgspec.Struct, until: float, clock: Callable[[], float]) -> Done:
    descriptors = (dealer.fileno(), dealer.monitor_fileno())
    news, asked = LinkEvent(LinkState.CONNECTING, f"nobody answers at {dealer.endpoint}"), False
    since = clock()
    while clock() < until:
        for news in dealer.events():
            since, asked = clock(), asked and news.state is LinkState.READY
        if news.state in DEFINITE and (news.final or clock() - since >= SURE_S):
            raise NoAnswer(news.text, news.state, asked=asked)
        if not asked and dealer.state is LinkState.READY:
            asked = dealer.send(codec.encode(question))
        for data in dealer.receive():
            if (answer := _answer(codec.decode_from_broker(data))) is not None:
                return answer
        if not dealer.readable():
            select.select(descriptors, (), (), STEP_S)
    raise NoAnswer(f"no answer in time: {news.text}", news.state, asked=asked)


def _answer(message: object) -> Done | None:
    match message:
        case Done():
            return message
        case Failed() | Refused():
            raise Denied(message.message, message.hint)
        case _:
            return None
