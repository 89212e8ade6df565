"""The broker's loop: sockets and the store on one side, the pure core on the other.

What is answered to whom, the core decides; when something is done, and what may wait, `pace`. What is left
here is the order of things, and which of two threads has the loop (`turns`).

A turn takes in what is there (`TURN` messages at most), gives all its facts to the store as one batch,
lets the core publish once, and sleeps until something comes. When messages come thick, it rests a few
milliseconds between turns without looking at them: each wake-up costs more than a message does. Orders are
not made to wait for that. When messages come so thick that a turn's work is rest enough, it does not rest: a
sender that waits for what it sent to be seen would wait for nothing.

An exception out of the core is a bug. It costs the message that caused it, is counted and told, and ends
nothing.
"""

import gc
import select
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from xce.broker.audit import AuditLog
from xce.broker.commits import Commits
from xce.broker.copies import Copies
from xce.broker.core.effect import Audit, Backup, CutOff, Effect, Note, Persist, Send, SendBytes
from xce.broker.core.machine import Broker
from xce.broker.core.peer import Peer
from xce.broker.logs import log
from xce.broker.pace import PUT_OFF_MS, Owed, Pace, Portion
from xce.broker.store import Store, StoreError
from xce.broker.turns import Turns
from xce.model.message import Order
from xce.wire import codec
from xce.wire.codec import PlainReport
from xce.wire.router import TURN, Router, Sent, Stranger
from xce.wire.zap import Authenticator

REST_MS = 3
CUT_AFTER_S = 0.5
"""A peer that is cut off gets this long to receive why."""
FREEZE_AFTER = 1000
"""Hosts that were synced anew after which what is held counts as there to stay."""
START_S = 60.0
_ORDERS = frozenset(Order.__args__)


class Chores(Protocol):
    """What the daemon does beside serving."""

    def second(self, now: float) -> None:
        """About once a second: the watchdog, the cache."""

    def signals(self) -> bool:
        """What signals asked for; False: stop."""

    def fileno(self) -> int:
        """Readable when there are signals."""


