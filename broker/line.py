"""A client's line to the broker: conversations above, one `Dealer` below, and nothing that waits.

`pump` moves what can be moved now; the shells (`client.py`, `client_async.py`) decide how to wait between two
pumps. A dealer that gave up (a rejected key, no XCE broker at the address) is made anew after a while.
What is known of the link is kept in words, because they are what a user needs when no answer comes.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from xce.broker import arrived
from xce.broker.session import (
    BrokerError,
    BrokerRefused,
    BrokerUnreachable,
    Conversation,
    LinkNews,
    Request,
)
from xce.model.message import Answer, Failed, NextKey, Refused
from xce.wire import codec, keys
from xce.wire.dealer import DEFINITE, HINTS, SURE_S, Dealer, LinkEvent, LinkState
from xce.wire.keys import KeyFileError, KeyPair
from xce.wire.trust import Trust

RETRY_S = (0.05, 0.5)
"""Clients are few: they come back sooner than agents."""
REMAKE_S = 2.0
AT_ONCE = 512
"""Messages that one pump takes."""
TURN_S = 1.0
"""Longest sleep between two looks at the clock."""

C = TypeVar("C", bound=Conversation)


@dataclass(frozen=True)
class Broker:
    """Where the broker is, and with which keys. Without keys only `ipc://PATH` makes sense."""

    endpoint: str
    key: KeyPair | None = None
    broker_key: bytes | None = None
    """Z85."""
    broker_key_file: str = ""
    """Where `broker_key` comes from: the broker's next key is kept there when it is announced."""

    @classmethod
    def by_files(cls, endpoint: str, key: Path, broker_key: Path) -> "Broker":
        """With the keys in these files; raises `KeyFileError`."""
        mine = keys.load(key, secret=True)
        return cls(endpoint, mine, keys.load(broker_key, secret=False).public, str(broker_key))


