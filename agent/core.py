"""What an agent says to its broker, and when: the protocol of the agent link, without a socket.

Pure: time comes as `now` (seconds of a monotonic clock), chance as a function, and what is to be done leaves
as effects. The owner feeds events in (`link_up`, `receive`, ...), then calls `step` until it returns nothing,
and again when `due` says so. A test, a simulator with thousands of cores, or `link.py` can be the owner.

What the node holds is behind `Book`. Nothing is queued for the broker here: what changed while the link was
away is told by its newest state, so a long outage costs no memory. The rules of the protocol stand in
docs/agent-link.md.
"""

from collections.abc import Callable, Collection

import msgspec

from xce.agent.book import Book
from xce.agent.effect import Close, Deliver, Effect, Judge, Learn, Open, Ordered, Send, Shown
from xce.agent.holdings import Holdings
from xce.agent.ticks import in_ticks
from xce.model.link import LINK, Phase, PhaseEvent
from xce.model.message import (
    PROTOCOL,
    BindingNews,
    BindingPrepare,
    BindingRelease,
    BindingStanding,
    Declare,
    Declared,
    Failed,
    FeedTick,
    FromBroker,
    Goodbye,
    Heartbeat,
    Hello,
    InventoryGone,
    InventoryNews,
    Mine,
    MineRequest,
    Pulse,
    Refused,
    Report,
    ReporterNews,
    Resync,
    Standing,
    TypesNews,
    Welcome,
)

