"""The links of agents and external reporters after their hello: ticks, silence, and what is told back."""

from collections.abc import Iterable

import msgspec

from xce.broker.core import access
from xce.broker.core.effect import Audit, Send
from xce.broker.core.external import External
from xce.broker.core.intake import FEEDS
from xce.broker.core.location import NEVER, Host, packed
from xce.broker.core.peer import Peer
from xce.broker.core.state import State
from xce.model import fact as facts
from xce.model import message as m
from xce.model.configuration import NewTypes
from xce.model.instance import reference
from xce.model.message import ReporterState
from xce.model.resource import ResourceType, Scope
from xce.model.role import Role

RESYNC_S = 10.0
"""A peer is asked to send everything at most this often."""
RETYPED_S = 50.0
"""Between two changes of admitted types by one peer: each is a fact, and news for everybody. An agent asks
about what was refused each minute."""
PUSH = 500
"""Peers that are told of new types in one turn."""
TEXT = 255
ADMITTED_TYPES = 10_000
STATE_TEXT = 4096
"""Characters of each text of a reporter's state."""
STATES_BYTES = 1 << 20
"""Characters of the texts of all states of a host; beyond that a state comes without its texts."""
CONDITIONS, CONDITION = 64, 1000
"""Of a reporter, and what each counts at least among the texts of its host."""
INVENTORIES = 16
"""Of one host."""
_encode = msgspec.msgpack.Encoder().encode