class Line:
    """The conversations of one client; `clock` is monotonic, in seconds."""

    def __init__(self, broker: Broker, *, clock: Callable[[], float], json: bool = False) -> None:
        """Raises ValueError for an endpoint that is none."""
        self.broker = broker
        self.up = self.closed = False
        self.refused: Refused | None = None
        """The broker does not serve us at all, and says why."""
        self.rubbish = 0
        """Messages that this version cannot read."""
        self.trust = Trust(lambda: broker.broker_key_file, first=broker.broker_key or b"")
        self._clock, self._encode = clock, codec.encode_json if json else codec.encode
        self._dealer: Dealer | None = self._connect()
        self._remake_at = self._news_at = 0.0
        self._wrong_at: float | None = None
        """Since when the broker's key has not matched."""
        self._news = LinkEvent(LinkState.CONNECTING, f"connecting to {broker.endpoint}")
        self._open: list[Conversation] = []
        self._unsent: list[Request] = []
        self._quiet = False
        """Nothing waits; of what comes a descriptor will tell."""

    def begin(self, conversation: C) -> C:
        """Start a conversation."""
        self._open.append(conversation)
        if self.up:
            conversation.link(LinkNews(True, self._news.text))
        return conversation

    def end(self, conversation: Conversation) -> None:
        """Forget a conversation; answers that still come for it are dropped. May be called twice."""
        if conversation in self._open:
            self._open.remove(conversation)

    def say(self, request: Request) -> None:
        """Send something that has no answer, if the link is up."""
        if self.up:
            self._unsent.append(request)

    def descriptors(self) -> tuple[int, ...]:
        """What to wait on for reading between two pumps."""
        return (self._dealer.fileno(), self._dealer.monitor_fileno()) if self._dealer else ()

    def idle(self) -> bool:
        """Whether there is nothing to pump before a descriptor tells of something."""
        return self._dealer is None or (self._quiet and not any(one.to_send for one in self._open))

    def rest_s(self) -> float:
        """How long to wait at most before the next pump, if no descriptor tells of anything."""
        return TURN_S if self._dealer else min(TURN_S, max(0.0, self._remake_at - self._clock()))

    def pump(self) -> bool:
        """Move what can be moved now; whether there may be more."""
        now = self._clock()
        if self._dealer is None:
            if self.closed or now < self._remake_at:
                return False
            try:
                self._dealer = self._connect()
            except KeyFileError as error:
                self._news = LinkEvent(LinkState.WRONG_KEY, str(error))
                self._remake_at = now + REMAKE_S
                return False
        dealer = self._dealer
        self._quiet = False
        if self._look(dealer.events(), now):
            return True
        count = 0
        for message in dealer.messages(AT_ONCE):
            self._take(message)
            count += 1
        for conversation in self._open:
            conversation.tick(now)
        drained = not self._send(dealer) and count < AT_ONCE
        self._quiet = drained or not dealer.readable()
        return not self._quiet

    def definite(self) -> bool:
        """Whether the link has failed for a reason that waiting will hardly heal.

        A broker that is killed in the middle of a key exchange looks like one with another key, until it is
        back: unless the dealer has given up, such a state has to last.
        """
        if self.refused is not None:
            return True
        since = self._news_at if self._wrong_at is None else self._wrong_at
        lasts = self._news.final or self._clock() - since >= SURE_S
        return self._news.state in DEFINITE and lasts

    def problem(self, waited_s: float) -> BrokerError:
        """What to raise when no answer has come."""
        if self.refused is not None:
            return BrokerRefused(self.refused.code, self.refused.message, self.refused.hint)
        endpoint = self.broker.endpoint
        if self.closed:
            return BrokerUnreachable("the client was closed")
        if self.up:
            return BrokerUnreachable(
                f"the broker at {endpoint} is linked, but has not answered within {waited_s:g} s",
                "see its log, and `xce-broker status`",
            )
        if problem := _socket_problem(endpoint):
            return BrokerUnreachable(*problem)
        hint = HINTS.get(self._news.state, "")
        return BrokerUnreachable(f"cannot reach the broker: {self._news.text}", hint)

    def close(self) -> None:
        """Close the link; may be called twice."""
        if self._dealer is not None:
            self._dealer.close()
            self._dealer = None
        self.up, self.closed = False, True

    # ------------------------------------------------------------------------------------- internals

    def _connect(self) -> Dealer:
        broker = self.broker
        theirs = None if broker.broker_key is None else self.trust.key()
        return Dealer(broker.endpoint, key=broker.key, broker_key=theirs, retry_s=RETRY_S)

    def _look(self, events: list[LinkEvent], now: float) -> bool:
        """Take what happened to the link; whether the dealer has given up and is closed."""
        for event in events:
            if event.state is LinkState.WRONG_KEY:
                self._wrong_key(event, now)
                continue
            begun = event.state in {LinkState.CONNECTING, LinkState.CONNECTED}
            if begun and self._wrong_at is not None:
                continue  # the same trouble, tried once more
            self._news, self._news_at = event, now
            if not begun:
                self._wrong_at = None
                self._tell_of(event)
            if event.state is LinkState.READY:
                self.trust.linked()
            if event.final:
                self._remake(now + REMAKE_S)
        return self._dealer is None

    def _wrong_key(self, event: LinkEvent, now: float) -> None:
        """Go on with another key that is known, or with the same: its file may be mended meanwhile."""
        if self._wrong_at is None:
            self._news, self._news_at, self._wrong_at = event, now, now
            self._tell_of(event)
        other = self.trust.mismatch()
        self._remake(now + (RETRY_S[0] if other else RETRY_S[1]))

    def _remake(self, when: float) -> None:
        if self._dealer is not None:
            self._dealer.close()
        self._dealer, self._remake_at = None, when

    def _tell_of(self, event: LinkEvent) -> None:
        up = event.state is LinkState.READY
        self._tell(LinkNews(up, event.text if up else f"{event.text}, trying again"))

    def _tell(self, news: LinkNews) -> None:
        self.up = news.up
        if news.up:
            self.refused = None
        self._unsent.clear()
        for conversation in self._open:
            conversation.link(news)

    def _take(self, data: memoryview) -> None:
        try:
            message = arrived.decode(data)
        except codec.CodecError:
            self.rubbish += 1
            return
        if isinstance(message, Refused):
            self.refused = message
        elif isinstance(message, NextKey):
            self.trust.announced(message.public)
        if not isinstance(message, Answer):
            return
        for conversation in self._open:
            if message.id in conversation.waits_for():
                conversation.take(message)
                return

    def _send(self, dealer: Dealer) -> bool:
        """Send what can be sent; whether the socket was touched."""
        for conversation in self._open:
            self._unsent += conversation.to_send
            conversation.to_send.clear()
        if not (self._unsent and self.up):
            return False
        while self._unsent and self.up:
            try:
                data = self._encode(self._unsent[0])
            except codec.CodecError as error:
                self._answer_ourselves(self._unsent.pop(0).id, str(error))
                continue
            if not dealer.send(data):
                break
            del self._unsent[0]
        return True

    def _answer_ourselves(self, request_id: str, reason: str) -> None:
        failed = Failed(id=request_id, code="invalid", message=f"cannot send the request: {reason}")
        for conversation in self._open:
            if request_id in conversation.waits_for():
                conversation.take(failed)


def _socket_problem(endpoint: str) -> tuple[str, str] | None:
    """What the file of a local socket tells that ZeroMQ does not."""
    if not endpoint.startswith("ipc://"):
        return None
    path = endpoint.removeprefix("ipc://")
    running = "is it running? systemctl status xce-broker"
    try:
        os.stat(path)
    except FileNotFoundError:
        return f"cannot reach the broker: there is no socket {path}", running
    except OSError as error:
        return f"cannot reach the broker: {path}: {error.strerror}", "run it as root, or use a key"
    if not os.access(path, os.W_OK):
        return f"cannot open {path}: permission denied", "run it as root, or give a key with --key"
    return f"cannot reach the broker: nobody answers at {path}", running
