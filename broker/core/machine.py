"""The broker as a pure machine: what comes in is a method, what is to be done comes out as effects.

    connected, handle, gone      a peer, its messages, its end
    second                       a second has passed: silence, staleness
    committed, not_durable       what the store says about `Persist`
    turn                         the loop has nothing more to take in: publish, deliver
    reload                       the site's files have changed

`now` is always the same monotonic clock, in seconds. Nothing here waits, and no peer can raise an exception.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from xce.broker.core import access
from xce.broker.core.claims import Claims
from xce.broker.core.effect import Audit, Effect, Send, SendBytes
from xce.broker.core.hello import Hellos
from xce.broker.core.journal import KEPT_WAITING, NOT_DURABLE_HINT, Journal, as_given
from xce.broker.core.ledger import Answered, Ledger
from xce.broker.core.links import Links
from xce.broker.core.location import Host
from xce.broker.core.orders import audit, decide, made_by
from xce.broker.core.peer import Peer
from xce.broker.core.questions import Questions
from xce.broker.core.sitemap import SiteMap
from xce.broker.core.situation import Refusal, Situation
from xce.broker.core.state import State
from xce.model import fact as facts
from xce.model import message as m
from xce.model.configuration import BrokerFile, Discovered
from xce.model.fact import Fact
from xce.model.role import Role
from xce.model.site import Site
from xce.wire.codec import PlainReport

STALL_S = 5.0
"""The loop was away for longer: nobody is called silent until everybody had the time to be heard again."""

LINKS = 8
"""Connections of a key for each host that it may speak for, dead ones that nobody has missed yet included."""
CHECKPOINT = 200_000
"""Facts after which they are put together into one."""
WAITING = 10_000
"""Orders that may wait for the disk."""

_NOTHING: list[Effect] = []


class Broker:
    """All decisions of one reign. It owns `ledger` from now on, which is what the store gave."""

    def __init__(
        self,
        config: BrokerFile,
        ledger: Ledger,
        site: Site,
        *,
        incarnation: str,
        wall: Callable[[], str],
        now: float,
        answers: Iterable[Answered] = (),
        least_epoch: int = 1,
        own_key: str = "",
        software: str = "",
        pid: int = 0,
    ) -> None:
        """`wall` gives wall time as ISO 8601 text, only for showing; `incarnation` is random, one for each
        start.
        """
        journal = Journal(ledger, answers, wall)
        epoch = max(ledger.epoch + 1, least_epoch)
        self.state = State(config, site, journal, epoch=epoch, incarnation=incarnation, wall=wall)
        self.own_key = own_key
        self.checkpoint_every = CHECKPOINT
        self.links = Links(self.state)
        self.claims = Claims(self.state)
        self.hellos = Hellos(self.state, self.links, self.claims)
        self.questions = Questions(self.state, self.claims, software=software, pid=pid, started=now)
        self.sitemap = SiteMap(self.state, self.links)
        self.take = self.state.reports.take
        """`handle` for nearly all messages, without a detour; what it does not take goes there."""
        self._looked = now
        self._situation = Situation(
            ledger=journal.draft,
            site=site,
            types=self.state.types.all,
            present=self.state.supply.locations,
            own_key=own_key,
            wall=wall,
            hosts=self.state.supply.hosts,
            settled=self.claims.settled,
            inventory=self.claims.inventory,
            epoch=epoch,
        )
        self._handlers: dict[type, Callable[[Peer, Any, float], None]] = {
            m.Report: self.links.report,
            m.Heartbeat: self.links.heartbeat,
            m.Hello: self.hellos.hello,
            m.ReporterNews: self.links.reporters,
            m.InventoryNews: self.links.inventory,
            m.InventoryGone: self.links.inventory_gone,
            m.Declare: self.links.declare,
            m.Goodbye: self.links.goodbye,
            m.BindingNews: self.claims.news,
            **self.questions.handlers(),
            **dict.fromkeys(m.Order.__args__, self._order),
        }
        self.sitemap.build(now)

    def start(self, now: float) -> list[Effect]:
        """Begin the reign; nothing may be served before its ticket is committed."""
        self.state.hosts.show_all()
        self.state.count_hosts()
        self.claims.start(now)
        self.state.supply.forget_turn()  # everything so far is in the first snapshot
        epoch = facts.EpochStarted(epoch=self.state.changes.epoch)
        self.state.out.append(self.state.journal.persist([epoch]))
        self._checkpoint()
        grace = now + self.state.config.rejoin
        for host in self.state.supply.hosts.values():
            if host.rejoining:
                host.deadline = grace
        return self._effects()

    # ------------------------------------------------------------------------------------------ peers

    def accepts(self, public: bytes) -> str | None:
        """The User-Id for a connection with this key, None if it is not accepted."""
        key = public.decode("ascii", "replace")
        return key if self.state.journal.ledger.good_key(key) is not None else None

    def connected(self, peer: Peer) -> list[Effect]:
        """A connection's first message is about to come."""
        self._make_way(peer)
        if len(self.state.peers) >= self.state.config.max_peers:
            limit = self.state.config.max_peers
            spread = max(1.0, len(self.state.supply.hosts) / 2500)
            self.state.refuse(
                peer, "busy", f"the broker serves {limit} peers already (max_peers)", retry_s=spread
            )
            self.state.cut(peer)
            return self._effects()
        self.state.enter(peer)
        if not peer.key:
            # Whoever may open the local socket may do everything.
            peer.be(Role.ADMIN, "root" if peer.uid == 0 else f"uid{peer.uid}")
        else:
            record = self.state.journal.ledger.good_key(peer.key)
            if record is None or record.role not in set(Role):
                self.state.refuse(peer, "role", "this key is not known any more", retry_s=60)
                self.state.cut(peer)
                return self._effects()
            peer.be(Role(record.role), record.name)
        assert peer.role is not None, "internal error: a peer without a role"
        needs_hello = bool(peer.key) and peer.role in access.NEEDS_HELLO
        peer.allowed = access.UNTIL_HELLO if needs_hello else access.ALLOWED[peer.role]
        return self._effects()

    def _make_way(self, peer: Peer) -> None:
        """A key that speaks for a few hosts has a few connections, so that it keeps nobody's place: what is
        older than these is dead, or the work of somebody ill.
        """
        record = self.state.journal.ledger.good_key(peer.key) if peer.key else None
        if record is None or record.role not in access.NEEDS_HELLO or any(map(_is_pattern, record.hosts)):
            return
        oldest = self.state.too_many(peer.key, LINKS * max(1, len(record.hosts)))
        if oldest is not None:
            self.state.counts["replaced"] += 1
            self.links.leave(oldest)

    def handle(self, peer: Peer, message: m.Tick | m.ToBroker, now: float) -> list[Effect]:
        """One message of a peer."""
        kind: type = message.__class__
        if kind is PlainReport:
            if self.take(peer, message, now):  # type: ignore[arg-type]
                return _NOTHING
            kind = m.Report
        if self.state.next_key:
            self.questions.tell_key(peer)
        if kind in peer.allowed:
            self._handlers[kind](peer, message, now)
        elif not peer.cut:
            self._forbidden(peer, message, kind, now)
        return self._effects() if self.state.out else _NOTHING

    def rubbish(self, peer: Peer, reason: str, request_id: str, now: float) -> list[Effect]:
        """A message of a peer that is none; who wrote it is told, but not for each of many."""
        self.state.counts["rubbish"] += 1
        if not peer.cut and self.state.scold(peer, now):
            self.state.send(
                peer, m.Failed(id=request_id, code="invalid", message=f"cannot read that: {reason}")
            )
        return self._effects()

    def gone(self, peer: Peer) -> list[Effect]:
        """A peer's connection has ended."""
        self.state.leave(peer)
        self.links.gone(peer)
        self.state.changes.gone(peer)
        self.state.snapshots.gone(peer)
        return self._effects()

    def undelivered(self, sending: Send | SendBytes) -> list[Effect]:
        """A peer does not read: its queue is full. It loses what it follows, and is told when it reads."""
        self.state.counts["undelivered"] += 1
        self.questions.deaf(sending.peer, sending.document if isinstance(sending, Send) else None)
        return self._effects()

    # ------------------------------------------------------------------------------------------- time

    def second(self, now: float) -> list[Effect]:
        """What time alone changes; to be called about once a second."""
        stalled, self._looked = now - self._looked > STALL_S, now
        state = self.state
        due = [
            place for place in state.supply.locations.values() if place.expires < now or place.deadline < now
        ]
        for place in due:
            if place.deadline < now and isinstance(place, Host):
                if stalled:
                    place.deadline = now + min(place.quiet_s, state.config.rejoin)
                else:
                    self.links.silent(place, "nothing heard of it for too long")
            if place.expires < now:
                state.freshness.age(place, now)
        state.count_hosts()
        self.sitemap.second(now)
        self.claims.second(now)
        self._checkpoint()
        self._look_at_disk()
        self.questions.second()
        return self._effects()

    def _look_at_disk(self) -> None:
        """One that hangs says nothing: whoever asks is to hear what keeps the orders."""
        words = KEPT_WAITING if self.state.journal.kept_waiting() else ""
        before = self.questions.trouble.pop("disk", "")
        if words:
            self.questions.trouble["disk"] = words
        if words != before:
            self.state.note(words or "the disk of the state directory answers again", fault=bool(words))

    def _checkpoint(self) -> None:
        """Now and then all that is known is one fact, so that neither the disk nor a start grows for ever."""
        journal = self.state.journal
        if journal.draft.revision - journal.draft.checkpoint >= self.checkpoint_every and not journal.fault:
            whole = facts.Checkpoint(ledger=journal.draft.encoded())
            self.state.out.append(journal.persist([whole]))

    def turn(self, now: float) -> list[Effect]:
        """Publish what has changed and deliver what can be delivered; to be called after each turn of the
        loop.
        """
        state = self.state
        views = self.claims.views
        if (
            state.supply.turn
            or state.supply.removed
            or self.sitemap.types_news
            or self._revised()
            or views.changed()
        ):
            told = [
                place for place in state.supply.turn if place.news is not None and isinstance(place, Host)
            ]
            values, changes, removed = state.supply.take_turn()
            for host in told:
                self.links.tell(host)
                self.claims.host_changed(host)
            claims, bindings = views.take_turn()
            lost = state.changes.publish(
                values,
                changes,
                removed,
                state.types.list if self.sitemap.types_news else None,
                revision=state.journal.ledger.revision,
                broker_ms=int(now * 1000),
                claims=claims,
                bindings=bindings,
            )
            self.sitemap.types_news = False
            if lost:
                self._unencodable(lost)
        self.claims.turn()
        self.questions.turn(now)
        if self.links.pushing():
            self.links.push()
        return self._effects() if state.out else _NOTHING

    def _unencodable(self, keys: Sequence[str]) -> None:
        """Locations that cannot be told to anybody: followers learn of them anew once they can be."""
        self.state.counts["unencodable"] += len(keys)
        named = ", ".join(map(ascii, keys[:3]))
        self.state.note(f"cannot encode {len(keys)} locations, they are left out: {named}", fault=True)
        for key in keys:
            if (place := self.state.supply.locations.get(key)) is not None:
                place.news = {"new": True}

    def busy(self) -> bool:
        """Whether `turn` would have something to do without anything coming in."""
        state = self.state
        return bool(len(state.snapshots)) or state.changes.behind() or self.links.pushing()

    def _revised(self) -> bool:
        return self.state.journal.ledger.revision != self.state.changes.revision

    # ------------------------------------------------------------------------------------------ orders

    def _order(self, peer: Peer, order: m.Order, now: float) -> None:
        """Judge an order; what it changes is shown, and its caller answered, once it is durable."""
        try:
            self.state.out += self._carry_out(peer, order)
        except Refusal as refusal:
            self.state.counts[f"refused.{refusal.code}"] += 1
            answer = m.Failed(id=order.id, code=refusal.code, message=refusal.message, hint=refusal.hint)
            self.state.send(peer, answer)
            self._record_refusal(peer, order, refusal.code, now)

    def _carry_out(self, peer: Peer, order: m.Order) -> list[Effect]:
        """Hand what an order changes to the store, unless it was given before; raises `Refusal`."""
        if not order.id or len(order.id) > 128:
            raise Refusal("invalid", "cannot carry out an order without an id of at most 128 characters")
        journal, asked = self.state.journal, as_given(peer, order)
        before = journal.answered(asked)
        if before is not None:
            return before
        if journal.fault:
            raise Refusal("not-durable", journal.fault, NOT_DURABLE_HINT)
        if len(journal) >= WAITING:
            raise Refusal("busy", f"{WAITING} orders wait for the broker's disk already", "ask again later")
        now = self._situation
        now.ledger, now.site, now.types = journal.draft, self.state.site, self.state.types.all
        changes = decide(order, peer, now)
        return [journal.carry_out(asked, changes, made_by(changes))]

    def _forbidden(self, peer: Peer, message: m.Tick | m.ToBroker, kind: type, now: float) -> None:
        """A message that the peer's role does not have."""
        what = message.__struct_config__.tag
        assert peer.role is not None, "internal error: a peer without a role"
        if peer.allowed is access.UNTIL_HELLO and kind in access.ALLOWED[peer.role]:
            self.state.counts["refused.hello"] += 1
            if self.state.scold(peer, now):
                self.state.refuse(peer, "protocol", f"say hello before {what}", retry_s=1)
            return
        self.state.counts["refused.forbidden"] += 1
        words = f"role {peer.role.value} may not say {what}"
        request_id = getattr(message, "id", "")
        if request_id or self.state.scold(peer, now):
            self.state.send(peer, m.Failed(id=request_id, code="forbidden", message=words))
        if isinstance(message, m.Order):
            self._record_refusal(peer, message, "forbidden", now)

    def _record_refusal(self, peer: Peer, order: m.Order, code: str, now: float) -> None:
        planner = code != "forbidden" and peer.role in access.PLANNERS
        if planner or self.state.may_record_refusal(peer, now):
            self.state.out.append(audit(peer, order, code))

    # ------------------------------------------------------------------------------------------- store

    def announce(self, public: str) -> list[Effect]:
        """Tell everybody of the key that we shall have soon; '' when none is to come."""
        self.questions.announce(public)
        return self._effects()

    def add_keys(self, keys: Sequence[facts.KeyAdded]) -> list[Effect]:
        """Take up keys from files, unless they are known or were revoked. No order says so."""
        known = self.state.journal.draft.keys
        new = [
            key
            for key in keys
            if (record := known.get(key.public)) is None
            or (
                record.revoked is None
                and (record.name, record.role, record.hosts) != (key.name, key.role, key.hosts)
            )
        ]
        if new:
            first = self.state.journal.draft.revision + 1
            lines = [_taken_up(key, revision) for revision, key in enumerate(new, first)]
            self.state.out.append(self.state.journal.persist(new, told=lines))
        return self._effects()

    def answers(self, ticket: int) -> list[Effect]:
        """Everything up to a ticket is durable: what the callers hear. `committed` has to follow."""
        return self.state.journal.answers(ticket)

    def may_wait(self, ticket: int) -> bool:
        """Whether orders may come before `committed`: in what it is about they are judged by the draft."""
        return self.state.journal.about_claims(ticket)

    def committed(self, ticket: int, now: float) -> list[Effect]:
        """Everything up to a ticket is durable."""
        news, effects = self.state.journal.committed(ticket)
        self._show(news, now)
        self.state.out += effects
        return self._effects()

    def not_durable(self, found: Sequence[Fact], answers: Sequence[Answered], now: float) -> list[Effect]:
        """The store failed with everything that it was given; what was `found` is durable all the same."""
        news, effects = self.state.journal.lost(found, answers)
        self._show(news, now)
        self.state.out += effects
        return self._effects()

    def fault(self, words: str) -> list[Effect]:
        """Why nothing can be made durable at present; '' when it can."""
        journal = self.state.journal
        if bool(words) != bool(journal.fault):
            self.state.note(words or "facts can be made durable again", fault=bool(words))
        journal.fault = words
        return self._effects()

    def _show(self, news: Sequence[Fact], now: float) -> None:
        if any(fact.change.__class__ is facts.TypeAdmitted for fact in news):
            self.sitemap.types_admitted(now)
        for fact in news:
            if isinstance(fact.change, facts.ClaimChange):
                self.claims.fact(fact.change, now)
                continue
            self.sitemap.fact(fact.change, now)
            if isinstance(fact.change, facts.KeyRevoked):
                self._revoked(fact.change)

    def _revoked(self, change: facts.KeyRevoked) -> None:
        """End what a key was used for. Its host is lost, unless it has another key to come back with."""
        hosts = self.state.hosts.of_key(change.public)
        for peer in [peer for peer in self.state.peers if peer.key == change.public]:
            # Not counted: a revocation, or the end of a token that has served, is not somebody at the door.
            words = f"this key was revoked: {change.reason}"
            self.state.send(peer, m.Refused(code="role", message=words, retry_s=60))
            self.links.leave(peer)
        for host in hosts:
            self.links.silent(host, f"its key was revoked: {change.reason}")

    def reload(self, site: Site, now: float, *, config: BrokerFile | None = None) -> list[Effect]:
        """The site's files have changed, and perhaps the broker's settings.

        Of the settings those take effect that are looked at when they are needed; sockets, keys and the
        length of the ring stay as they were at the start.
        """
        if config is not None:
            self.state.config = config
            self.state.hosts.admit = config.discovered is Discovered.ADMIT
        self.sitemap.reload(site, now)
        return self._effects()

    # ----------------------------------------------------------------------------------------- helpers

    def _effects(self) -> list[Effect]:
        effects, self.state.out = self.state.out, []
        return effects


def _taken_up(key: facts.KeyAdded, revision: int) -> Audit:
    """The line of the audit for a key that came as a file."""
    about = f"{key.role} {key.name} {key.public}, from the directory of accepted keys"
    return Audit(
        who="", role="", operation=str(m.KeyAdd.__struct_config__.tag), target=about, revision=revision
    )


def _is_pattern(host: str) -> bool:
    return any(one in host for one in "*?[")