TICK_S = 0.1
"""Shortest time between two reports: what changes meanwhile goes in one."""
GREETING_S = 15.0
"""How long the broker may take to answer a hello."""
FIRST_SPREAD_S, LONGEST_SPREAD_S = 2.0, 30.0
"""A new socket is opened after a random delay within the first, doubled at each failure up to the second."""
MANY_SPREAD_S = 8.0
"""How far attempts of one socket are spread until the broker has said how many agents it has."""
DIGEST_EVERY = 6
"""Every so many heartbeats carry the digest of the whole table, and counters that have moved."""
SHORTEST_HEARTBEAT_S = 0.1
SHORTEST_RETRY_S, LONGEST_RETRY_S = 0.1, 3600.0
"""Bounds on what the broker may ask."""
NEVER = float("inf")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who says hello."""

    role: str
    name: str
    software: str = ""
    machine_id: str = ""
    boot_id: str = ""
    nonce: str = ""
    address: str = ""


class Core:
    """One end of one link. `random(low, high)` spreads reconnects."""

    def __init__(
        self,
        identity: Identity,
        book: Book,
        *,
        now: float,
        random: Callable[[float, float], float],
        holdings: Holdings | None = None,
    ) -> None:
        self.identity, self.book, self._random = identity, book, random
        self.holdings = holdings or Holdings()
        """The node's bindings."""
        self.phase = Phase.DISCONNECTED
        self.since = now
        """When `phase` was entered."""
        self.trouble = ""
        """What is wrong with the link, in words, until the next welcome; '' when nothing is known."""
        self.welcome: Welcome | None = None
        """The newest; what it says of the link holds only while `phase` is synced."""
        self.standing = Standing(state="")
        """What the broker says of this host; last known while the link is away."""
        self.heard = now
        """When the broker was last heard."""
        self.welcomes = 0
        self.resyncs = 0
        self._up = False
        """The socket's connection is ready."""
        self.spread_s = MANY_SPREAD_S
        """Over how long the agents of this cluster spread their attempts, as the broker last said."""
        self._opened_s = self.spread_s
        """The same when the socket was made: it tries again by itself, by what was known then."""
        self._failures = 0
        self._open_at = now
        self._hello_at = now
        self._effects: list[Effect] = []
        self._quiet()

    def _quiet(self) -> None:
        """Forget what belongs to one conversation."""
        self._sequence = 0
        self._told_at = -NEVER
        self._whole = False
        """The whole table is owed to the broker; while it is `cold`, what there is."""
        self._inventories_wanted: set[str] = set()
        self._heartbeat_at = NEVER
        self._heartbeats = 0
        self._remake_at = NEVER
        """When a socket that tries too seldom or too often is replaced, unless it comes up before."""
        self._asked_since = NEVER
        """When the oldest message was sent that the broker has not answered with any sign of life."""

    # ----------------------------------------------------------------------------------- what happens

    def link_up(self, now: float) -> None:
        """The socket's connection is ready for messages; nothing, if that socket was given up already."""
        if self.phase in {Phase.DISCONNECTED, Phase.SILENT}:
            return
        self._up = True
        self._remake_at = NEVER
        self._hello_at = max(self._hello_at, now)

    def link_down(self, reason: str, now: float) -> None:
        """The connection is gone or cannot be made; the socket tries again by itself."""
        self._up = False
        if self.phase is not Phase.REFUSED:  # why the broker hung up says more
            self.trouble = reason
        if self.phase in {Phase.DISCONNECTED, Phase.SILENT, Phase.CONNECTING}:
            return
        self._quiet()
        self._move(PhaseEvent.LOST, now)
        if self.spread_s != self._opened_s:
            self._remake_at = now + self._random(0.0, self.spread_s)

    def link_failed(self, reason: str, now: float) -> None:
        """The socket will not try again."""
        self.trouble = reason
        self._give_up(PhaseEvent.CLOSED, now)

    def unsent(self, message: msgspec.Struct, now: float) -> None:
        """A message could not be sent: after a while everything is told anew, its newest state only."""
        if self.phase is not Phase.SYNCED:
            return
        self._whole = True
        self._told_at = now + self._heartbeat_s - TICK_S
        if isinstance(message, InventoryNews):
            self._inventories_wanted.add(message.inventory.reporter)
        elif isinstance(message, Declare):
            self.book.untold_types()
        elif isinstance(message, BindingNews):
            self.holdings.unsaid(message)

    def receive(self, message: FromBroker, now: float) -> None:
        """The broker said something. What makes no sense in this phase is ignored."""
        self.heard = now
        self._asked_since = NEVER
        if isinstance(message, Pulse):
            self._spread(message, otherwise=self.spread_s)
        elif isinstance(message, Welcome | Refused):
            self._answered(message, now)
        elif isinstance(message, Resync):
            self.resyncs += 1
            self._whole = True
            self._inventories_wanted.update(message.inventories)
        elif isinstance(message, TypesNews):
            self._effects.append(Learn(message.types))
        elif isinstance(message, Declared):
            self._effects.append(Judge(message.types))
        elif isinstance(message, Standing):
            self._stand(message)
        elif isinstance(message, BindingPrepare | BindingRelease):
            self._effects.append(Ordered(message))
        elif isinstance(message, BindingStanding):
            self.holdings.heard(message)
            self._effects.append(Shown())
        elif isinstance(message, Mine | Failed):
            self._effects.append(Deliver(message))

    def ask(self, identifier: str) -> bool:
        """Ask what the broker holds of us; False when it cannot be asked now."""
        if self.phase is Phase.SYNCED:
            self._effects.append(Send(MineRequest(id=identifier)))
        return self.phase is Phase.SYNCED

    def goodbye(self, expected_s: float, now: float) -> None:
        """A planned stop: nothing more is said after it."""
        if self.phase is Phase.SYNCED:
            self._effects.append(Send(Goodbye(expected_s=expected_s)))
        self._open_at = self._hello_at = self._heartbeat_at = NEVER
        self._up = False
        self._whole = False
        self.trouble = "stopped"
        self._move(PhaseEvent.CLOSED, now)

    def reopen(self, now: float) -> None:
        """Another broker or key is meant: start anew, at once."""
        if self.phase not in {Phase.DISCONNECTED, Phase.SILENT}:
            self._effects.append(Close())
        self._quiet()
        self._up, self._failures, self.trouble = False, 0, ""
        self._open_at = self._hello_at = now
        self._move(PhaseEvent.CLOSED, now)

    # -------------------------------------------------------------------------------- what is done now

    def step(self, now: float) -> list[Effect]:
        """What to do now, in this order; to be called again until it returns nothing."""
        if not self._effects:
            self._proceed(now)
        effects, self._effects = self._effects, []
        return effects

    def idle(self) -> bool:
        """Whether nothing has come up since `due` was asked."""
        if self.phase is not Phase.SYNCED or self._effects or self._whole or self._inventories_wanted:
            return False
        return not self.book.pending() and not self.holdings.pending()

    def due(self, now: float) -> float:
        """When `step` wants to be called next, unless something is heard; `NEVER` if nothing is planned."""
        if self._effects:
            return now
        if self.phase is Phase.SYNCED:  # asked after every turn of the loop
            soonest = self._heartbeat_at
            if self._asked_since != NEVER:
                soonest = min(soonest, self._silent_at)
            if soonest <= now or not self._waits():
                return soonest
            return min(soonest, max(now, self._told_at + TICK_S))
        match self.phase:
            case Phase.DISCONNECTED | Phase.SILENT:
                return self._open_at
            case Phase.CONNECTING | Phase.REFUSED:
                return self._hello_at if self._up else self._remake_at
            case Phase.GREETING:
                return self._asked_since + GREETING_S

    def _waits(self) -> bool:
        """Whether something is to be told."""
        return bool(
            self.book.pending()
            or self.holdings.pending()
            or self._inventories_wanted
            or (self._whole and not self.book.cold)
        )

    def _proceed(self, now: float) -> None:
        if self.phase in {Phase.DISCONNECTED, Phase.SILENT}:
            if now >= self._open_at:
                self._opened_s = self.spread_s
                self._effects.append(Open(self.spread_s))
                self._move(PhaseEvent.OPENED, now)
        elif self.phase in {Phase.CONNECTING, Phase.REFUSED}:
            if self._up and now >= self._hello_at:
                self._greet(now)
            elif now >= self._remake_at:
                self._drop(PhaseEvent.CLOSED, now, within_s=0)
        elif self.phase is Phase.GREETING:
            if now >= self._asked_since + GREETING_S:
                self.trouble = f"the broker did not answer our hello within {GREETING_S:g} s"
                self._give_up(PhaseEvent.UNANSWERED, now)
        elif now >= self._silent_at:
            self.trouble = f"the broker has not answered for {now - self.heard:.0f} s"
            self._give_up(PhaseEvent.UNANSWERED, now)
        else:
            self._converse(now)

    def _converse(self, now: float) -> None:
        heartbeat = now >= self._heartbeat_at
        if heartbeat or now >= self._told_at + TICK_S:
            self._tell(now, counters=heartbeat and self._heartbeats % DIGEST_EVERY == 0)
        if heartbeat:
            self._beat(now)

    def _tell(self, now: float, *, counters: bool) -> None:
        """Everything that the broker does not know yet."""
        before = len(self._effects)
        if declared := self.book.take_declared():
            self._effects.append(Send(Declare(types=declared)))
        if self._whole and not self.book.cold:
            self._whole = False
            self.book.forget_told(now)
            self.book.take_states(counters=True)
            self._report(self.book.all_feeds(now), full=True)
            self._effects.append(Send(ReporterNews(reporters=dict(self.book.all_states()), full=True)))
        else:
            if feeds := self.book.take_feeds(now, urgent_s=2 * self._heartbeat_s):
                self._report(feeds, full=False)
            if states := self.book.take_states(counters=counters):
                self._effects.append(Send(ReporterNews(reporters=states)))
        self._tell_inventories()
        if (news := self.holdings.take()) is not None:
            self._effects.append(Send(news))
        if len(self._effects) > before:
            self._told_at = now

    def _report(self, feeds: Collection[FeedTick], *, full: bool) -> None:
        for part in in_ticks(feeds):
            self._sequence += 1
            self._effects.append(Send(Report(sequence=self._sequence, feeds=part, full=full)))
            full = False

    def _tell_inventories(self) -> None:
        for news in self.book.take_inventories():
            if isinstance(news, str):
                self._effects.append(Send(InventoryGone(reporter=news)))
            else:
                self._inventories_wanted.add(news.reporter)
        for reporter in sorted(self._inventories_wanted):
            if inventory := self.book.inventory(reporter):
                self._effects.append(Send(InventoryNews(inventory=inventory)))
        self._inventories_wanted.clear()

    def _beat(self, now: float) -> None:
        covered = self._heartbeats % DIGEST_EVERY == 0 and not self.book.cold
        digest = self.book.digest() if covered else ""
        self._heartbeats += 1
        self._sequence += 1
        ages = self.book.ages_ms(now)
        self._effects.append(Send(Heartbeat(sequence=self._sequence, ages_ms=ages, digest=digest)))
        self._asked_since = min(self._asked_since, now)
        self._heartbeat_at = now + self._heartbeat_s
        self.holdings.again()

    # ---------------------------------------------------------------------------------- conversation

    def _greet(self, now: float) -> None:
        self._quiet()
        if not self.book.cold:
            self.book.forget_told(now)
        me = self.identity
        hello = Hello(
            protocol=PROTOCOL,
            role=me.role,
            name=me.name,
            software=me.software,
            machine_id=me.machine_id,
            boot_id=me.boot_id,
            nonce=me.nonce,
            address=me.address,
            digest="" if self.book.cold else self.book.digest(),
            types=self.book.types_digest(),
            inventories=self.book.references(),
            bindings=self.holdings.digest(),
            epoch=self.holdings.epoch,
            newest=self.holdings.newest,
        )
        self._effects.append(Send(hello))
        self._asked_since = now
        self._move(PhaseEvent.GREETED, now)

    def _answered(self, answer: Welcome | Refused, now: float) -> None:
        event = PhaseEvent.WELCOMED if isinstance(answer, Welcome) else PhaseEvent.REFUSED
        if not LINK.allows(self.phase, event):
            return
        self._move(event, now)
        if isinstance(answer, Welcome):
            self._welcomed(answer, now)
        else:
            self._refused(answer, now)

    def _welcomed(self, welcome: Welcome, now: float) -> None:
        self.welcome = welcome
        self._spread(welcome, otherwise=MANY_SPREAD_S)
        self.trouble = ""
        self._failures = 0
        self.welcomes += 1
        self._whole = welcome.resync or self.book.cold
        self._inventories_wanted = set(welcome.inventories)
        self.holdings.welcomed(full=welcome.bindings)
        # Spread from the first one on: all hosts of a cluster may have been welcomed in the same second.
        self._heartbeat_at = now + self._random(0.5, 1.0) * self._heartbeat_s
        self.book.untold_types()
        if welcome.types is not None:
            self._effects.append(Learn(welcome.types))
        self._stand(Standing(state=welcome.state, conditions=welcome.conditions, holds=welcome.holds))
        if not self._whole:
            # The digest told nothing about states; they are few.
            self.book.take_states(counters=True)
            self._effects.append(Send(ReporterNews(reporters=dict(self.book.all_states()), full=True)))

    def _spread(self, said: Welcome | Pulse, *, otherwise: float) -> None:
        self.spread_s = min(max(said.spread_ms, 0) / 1000, LONGEST_SPREAD_S) or otherwise

    def _refused(self, refused: Refused, now: float) -> None:
        hint = f" ({refused.hint})" if refused.hint else ""
        self.trouble = f"refused by broker: {refused.message}{hint}"
        retry = min(max(refused.retry_s, SHORTEST_RETRY_S), LONGEST_RETRY_S)
        self._quiet()
        self._hello_at = now + retry * self._random(1.0, 1.25)

    def _stand(self, standing: Standing) -> None:
        if standing != self.standing:
            self.standing = standing
            self._effects.append(Shown())

    def _give_up(self, event: PhaseEvent, now: float) -> None:
        """Drop the socket that was of no use; at each failure it takes longer until the next one."""
        within_s = min(FIRST_SPREAD_S * 2.0 ** min(self._failures, 30), LONGEST_SPREAD_S)
        self._drop(event, now, within_s=within_s)
        self._failures += 1

    def _drop(self, event: PhaseEvent, now: float, *, within_s: float) -> None:
        """Drop the socket; a new one is opened after a random while."""
        self._effects.append(Close())
        self._quiet()
        self._up = False
        self._open_at = now + self._random(0.0, within_s)
        self._move(event, now)

    def _move(self, event: PhaseEvent, now: float) -> None:
        following = LINK.step(self.phase, event)
        if following is not self.phase:
            self.phase, self.since = following, now

    @property
    def _heartbeat_s(self) -> float:
        assert self.welcome is not None
        return max(self.welcome.heartbeat_ms / 1000, SHORTEST_HEARTBEAT_S)

    @property
    def _silent_at(self) -> float:
        """When the broker counts as gone. One that was not asked anything cannot have failed to answer, so
        a node that slept for an hour first asks.
        """
        if self.welcome is None or self._asked_since == NEVER:
            return NEVER
        patience = max(self.welcome.silent_after_ms / 1000, self._heartbeat_s)
        return max(self.heard + patience, self._asked_since + self._heartbeat_s)
