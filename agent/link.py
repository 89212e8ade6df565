"""The agent's link: a thin shell that moves what `core.py` decides through a socket of `wire.dealer`.

No decision is taken here. The socket is ZeroMQ's and tells of news by an edge, so that it is looked at when
it tells, after each use until it is found empty, and once a second whatever happens; what the core wants done
is done at the end of a turn of the loop, and one timer stands for its next wish.
A message that cannot be encoded or is too long is dropped, counted and shown: it must not end the link.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from xce.agent.core import NEVER, Core
from xce.agent.effect import Close, Effect, Open, Send
from xce.linux.loop import Loop, Timer
from xce.model.message import DOCUMENT_BYTES, Pulse, Welcome
from xce.wire import codec, dealer
from xce.wire.dealer import Dealer, LinkEvent, LinkState
from xce.wire.keys import KeyPair

if TYPE_CHECKING:
    from xce.wire.trust import Trust

TURN = 256
"""Messages of the broker that are taken in one turn."""


LOOK_S = 1.0
"""Longest time between two looks at the socket: its descriptors tell of edges alone, and none twice."""


class Link:
    """Runs `core` on `loop`. `on_effect` gets every effect that is not about the socket.

    `credentials` gives our key and the broker's for a new socket, and raises `ValueError` when there are none
    that can be used; `trust`, where it is given, hears how the broker's key did. An empty `endpoint` means
    that there is no broker. Without `every_turn` the owner calls `turn` when the book has changed: for
    thousands of links on one loop.
    """

    def __init__(
        self,
        loop: Loop,
        core: Core,
        *,
        endpoint: str,
        credentials: Callable[[], tuple[KeyPair | None, bytes | None]],
        on_effect: Callable[[Effect], None],
        trust: "Trust | None" = None,
        every_turn: bool = True,
    ) -> None:
        self.endpoint, self._credentials, self._trust = endpoint, credentials, trust
        self.fault = ""
        """The newest message since the last welcome that could not be encoded or decoded, in words."""
        self.faults = 0
        self._loop, self._core, self._on_effect = loop, core, on_effect
        self._dealer: Dealer | None = None
        self._timer: Timer | None = None
        self._look_at = self._due = 0.0
        """When the socket is looked at, and when there is something to do, whatever happens."""
        self._news = False
        """Whether the socket may hold something that its descriptor does not tell again."""
        self._wake = _nothing if every_turn else self.turn
        if every_turn:
            loop.after_turn(self._turn)

    def turn(self) -> None:
        """Take what came, do what is to be done, and set the timer."""
        self._turn(self._loop.now())

    def _turn(self, now: float) -> None:
        if not self.endpoint and self._dealer is None:
            return
        if now < self._due and not self._news and self._core.idle():
            self._wake_at(self._due)  # mostly; the timer may have been one that was set for an earlier time
            return
        used = self._news or now >= self._look_at
        if used:
            self._hear(now)
            self._look_at = now + LOOK_S
        due = now if used else self._core.due(now)
        if due <= now:
            while effects := self._core.step(now):
                used = True
                for effect in effects:
                    self._carry_out(effect, now)
            # Receiving and sending may have eaten the edge of what came meanwhile.
            self._news = used and self._dealer is not None and self._dealer.readable()
            due = now if self._news else self._core.due(now)
        self._due = min(due, self._look_at)
        self._wake_at(self._due)

    def _readable(self) -> None:
        self._news = True
        self._wake()

    def redirect(self, endpoint: str) -> None:
        """Talk to this broker, or with new credentials, from now on."""
        self.endpoint = endpoint
        self._core.reopen(self._loop.now())

    def close(self) -> None:
        """Let go of the socket and the loop; may be called twice."""
        self._loop.remove_after_turn(self._turn)
        if self._timer is not None:
            self._timer.cancel()
        self._shut()

    # ------------------------------------------------------------------------------------- from outside

    def _hear(self, now: float) -> None:
        if self._dealer is None:
            return
        for event in self._dealer.events():
            self._tell(event, now)
            if event.final:
                return  # the core wants it closed
        for data in self._dealer.receive(TURN):
            try:
                message = codec.decode_from_broker(data)
            except codec.CodecError as error:
                self._fault(f"the broker sent what is no message: {error.reason}")
                continue
            if isinstance(message, Welcome):
                self.fault = ""
            if self._trust is not None and isinstance(message, Welcome | Pulse) and message.next_key:
                self._trust.announced(message.next_key)
            self._core.receive(message, now)

    def _tell(self, event: LinkEvent, now: float) -> None:
        if event.state is LinkState.READY:
            if self._trust is not None:
                self._trust.linked()
            self._core.link_up(now)
        elif event.final or (event.state is LinkState.WRONG_KEY and self._trust is not None):
            if self._trust is not None and event.state is LinkState.WRONG_KEY:
                self._trust.mismatch()
            self._core.link_failed(event.text, now)
        elif event.state is not LinkState.CONNECTED:
            self._core.link_down(f"{event.text}, trying again", now)

    # --------------------------------------------------------------------------------------- to outside

    def _carry_out(self, effect: Effect, now: float) -> None:
        if isinstance(effect, Send):
            self._send(effect, now)
        elif isinstance(effect, Open):
            self._open(effect, now)
        elif isinstance(effect, Close):
            self._shut()
        else:
            try:
                self._on_effect(effect)
            except Exception as error:  # noqa: BLE001 - what comes after it, and the socket, wait for this turn
                self._loop.on_error(error, self._on_effect)

    def _send(self, effect: Send, now: float) -> None:
        message = effect.message
        try:
            data = codec.encode(message)
        except codec.CodecError as error:
            self._fault(error.reason)
            return
        if len(data) > DOCUMENT_BYTES:
            self._fault(
                f"cannot send {type(message).__name__}: {len(data)} bytes, more than {DOCUMENT_BYTES}"
            )
            return
        if self._dealer is None or not self._dealer.send(data):
            self._core.unsent(message, now)

    def _open(self, effect: Open, now: float) -> None:
        try:
            key, broker_key = self._credentials()
            retry_s = dealer.retry_within(effect.spread_s)
            self._dealer = Dealer(self.endpoint, key=key, broker_key=broker_key, retry_s=retry_s)
        except ValueError as error:
            self._core.link_failed(str(error), now)
            return
        self._loop.add_reader(self._dealer.fileno(), self._readable)
        self._loop.add_reader(self._dealer.monitor_fileno(), self._readable)

    def _shut(self) -> None:
        if self._dealer is not None:
            self._loop.remove_reader(self._dealer.fileno())
            self._loop.remove_reader(self._dealer.monitor_fileno())
            self._dealer.close()
            self._dealer = None

    def _fault(self, text: str) -> None:
        self.fault = text
        self.faults += 1

    def _wake_at(self, when: float) -> None:
        if self._timer is not None and self._timer.active:
            if self._timer.when <= when:
                return  # a turn too early finds nothing to do, and costs less than a timer for each wish
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._wake) if when != NEVER else None


def _nothing() -> None:
    """Ends the loop's wait; `turn` comes after every turn."""