class Server:
    """Runs one core until it is told to stop."""

    def __init__(
        self,
        broker: Broker,
        store: Store,
        audit: AuditLog,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.broker, self.store, self.audit, self.clock = broker, store, audit, clock
        self.router: Router[Peer] | None = None
        self.zap: Authenticator | None = None
        self._ended: list[Peer] = []
        """Peers whose connection has ended, and the core does not know yet."""
        self._cuts: list[tuple[float, Peer]] = []
        self._encoded: tuple[msgspec.Struct, bool, bytes] | None = None
        """The document that was encoded last: news go to many peers."""
        self._bugs: set[str] = set()
        self._synced = self._crowded = 0
        self._portion = Portion(TURN)
        self._commits = Commits(broker, store, self._guard)
        self._owed = Owed()
        self._copies = Copies(store)
        self._turns = Turns(clock=clock)
        self._following = 0.0
        """When what is done about once a second is due."""
        self._everything, self._messages = select.poll(), -1
        store.call_after(self._go_on)
        broker.questions.outside = self._counters

    # -------------------------------------------------------------------------------------- start, end

    def begin(self, effects: Iterable[Effect]) -> None:
        """Make the start durable before anybody is served; raises `StoreError`."""
        self.perform(effects)
        deadline = self.clock() + START_S
        poll = _poll(self.store.fileno())
        while len(self.broker.state.journal):
            self._commits.submit()
            poll.poll(100)
            self._commits.take(self.clock())
            self._commits.settle(self.clock())
            if self._commits.fault or self.clock() > deadline:
                fault = self._commits.fault or f"the disk did not answer within {START_S:g} s"
                raise StoreError(f"cannot start: {fault}")

    def listen(self, router: Router[Peer], zap: Authenticator | None) -> None:
        """Serve these sockets from now on. `router` must have been given `admit` and `ended`."""
        self.router, self.zap = router, zap

    def admit(self, stranger: Stranger) -> Peer:
        """A connection has spoken for the first time."""
        peer = Peer(
            stranger.routing_id,
            key=stranger.user,
            address=stranger.address,
            uid=stranger.uid,
            now=self.clock(),
        )
        self.perform(self.broker.connected(peer))
        return peer

    def ended(self, peer: Peer) -> None:
        """A connection has ended; the core is told when it is not in the middle of something."""
        self._ended.append(peer)

    def run(self, chores: Chores) -> None:
        """Serve until a signal says stop."""
        router, zap = self.router, self.zap
        assert router is not None, "internal error: run before listen"
        store, signals, messages = self.store.fileno(), chores.fileno(), router.fileno()
        attended = {router.monitor_fileno(), *([zap.fileno()] if zap else [])}
        resting = _poll(store, signals, *attended)
        self._everything = everything = _poll(store, signals, *attended, messages)
        self._messages = messages
        _settle_collector()
        pace, rest, go_on = Pace(self.clock()), False, True
        self._following = self.clock() + 1
        unattended = True
        """There may be something that no descriptor tells: ZeroMQ's tell only what is new."""
        while go_on:
            now = self.clock()
            if now >= self._following:
                self._following = now + 1
                self._second(now)
                chores.second(now)
            look = rest or unattended or router.readable()
            if rest:
                ready = resting.poll(REST_MS)
            elif look or self.broker.busy():
                ready = everything.poll(0)
            else:
                longest = PUT_OFF_MS if self._owed.due else max(1, int((self._following - now) * 1000))
                ready = everything.poll(longest)
            told = {descriptor for descriptor, _ in ready}
            if unattended or not attended.isdisjoint(told):
                unattended = self._attend(router)
            if store in told:
                # First: who was answered is at work while others are served.
                self._answer()
            taken = more = self._take(router) if look or messages in told else 0
            while more > 1 and self._commits.waiting and taken < TURN:
                more = self._take(router)  # orders that came while others were judged share their sync
                taken += more
            now = self.clock()
            put_off = self._puts_off(taken, now, answered=store in told)
            if put_off:
                self._hand_over(alone=taken == 1)
            else:
                self._turn()
            fast = pace.fast(taken, now) and not self.broker.busy()
            # Who was answered comes back at once, and whoever finds nothing waits for something.
            rest = fast and 0 < taken < TURN and not put_off
            if signals in told:
                go_on = chores.signals()

    def finish(self) -> None:
        """Tell the store and the audit log everything that is still here."""
        self._commits.settle(self.clock())
        self._commits.submit()
        self.audit.flush()

    # ------------------------------------------------------------------------------------------- turns

    def _attend(self, router: Router[Peer]) -> bool:
        """Keys to be judged, connections that ended; whether there may be more."""
        more = self.zap is not None and self.zap.serve()
        return router.serve_monitor() or more

    def _take(self, router: Router[Peer]) -> int:
        """One drain of the socket."""
        now = self.clock()
        take, handle, decode = self.broker.take, self.broker.handle, codec.decode_for_broker
        messages = router.receive(self._portion.size)
        for peer, data in messages:
            try:
                message = decode(data)
                if message.__class__ is PlainReport and take(peer, message, now):
                    continue
                peer.json = data[0] == 0x7B
                if self._owed.due and message.__class__ not in _ORDERS:
                    self._publish()  # whoever asks sees what was answered before
                effects = handle(peer, message, now)
            except codec.CodecError as error:
                peer.json = codec.is_json(data)
                effects = self.broker.rubbish(peer, error.reason, codec.request_id(data), now)
            except Exception as error:  # noqa: BLE001 - a bug must cost one message, not the cluster
                self._bug(error)
                continue
            if effects:
                self.perform(effects)
        self._portion.took(len(messages), self.clock() - now)
        return len(messages)

    def _puts_off(self, taken: int, now: float, *, answered: bool) -> bool:
        """Whether publishing waits."""
        orders = len(self._commits.waiting)
        return not self._ended and self._owed.may_wait(taken=taken, orders=orders, answered=answered, now=now)

    def _answer(self) -> None:
        """Take what the store has to say: callers first, followers in a moment."""
        now = self.clock()
        self._commits.take(now)
        self._owed.durable(now)

    def _hand_over(self, *, alone: bool) -> None:
        """Give orders to the store; one that came alone together with the loop."""
        if alone and self._commits.quick() and not self.broker.busy():
            self._turns.lend(self._commits.submit)
        else:
            self._commits.submit()

    def _go_on(self) -> bool:
        """In the store's thread, when it has decided something: serve on, if the loop was lent to it."""
        if not self._turns.take_up():
            return False
        alone = False
        try:
            self._answer()
            alone = self._take_alone()
        except Exception as error:  # noqa: BLE001 - a bug must not end the store's thread, nor keep the loop
            self._bug(error)
        if alone:
            self._turns.put_down()
        else:
            self._turns.give_back()
        return True

    def _take_alone(self) -> bool:
        """Wait a moment for messages; whether there was an order alone, which is with the store now.

        A message that is there already came while we waited for the disk: there is more than one caller.
        """
        router, now = self.router, self.clock()
        if router is None or now >= self._following or router.readable():
            return False
        if [descriptor for descriptor, _ in self._everything.poll(PUT_OFF_MS)] != [self._messages]:
            return False
        orders_alone = self._puts_off(self._take(router), self.clock(), answered=True)
        if not orders_alone:
            # The loop's own thread ends the turn, and is not to sleep before.
            self._owed.at_once(now)
        alone = orders_alone and len(self._commits.waiting) == 1
        self._commits.submit()
        return alone

    def _turn(self) -> None:
        """The end of a turn: hand facts to the store, publish while it is at work, forget who is gone."""
        self._commits.submit()
        self._publish()
        while self._ended:
            peer = self._ended.pop()
            self._guard(lambda peer=peer: self.broker.gone(peer))  # type: ignore[misc]
        self._commits.submit()

    def _publish(self) -> None:
        self._owed.paid()
        now = self.clock()
        self._commits.settle(now)
        self._guard(lambda: self.broker.turn(now))

    def _second(self, now: float) -> None:
        self._guard(lambda: self.broker.second(now))
        self.perform(self._copies.done())
        if self.router is not None:
            for due, peer in self._cuts:
                if due <= now:
                    self.router.cut(peer.routing_id)
            self._cuts = [(due, peer) for due, peer in self._cuts if due > now]
            self._look_at_room(self.router)
        if self.zap is not None:
            for address, key in self.zap.news:
                log.warning("rejected a connection from %s: %s", address, self._stranger(key.decode()))
            self.zap.news.clear()
        synced = self.broker.state.hosts.syncs
        if synced - self._synced >= FREEZE_AFTER:
            self._synced = synced
            gc.freeze()
        self.audit.flush()

    def _stranger(self, key: str) -> str:
        """Whose key it is that is not accepted, as far as that is known."""
        record = self.broker.state.journal.ledger.keys.get(key)
        if record is None:
            return f"key {key} is not known"
        return f"the key of {record.name} was revoked ({record.revoked})"

    def _look_at_room(self, router: Router[Peer]) -> None:
        """Tell when connections use up the descriptors, and when they no longer do."""
        trouble, crowded = self.broker.questions.trouble, router.dropped["crowded"] + router.dropped["accept"]
        closed, self._crowded = crowded - self._crowded, crowded
        if closed:
            words = "too many connections for LimitNOFILE: those that have not said anything are closed"
            if "room" not in trouble:
                log.error("%s", words)
            trouble["room"] = words
        elif trouble.pop("room", ""):
            log.info("there is room for connections again")

    def _guard(self, call: Callable[[], Iterable[Effect]]) -> None:
        try:
            self.perform(call())
        except Exception as error:  # noqa: BLE001 - see above
            self._bug(error)

    def _bug(self, error: Exception) -> None:
        self.broker.state.counts["internal_errors"] += 1
        what = f"{type(error).__name__}: {error}"
        if what not in self._bugs and len(self._bugs) < 100:
            self._bugs.add(what)
            log.error("internal error: %s", what, exc_info=error)
            self.broker.questions.trouble["internal"] = f"internal error, see the log: {what}"

    # ----------------------------------------------------------------------------------------- effects

    def perform(self, effects: Iterable[Effect]) -> None:
        """Do what the core wants done."""
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect, self._bytes(effect))
                case SendBytes():
                    self._send(effect, effect.data)
                case Persist():
                    self._commits.waiting.append(effect)
                case Audit():
                    self.audit.record(effect)
                case CutOff():
                    self._cuts.append((self.clock() + CUT_AFTER_S, effect.peer))
                case Backup():
                    self._copies.begin(effect)
                case Note():
                    write = log.warning if effect.fault else log.info
                    write("%s", effect.text, extra={"host": effect.host})

    def _send(self, effect: Send | SendBytes, data: bytes) -> None:
        if self.router is not None and self.router.send(effect.peer.routing_id, data) is Sent.FULL:
            self.perform(self.broker.undelivered(effect))

    def _bytes(self, effect: Send) -> bytes:
        document, json = effect.document, effect.peer.json
        if self._encoded is None or self._encoded[0] is not document or self._encoded[1] is not json:
            data = codec.encode_json(document) if json else codec.encode(document)
            self._encoded = (document, json, data)
        return self._encoded[2]

    def _counters(self) -> dict[str, int]:
        counters = self._commits.counters()
        if self.router is not None:
            counters |= {f"dropped.{what}": count for what, count in self.router.dropped.items()}
            counters["connections"] = len(self.router)
        if self.zap is not None:
            counters["refused.key"] = self.zap.refused.total()
        return counters


def _poll(*descriptors: int) -> select.poll:
    """What waits for any of these to be readable."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return poll


def _settle_collector() -> None:
    """Take what is here as there to stay: a full collection over ten thousand hosts takes 100 ms.

    The core makes no cycles that outlive a turn, so young garbage is all there is.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 20, 1_000_000)
