"""The broker's loop: sockets and the store on one side, the pure core on the other. No decisions.

A turn takes in what is there (at most 512 messages), lets the core publish once, hands all facts of the turn
to the store as one batch, and sleeps until something comes. When messages come thick, it rests a few
milliseconds between turns without looking at them: each wake-up costs more than a message does. Answers of
the store end a rest. When they come so thick that a turn's work is rest enough, it does not rest: a sender
that waits for what it sent to be seen would wait for nothing.

An exception out of the core is a bug. It costs the message that caused it, is counted and told, and ends
nothing.
"""

import gc
import select
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from xce.broker.audit import Audit as AuditLog
from xce.broker.copies import Copies
from xce.broker.core.effect import Audit, Backup, CutOff, Effect, Note, Persist, Send, SendBytes
from xce.broker.core.journal import done_of
from xce.broker.core.ledger import Answered
from xce.broker.core.machine import Broker
from xce.broker.core.peer import Peer
from xce.broker.logs import log
from xce.broker.store import Batch, Store, StoreError
from xce.model.message import Done
from xce.wire import codec
from xce.wire.codec import PlainReport
from xce.wire.router import TURN, Router, Sent, Stranger
from xce.wire.zap import Authenticator

REST_MS = 5
BUSY_PER_S, CROWDED_PER_S = 200, 30_000
"""Messages per second between which the loop rests between turns."""
PACE_S = 0.05
"""Over which the rate is measured."""
CUT_AFTER_S = 0.5
"""A peer that is cut off gets this long to receive why."""
FREEZE_AFTER = 1000
"""Hosts that were synced anew after which what is held counts as there to stay."""
START_S = 60.0
COMMIT_MS = (1, 3, 10, 30, 100, 300, 1000)
"""Bounds of the histogram of the store's latency."""


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
        self._persists: list[Persist] = []
        """Of this turn."""
        self._ended: list[Peer] = []
        """Peers whose connection has ended, and the core does not know yet."""
        self._cuts: list[tuple[float, Peer]] = []
        self._encoded: tuple[msgspec.Struct, bool, bytes] | None = None
        """The document that was encoded last: news go to many peers."""
        self._fault = ""
        self._bugs: set[str] = set()
        self._synced = self._crowded = 0
        self._commits = _Commits()
        self._copies = Copies(store)
        broker.questions.outside = self._counters

    # -------------------------------------------------------------------------------------- start, end

    def begin(self, effects: Iterable[Effect]) -> None:
        """Make the start durable before anybody is served; raises `StoreError`."""
        self.perform(effects)
        deadline = self.clock() + START_S
        poll = _poll(self.store.fileno())
        while len(self.broker.state.journal):
            self._submit()
            poll.poll(100)
            self._stored()
            if self._fault or self.clock() > deadline:
                fault = self._fault or f"the disk did not answer within {START_S:g} s"
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
        store, signals = self.store.fileno(), chores.fileno()
        attended = {router.monitor_fileno(), *([zap.fileno()] if zap else [])}
        resting, everything = (
            _poll(store, signals, *attended),
            _poll(store, signals, *attended, router.fileno()),
        )
        _settle_collector()
        pace, following, rest, go_on = _Pace(self.clock()), self.clock() + 1, False, True
        unattended = True
        """There may be something that no descriptor tells: ZeroMQ's tell only what is new."""
        while go_on:
            now = self.clock()
            if now >= following:
                following = now + 1
                self._second(now)
                chores.second(now)
            if rest:
                ready = resting.poll(REST_MS)
            elif unattended or self.broker.busy() or router.readable():
                ready = everything.poll(0)
            else:
                ready = everything.poll(max(1, int((following - now) * 1000)))
            told = {descriptor for descriptor, _ in ready}
            if unattended or not attended.isdisjoint(told):
                unattended = self._attend(router)
            if store in told:
                self._stored()  # first: who was answered is at work while others are served
            taken = more = self._take(router)
            while more > 1 and self._persists and taken < TURN:
                more = self._take(router)  # orders that came while others were judged share their sync
                taken += more
            self._turn()
            fast = pace.fast(taken, self.clock()) and not self.broker.busy()
            # Who was answered comes back at once, and whoever finds nothing waits for something.
            rest = fast and 0 < taken < TURN and store not in told
            if signals in told:
                go_on = chores.signals()

    def finish(self) -> None:
        """Tell the store everything that is still here."""
        self._submit()

    # ------------------------------------------------------------------------------------------- turns

    def _attend(self, router: Router[Peer]) -> bool:
        """Keys to be judged, connections that ended; whether there may be more."""
        more = self.zap is not None and self.zap.serve()
        return router.serve_monitor() or more

    def _take(self, router: Router[Peer]) -> int:
        """One drain of the socket."""
        now = self.clock()
        take, handle, decode = self.broker.take, self.broker.handle, codec.decode_for_broker
        messages = router.receive()
        for peer, data in messages:
            try:
                message = decode(data)
                if message.__class__ is PlainReport and take(peer, message, now):
                    continue
                peer.json = data[0] == 0x7B
                effects = handle(peer, message, now)
            except codec.CodecError as error:
                peer.json = codec.is_json(data)
                effects = self.broker.rubbish(peer, error.reason, codec.request_id(data), now)
            except Exception as error:  # noqa: BLE001 - a bug must cost one message, not the cluster
                self._bug(error)
                continue
            if effects:
                self.perform(effects)
        return len(messages)

    def _turn(self) -> None:
        """The end of a turn: hand facts to the store, publish while it is at work, forget who is gone."""
        self._submit()
        self._guard(lambda: self.broker.turn(self.clock()))
        while self._ended:
            peer = self._ended.pop()
            self._guard(lambda peer=peer: self.broker.gone(peer))  # type: ignore[misc]
        self._submit()

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
                log.warning("rejected a connection from %s: key %s is not known", address, key.decode())
            self.zap.news.clear()
        synced = self.broker.state.hosts.syncs
        if synced - self._synced >= FREEZE_AFTER:
            self._synced = synced
            gc.freeze()
        self.audit.flush()

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

    def _guard(self, call: Callable[[], list[Effect]]) -> None:
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
                case SendBytes():
                    self._send(effect, effect.data)
                case Send():
                    self._send(effect, self._bytes(effect))
                case Persist():
                    self._persists.append(effect)
                case CutOff():
                    self._cuts.append((self.clock() + CUT_AFTER_S, effect.peer))
                case Audit():
                    self._audit(effect)
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

    def _audit(self, effect: Audit) -> None:
        self.audit.record(
            who=effect.who,
            role=effect.role,
            operation=effect.operation,
            target=effect.target,
            op_id=effect.op_id,
            result=effect.result,
            revision=effect.revision,
            address=effect.address,
        )

    # ------------------------------------------------------------------------------------------- store

    def _submit(self) -> None:
        """All facts of the turn as one batch. While too many wait, they wait here: orders are bounded by the
        core.
        """
        if not self._persists:
            return
        facts = [fact for persist in self._persists for fact in persist.facts]
        answers = {
            persist.answer.key: (
                persist.answer.request,
                codec.encode(done_of(persist.answer, "")),
            )
            for persist in self._persists
            if persist.answer is not None
        }
        if self.store.submit(Batch(facts, answers), self._persists[-1].ticket):
            self._persists.clear()

    def _stored(self) -> None:
        """What the store has to say."""
        now = self.clock()
        outcomes = self.store.completed()
        failed = False
        for outcome in outcomes:
            if outcome.error is None:
                self._commits.add(outcome.ms)
                self._guard(lambda ticket=outcome.token: self.broker.committed(ticket, now))  # type: ignore[misc]
            else:
                failed = True
        if failed:
            self._lost(now)
        if self.store.fault != self._fault:
            self._fault = self.store.fault
            self._guard(lambda: self.broker.fault(self._fault))

    def _lost(self, now: float) -> None:
        """The store failed with all that it had: what is on the disk all the same?"""
        self._persists.clear()
        revision = self.broker.state.journal.ledger.revision
        try:
            loaded = self.store.load()
        except StoreError as error:
            log.error("%s", error)
            found, answers = [], []
        else:
            found = [fact for fact in loaded.facts if fact.revision > revision]
            answers = [one for one in answered(loaded.answers) if one.revision > revision]
        self._guard(lambda: self.broker.not_durable(found, answers, now))

    def _counters(self) -> dict[str, int]:
        counters = self._commits.counters()
        if self.router is not None:
            counters |= {f"dropped.{what}": count for what, count in self.router.dropped.items()}
            counters["connections"] = len(self.router)
        if self.zap is not None:
            counters["refused.key"] = self.zap.refused.total()
        return counters