class Links:
    """Serves agents and external reporters."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._retyped: dict[str, float] = {}
        """When a peer may change types again."""
        self._untold: list[Peer] = []
        """Peers that do not know the newest types."""

    # ------------------------------------------------------------------------------------------ ticks

    def report(self, peer: Peer, report: m.Report, now: float) -> None:
        """Changed readings."""
        if report.sequence != peer.sequence + 1 and not report.full:
            self._ask_again(peer, f"tick {report.sequence} came after {peer.sequence}", now)
        peer.sequence = report.sequence
        host = peer.host
        if host is not None:
            host.deadline = now + host.quiet_s
            if not report.full:
                self.state.reports.changed(host, report.feeds, now)
                return
            peer.asked_again = 0.0
            self.state.reports.whole(host, report.feeds, now)
            if not host.synced:
                self.state.hosts.synced(host)
        elif peer.identity is not None:
            peer.identity.deadline = now + peer.identity.quiet_s
            if report.full:
                peer.asked_again = 0.0
            self.state.externals.report(peer.identity, report.feeds, now, full=report.full)
            self._tell_of_refusals(peer, peer.identity)

    def heartbeat(self, peer: Peer, heartbeat: m.Heartbeat, now: float) -> None:
        """Alive, and how old everything is."""
        if heartbeat.sequence != peer.sequence + 1:
            self._ask_again(peer, f"tick {heartbeat.sequence} came after {peer.sequence}", now)
        peer.sequence = heartbeat.sequence
        holds = ""
        if peer.host is not None:
            peer.host.deadline = now + peer.host.quiet_s
            self.state.freshness.heard(peer.host, heartbeat.ages_ms, now)
            holds = self.state.intake.digest(peer.host) if heartbeat.digest else ""
        elif peer.identity is not None:
            peer.identity.deadline = now + peer.identity.quiet_s
            self.state.externals.heard(peer.identity, heartbeat.ages_ms, now)
            holds = peer.identity.digest() if heartbeat.digest else ""
            self._tell_of_refusals(peer, peer.identity)
        if holds != heartbeat.digest:
            self._ask_again(peer, "the broker holds other values than you", now)
        pulse = m.Pulse(sequence=heartbeat.sequence, next_key=self.state.next_key)
        if peer.told_spread != self.state.spread_ms:
            peer.told_spread = self.state.spread_ms
            pulse = msgspec.structs.replace(pulse, spread_ms=peer.told_spread)
        self.state.send(peer, pulse)

    def _tell_of_refusals(self, peer: Peer, identity: External) -> None:
        """Tell an external reporter which of its names lead nowhere: its scripts' author looks there."""
        if identity.refused == identity.told:
            return
        identity.told = dict(identity.refused)
        words = [f"{name}: {why}" for name, why in list(identity.told.items())[:CONDITIONS]]
        if words:
            self.state.note(f"reporter {identity.name}: {words[0]}", fault=True)
        self.state.send(peer, m.Standing(state="connected", refused=words))

    def _ask_again(self, peer: Peer, reason: str, now: float) -> None:
        if peer.asked_again and now - peer.asked_again < RESYNC_S:
            return
        peer.asked_again = now
        self.state.counts["resyncs"] += 1
        self.state.send(peer, m.Resync(reason=reason))

    # ----------------------------------------------------------------------------------- rare messages

    def reporters(self, peer: Peer, news: m.ReporterNews, now: float) -> None:
        """States of reporters that changed."""
        changed = {
            name: _bounded(state) if state else None
            for name, state in news.reporters.items()
            if len(name) <= TEXT
        }
        if peer.identity is not None:
            states = peer.identity.states
            gone = states.keys() - changed.keys() if news.full else ()
            room = _Room(states.values())
            for name, state in {**dict.fromkeys(gone), **changed}.items():
                kept = room.take(states.get(name), state)
                self.state.externals.reporter(peer.identity, name, kept, now)
            return
        host = peer.host
        assert host is not None, "internal error: reporters of a peer without a hello"
        gone = host.feeds.keys() - changed.keys() if news.full else ()
        for name in gone:
            self.state.intake.reporter(host, name, None, now)
        room = _Room(feed.state for feed in host.feeds.values())
        for name, state in changed.items():
            feed = host.feeds.get(name)
            if state is not None and feed is None and len(host.feeds) >= FEEDS:
                self.state.counts["refused.feed"] += 1
                continue
            self.state.intake.reporter(host, name, room.take(feed.state if feed else None, state), now)
        self.state.hosts.show(host)  # their conditions may hold it

    def inventory(self, peer: Peer, news: m.InventoryNews, _now: float) -> None:
        """A reporter's new inventory replaces its old one whole."""
        host = peer.host
        reporter = news.inventory.reporter
        known = host is not None and (reporter in host.bodies or len(host.bodies) < INVENTORIES)
        if host is None or not known or len(reporter) > TEXT:
            self.state.counts["refused.inventory"] += 1
            return
        host.bodies[reporter] = packed(_encode(news.inventory))
        self.state.supply.set_entry(host, "inventories", reporter, reference(news.inventory))

    def inventory_gone(self, peer: Peer, news: m.InventoryGone, _now: float) -> None:
        """The reporter of an inventory was removed."""
        if peer.host is not None:
            self.state.intake.inventory_gone(peer.host, news.reporter)

    def declare(self, peer: Peer, declare: m.Declare, now: float) -> None:
        """Types of NAME.yaml files: known, new or in conflict with the cluster's."""
        answers: dict[str, str] = {}
        admitted: list[facts.TypeAdmitted] = []
        soon = now < self._retyped.get(peer.title, 0.0)
        for origin, kinds in declare.types.items():
            for kind in kinds:
                if kind.name not in answers:
                    problem, known = self._declared(peer, kind, origin), self._known(kind.name)
                    changes = not problem and known is not None and known != kind
                    if changes and soon:
                        problem = f"types of {peer.title} were changed just now; asked again in a minute"
                    elif changes:
                        self._retyped[peer.title] = now + RETYPED_S
                    answers[kind.name] = problem
                    if not problem and known != kind:
                        place = f"{origin[:TEXT]} of {peer.title}"
                        admitted.append(facts.TypeAdmitted(type=kind, origin=place))
        if admitted:
            self._admit(peer, admitted, answers)
        else:
            self.state.send(peer, m.Declared(types=answers))

    def _admit(self, peer: Peer, admitted: list[facts.TypeAdmitted], answers: dict[str, str]) -> None:
        """Have types recorded; the answer waits for that."""
        journal = self.state.journal
        later = f"not admitted: {journal.fault or 'the broker could not record it'}"
        failed = m.Declared(types=answers | {one.type.name: later for one in admitted})
        if journal.fault:
            self.state.send(peer, failed)
            return
        names = ", ".join(f"{one.type.name} of {one.origin}" for one in admitted)
        line = Audit(
            who=peer.name,
            role=peer.role or "",
            operation=str(m.Declare.__struct_config__.tag),
            target=names,
            revision=journal.draft.revision + len(admitted),
            address=peer.address,
        )
        self.state.out.append(
            journal.persist(
                admitted,
                by=peer.title,
                told=[Send(peer, m.Declared(types=answers)), line],
                failed=[Send(peer, failed)],
            )
        )

    def _known(self, name: str) -> ResourceType | None:
        """The type of that name: of the files, else as it was admitted last."""
        draft = self.state.journal.draft.types.get(name)
        return self.state.site.types.get(name) or (draft.type if draft else None)

    def _declared(self, peer: Peer, kind: ResourceType, origin: str) -> str:
        """'' if a declared type is in force or may be, otherwise why not. Its own file may change one."""
        state = self.state
        draft = state.journal.draft.types.get(kind.name)
        if (known := self._known(kind.name)) == kind:
            return ""
        told = f"{origin[:TEXT]} defines {kind.name} differently from"
        if kind.name in state.site.types:
            return f"{told} resources.yaml or built in, which holds"
        if draft and draft.origin != f"{origin[:TEXT]} of {peer.title}":
            return f"{told} {draft.origin}, which came first; to settle it, declare it in resources.yaml"
        if state.config.new_types is NewTypes.REFUSE:
            return f"the cluster does not know {kind.name}; declare it in resources.yaml"
        if peer.role is Role.AGENT and kind.scope is not Scope.HOST:
            return f"{kind.name} has scope {kind.scope.value}: declare it in resources.yaml"
        if peer.role is Role.REPORTER and kind.reporter != peer.name:
            return f"{kind.name} must say 'reporter: {peer.name}', who reports it"
        if known is None and len(state.journal.draft.types) >= ADMITTED_TYPES:
            return f"the broker has admitted {ADMITTED_TYPES} types already"
        return ""

    def goodbye(self, peer: Peer, goodbye: m.Goodbye, now: float) -> None:
        """A planned stop."""
        if (host := peer.host) is not None:
            host.peer = None
            if goodbye.expected_s > 0:
                host.deadline = now + min(goodbye.expected_s, 3600)
            else:
                self.silent(host, "its agent was stopped")
        elif peer.identity is not None:
            peer.identity.peer = None
        peer.host = peer.identity = None
        peer.allowed = access.UNTIL_HELLO

    # --------------------------------------------------------------------------------------- silence

    def silent(self, host: Host, why: str) -> None:
        """A host is not there any more."""
        self.state.hosts.fell_silent(host)
        self.state.note(f"host {host.name} is {host.view.state}: {why}", fault=True, host=host.name)
        if host.peer is not None:
            self.leave(host.peer)

    def gone(self, peer: Peer) -> None:
        """A peer's connection has ended. Its host is not lost for that: its agent may come back in time."""
        if peer.host is not None and peer.host.peer is peer:
            peer.host.peer = None
        if peer.identity is not None and peer.identity.peer is peer:
            peer.identity.peer = None
        peer.host = peer.identity = None

    def leave(self, peer: Peer) -> None:
        """End the connection of an agent that was replaced or fell silent."""
        self.gone(peer)
        self.state.cut(peer)

    def released(self, host: Host) -> None:
        """A host was released: its agent is told and nothing of it is left but its name."""
        for reporter in [*host.feeds, *host.view.inventories]:
            self.state.intake.reporter(host, reporter, None, 0)
        host.silent = host.rejoining = host.overdue = False
        host.deadline = host.join_by = NEVER
        host.agent, host.where, host.rival = {}, "", ""
        if host.peer is not None:
            peer = host.peer
            why = self.state.hosts.released(host.name) or ""
            self.state.refuse(peer, "released", f"host {host.name} was released: {why}", retry_s=60)
            self.leave(peer)

    # ------------------------------------------------------------------------------------------ news

    def types_changed(self) -> None:
        """Everybody on a link is to be told of the types, some in each turn."""
        self._untold = [
            peer for peer in self.state.peers if peer.host is not None or peer.identity is not None
        ]

    def push(self) -> None:
        """Tell some of those who do not know the newest types."""
        some, self._untold = self._untold[:PUSH], self._untold[PUSH:]
        news = m.TypesNews(types=self.state.types.list)
        for peer in some:
            if peer.host is not None or peer.identity is not None:
                self.state.send(peer, news)

    def pushing(self) -> bool:
        """Whether somebody has not been told yet."""
        return bool(self._untold)

    def tell(self, host: Host) -> None:
        """Tell a host's agent how it stands, if that is new to it."""
        if host.peer is None:
            return
        refused = [
            f"{name}: {words}" for feed in host.feeds.values() for name, words in feed.refusals().items()
        ]
        view = host.view
        standing = m.Standing(
            state=view.state, conditions=view.conditions, holds=view.holds, refused=refused[:CONDITIONS]
        )
        if host.told != standing:
            host.told = standing
            self.state.send(host.peer, standing)


def _bounded(state: ReporterState) -> ReporterState:
    """A state as it may be kept: no honest agent's is cut by this."""
    return msgspec.structs.replace(
        state,
        state=state.state[:TEXT],
        cause=state.cause[:STATE_TEXT],
        note=state.note[:STATE_TEXT],
        path=state.path[:STATE_TEXT],
        script=state.script[:TEXT],
        mode=state.mode[:TEXT],
        conditions=[
            msgspec.structs.replace(one, name=one.name[:TEXT], reason=one.reason[:STATE_TEXT])
            for one in state.conditions[:CONDITIONS]
        ],
    )


class _Room:
    """What the texts of a peer's reporters may weigh together; it holds these."""

    def __init__(self, held: Iterable[ReporterState | None]) -> None:
        self._held = sum(map(_weight, held))

    def take(self, before: ReporterState | None, state: ReporterState | None) -> ReporterState | None:
        """One in place of another: as it is, or without its texts where they would be too many."""
        others = self._held - _weight(before)
        if state is not None and others + _weight(state) > STATES_BYTES:
            words = f"the texts of this host's reporters are left out: more than {STATES_BYTES} characters"
            state = msgspec.structs.replace(state, cause=words, note="", path="", conditions=[])
        self._held = others + _weight(state)
        return state


def _weight(state: ReporterState | None) -> int:
    """Characters of a state's texts; a condition, which is looked at whenever its host is shown, has many."""
    if state is None:
        return 0
    conditions = sum(max(CONDITION, len(one.name) + len(one.reason)) for one in state.conditions)
    return len(state.cause) + len(state.note) + len(state.path) + conditions