class _Commits:
    """How long the store takes: a histogram, as counters."""

    def __init__(self) -> None:
        self._us = 0
        self._counts = dict.fromkeys(COMMIT_MS, 0)
        self._total = 0

    def add(self, ms: float) -> None:
        """One batch was durable after so long."""
        self._total += 1
        self._us += int(ms * 1000)
        for bound in COMMIT_MS:
            self._counts[bound] += ms <= bound

    def counters(self) -> dict[str, int]:
        """How many, how long in all, and how many within each bound."""
        within = {f"commits.within_{bound}_ms": count for bound, count in self._counts.items()}
        return {"commits": self._total, "commits.us": self._us, **within}


class _Pace:
    """How many messages come, over the last moments."""

    def __init__(self, now: float) -> None:
        self._since, self._count, self._fast = now, 0, False

    def fast(self, taken: int, now: float) -> bool:
        """Whether they come so thick that a rest pays."""
        self._count += taken
        passed = now - self._since
        if passed >= PACE_S:
            self._fast = BUSY_PER_S <= self._count / passed < CROWDED_PER_S
            self._since, self._count = now, 0
        return self._fast


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


def answered(answers: dict[str, tuple[str, bytes]]) -> list[Answered]:
    """Remembered answers in the core's form, oldest first."""
    found = []
    for key, (request, data) in answers.items():
        try:
            answer = codec.decode_from_broker(data)
        except (
            codec.CodecError
        ) as error:  # a memory, not a fact: the worst is that an order is carried out anew
            log.warning("a remembered answer cannot be read and is left out: %s", error)
            continue
        if isinstance(answer, Done):
            found.append(Answered(key, request, answer.revision, answer.made))
    return found
