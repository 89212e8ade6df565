"""Claims and the nodes: orders to agents, what agents say, and what is settled when one of them was away.

Orders leave once they are durable, and again until the node has taken them: a node that has one already
changes nothing. Reports become facts, judged against everything that is on its way to the disk; the same
report twice is none. Whoever comes back says a digest of what it has; only if it differs from what the
broker has, everything is said, and each side learns what only the other one knew of.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec

from xce.broker.core import gang
from xce.broker.core.claim_orders import ended_with, release_all
from xce.broker.core.claim_views import NOTE, ClaimViews, unheard
from xce.broker.core.effect import Effect, Send
from xce.broker.core.location import Host, unpacked
from xce.broker.core.peer import Peer
from xce.broker.core.state import State
from xce.broker.core.strays import Strays
from xce.model import fact as facts
from xce.model import message as m
from xce.model.claim import (
    ENDED,
    LIST,
    PORTS,
    TEXT,
    Binding,
    BindingState,
    after_report,
    holdings_digest,
)
from xce.model.instance import Instance, Inventory

WAITING = 10_000
"""Facts of nodes wait for the disk behind so many others at most."""
AGAIN_S = 10.0
"""An order that a node has not taken is given again so long after."""
DECODED = 256
"""Inventories that are kept as instances: a choice looks into one."""
UNKNOWN = "unknown"
_UNREADY = frozenset({BindingState.PENDING, BindingState.PREPARING})
_GOING = ENDED | {BindingState.RELEASING}
_decode = msgspec.msgpack.Decoder(Inventory).decode


class Claims:
    """Serves nodes in all that is about claims."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.views = ClaimViews(state.journal.ledger, state.supply)
        self.strays = Strays(state)
        self._verified: dict[str, dict[str, m.BindingReport]] = {}
        """Gang to its bindings that are ready on their nodes, and not yet as a gang."""
        self._owed: dict[str, float] = {}
        """Bindings whose node has not taken the last order, and when it is given again."""
        self._standing: dict[str, set[str]] = {}
        """Host to bindings that its agent is to be told of at the end of the turn."""
        self._late: dict[str, float] = {}
        """Bindings that must be ready by some time."""
        self._decoded: OrderedDict[tuple[str, str], tuple[bytes, dict[str, Instance]]] = OrderedDict()

    def start(self, now: float) -> None:
        """Take up what the ledger has. Times count anew: wall time is never compared."""
        self.views.build()
        for host in self.state.journal.ledger.claims.of_host:
            for binding in self.state.journal.ledger.claims.on(host):
                self._watch_time(binding, now)
        for host, kept in self.state.journal.ledger.claims.quarantine.items():
            for instance in kept:
                self._show_quarantine(host, instance)

    # ---------------------------------------------------------------------------------------- asked by orders

    def settled(self, host: str) -> bool:
        """Whether a host's agent has said which bindings it has."""
        return self.views.settled(host)

    def inventory(self, host: Host, reporter: str) -> Mapping[str, Instance]:
        """The instances of a host's reporter, by id."""
        body = host.bodies.get(reporter)
        if body is None:
            return {}
        key = host.name, reporter
        kept = self._decoded.get(key)
        if kept is None or kept[0] is not body:
            instances = {one.id: one for one in _decode(unpacked(body)).instances}
            kept = self._decoded[key] = body, instances
            if len(self._decoded) > DECODED:
                self._decoded.popitem(last=False)
        return kept[1]

    # ----------------------------------------------------------------------------------------- facts

    def fact(self, change: facts.Change, now: float) -> None:
        """Show a durable change, and order what it asks of a node."""
        match change:
            case facts.ClaimCreated():
                self.views.touch(change.claim.id, ())
            case facts.ClaimDeleted():
                self.views.touch_forgotten(change.claim)
            case facts.ClaimProvided() | facts.ClaimEnding():
                self.views.touch(change.claim, ())
                self._tell_words(change, now)
            case facts.BindingMade():
                self._moved(change.binding.id, now)
                self._watch_time(change.binding, now)
            case facts.BindingMoved():
                self._moved(change.binding, now)
            case facts.GangReady():
                for member in change.members:
                    self._moved(member.binding, now)
            case facts.InstanceQuarantined():
                self._show_quarantine(change.host, change.quarantine.instance.id)
            case facts.QuarantineCleared():
                self._show_quarantine(change.host, change.instance)
            case _:
                pass

    def _moved(self, binding_id: str, now: float) -> None:
        """A binding is durably in another state: its followers and its node are told."""
        binding = self.state.journal.ledger.claims.bindings.get(binding_id)
        if binding is None:  # it has ended, and its claim with it
            for kept in (self._owed, self._late):
                kept.pop(binding_id, None)
            if (view := self.views.bindings.get(binding_id)) is not None:
                self._standing.setdefault(view.binding.host, set()).add(binding_id)
                self._unverified(view.binding)
            return
        self.views.touch(binding.claim, [binding_id])
        if binding.state not in _UNREADY:
            self._late.pop(binding_id, None)
            self._unverified(binding)
        if binding.state in ENDED:
            self.views.touch_forgotten(binding.claim)
            self._owed.pop(binding_id, None)
        if binding_id in self.state.journal.ledger.claims.given_up.get(binding.host, ()):
            self.strays.take_back(binding.host, binding_id, binding.op_id, binding.reason)
            return
        if binding.state is BindingState.PENDING or binding.state is BindingState.RELEASING:
            self._order(binding, now)
            return
        self._standing.setdefault(binding.host, set()).add(binding_id)

    def _tell_words(self, change: facts.ClaimProvided | facts.ClaimEnding, now: float) -> None:
        """What a provider says of a claim goes to the nodes that have it: a volume may have grown."""
        if isinstance(change, facts.ClaimProvided) and change.volume:
            for binding in self.state.journal.ledger.claims.live(change.claim):
                if binding.state is not BindingState.RELEASING:
                    self._order(binding, now)

    def _show_quarantine(self, host: str, instance: str) -> None:
        kept = self.state.journal.ledger.claims.quarantine.get(host, {}).get(instance)
        place = self.state.supply.hosts.get(host)
        if place is not None and (kept is not None or instance in place.view.quarantined):
            self.state.supply.set_entry(place, "quarantined", instance, kept)

    # ---------------------------------------------------------------------------------------- orders

    def _order(self, binding: Binding, now: float) -> None:
        """Order a node to do what a binding needs, now and again until it has taken it."""
        self._owed[binding.id] = now + AGAIN_S
        host = self.state.supply.hosts.get(binding.host)
        if host is None or host.peer is None:
            return
        self.state.send(host.peer, self._order_of(binding))

    def _order_of(self, binding: Binding) -> m.BindingPrepare | m.BindingRelease:
        epoch, releasing = self.state.epoch_for(binding.host), binding.state is BindingState.RELEASING
        prepare = None
        if not releasing or not self.views.settled(binding.host):
            record = self.state.journal.ledger.claims.claims[binding.claim]
            prepare = m.BindingPrepare(
                epoch=epoch, op_id=binding.op_id, binding=binding, claim=record.claim, volume=record.volume
            )
        if prepare is not None and not releasing:
            return prepare
        return m.BindingRelease(
            epoch=epoch, op_id=binding.op_id, binding=binding.id, reason=binding.reason, was=prepare
        )

    def second(self, now: float) -> None:
        """Orders that were not taken, and bindings that are not ready in time."""
        ledger = self.state.journal.ledger.claims
        for binding_id in [one for one, due in self._owed.items() if due < now]:
            if (binding := ledger.bindings.get(binding_id)) is None:
                del self._owed[binding_id]
            else:
                self._order(binding, now)
        late = [one for one, due in self._late.items() if due < now]
        if late:
            draft = self.state.journal.draft.claims
            wanted = [draft.bindings[one] for one in late if one in draft.bindings]
            self._persist(release_all(draft, wanted, "not ready in time"))
            self._late |= dict.fromkeys(late, now + AGAIN_S)  # until it is durable

    def _watch_time(self, binding: Binding, now: float) -> None:
        was = self.state.journal.ledger.claims.was_ready(binding)
        if binding.ready_within_s and binding.state in _UNREADY and not was:
            self._late[binding.id] = now + binding.ready_within_s

    # --------------------------------------------------------------------------------------- reports

    def hello(self, host: Host, digest: str | None) -> bool:
        """An agent has come (back) and says what it has; True: it is to say all of it."""
        held = self.state.journal.ledger.claims.on(host.name)
        agrees = digest == holdings_digest((one.id, one.state) for one in held)
        self.views.settle(host.name, settled=agrees)
        self.views.touch_host(host.name)
        if agrees:
            self.strays.settle(host, {})
            self._persist(self.strays.gone(host, {}))
        return digest is not None and not agrees

    def host_changed(self, host: Host) -> None:
        """How a host stands has changed. Of one that is not heard, nothing that it said holds any more."""
        self.views.touch_host(host.name)
        if unheard(host):
            self.views.settle(host.name, settled=False)
            for binding in self.state.journal.ledger.claims.on(host.name):
                self._unverified(binding)

    def news(self, peer: Peer, news: m.BindingNews, now: float) -> None:
        """What a node says of its bindings. What cannot be recorded now, it says again."""
        host = peer.host
        if host is None or len(news.reports) > LIST:
            self.state.counts["refused.bindings"] += 1
            return
        heard = self._standing.setdefault(host.name, set())
        unknown: dict[str, m.BindingReport] = {}
        for name, report in news.reports.items():
            binding = self.state.journal.draft.claims.bindings.get(name)
            if name in self.state.journal.draft.claims.given_up.get(host.name, ()):
                changes = self.strays.given_up(host, name, report)
            elif binding is None or binding.host != host.name:
                unknown[name[:TEXT]] = report
                changes = self.strays.unknown(host, name[:TEXT], report)
            else:
                changes = self._report(binding, report, host, now)
            if not changes:
                heard.add(name[:TEXT])
            else:  # it is told once this is durable
                told = [Send(peer, m.BindingStanding(bindings={name: UNKNOWN}))] if binding is None else []
                self._persist(changes, by=peer.title, told=told)
        if news.full:
            self._missing(host, news.reports, now, by=peer.title)
            self._persist(self.strays.gone(host, news.reports), by=peer.title)
            self.strays.settle(host, unknown)
            self.views.settle(host.name, settled=True)
        elif unknown:
            self.strays.settle(host, {**self.strays.known.get(host.name, {}), **unknown})

    def _report(
        self, binding: Binding, report: m.BindingReport, host: Host, now: float
    ) -> list[facts.Change]:
        """The facts that one report gives; none, when it is no news."""
        draft = self.state.journal.draft.claims
        if binding.state in ENDED:
            if report.state not in ENDED:
                self.strays.take_back(
                    host.name, binding.id, binding.op_id, "the broker has no use for it any more"
                )
            return self._dirty(binding, report, host)
        self.views.said[binding.id] = report
        self.views.touch(binding.claim, [binding.id])
        if binding.state is BindingState.RELEASING and report.state not in _GOING:
            self._order(binding, now)  # it has not heard of the release
            return []
        if report.wants_words and binding.state is not BindingState.RELEASING:
            self._order(binding, now)
        elif report.state is not BindingState.PENDING:
            self._owed.pop(binding.id, None)
        following = after_report(binding.state, report.state)
        if binding.gang and binding.state in _UNREADY and following is BindingState.READY:
            self._verified.setdefault(binding.gang, {})[binding.id] = msgspec.structs.replace(
                report,
                reason=report.reason[:NOTE],
                evidence=report.evidence[:TEXT],
                ports=self._ports(binding, report),
            )
            ready = gang.ready(draft, binding, self._verified[binding.gang])
            if ready or binding.state is BindingState.PREPARING:
                return list(ready)
            following = BindingState.PREPARING
        else:
            self._unverified(binding)
        dirty = self._dirty(binding, report, host)
        if following is binding.state:
            return dirty
        clean = self._clean(binding, report, host) if following in ENDED else []
        return [*self._step(binding, following, report), *dirty, *clean]

    def _unverified(self, binding: Binding) -> None:
        """What its node verified of a binding does not hold, or does not matter, any more."""
        verified = self._verified.get(binding.gang)
        if verified is not None and verified.pop(binding.id, None) is not None and not verified:
            del self._verified[binding.gang]

    def _step(self, binding: Binding, following: BindingState, report: m.BindingReport) -> list[facts.Change]:
        """A binding's next state, and what follows for its gang and its claim."""
        draft = self.state.journal.draft.claims
        ready = following is BindingState.READY
        releasing = following is BindingState.RELEASING
        reason = report.reason[:NOTE] or (binding.reason if following is BindingState.RELEASED else "")
        moved = facts.BindingMoved(
            binding=binding.id,
            state=following,
            reason=reason,
            evidence=report.evidence[:TEXT] if ready else binding.evidence if releasing else "",
            ports=self._ports(binding, report) if ready else {} if following in ENDED else binding.ports,
        )
        changes: list[facts.Change] = [moved]
        if (following in ENDED or releasing) and binding.state is not BindingState.RELEASING:
            changes += gang.fallen(draft, binding, reason or following.value)
        if following in ENDED:
            changes += ended_with(draft, binding.claim, without=[binding.id])
        return changes

    def _ports(self, binding: Binding, report: m.BindingReport) -> dict[str, list[int]]:
        """The picked ports that the claim asks for."""
        asked = self.state.journal.draft.claims.claims[binding.claim].claim.ask.ports
        return {one.name: report.ports[one.name][:PORTS] for one in asked if one.name in report.ports}

    def _dirty(self, binding: Binding, report: m.BindingReport, host: Host) -> list[facts.Change]:
        """Instances that a node has given back in a state in which nobody may use them."""
        if report.state not in _GOING or not report.quarantine:
            return []
        kept = self.state.journal.draft.claims.quarantine.get(host.name, {})
        return [
            self.strays.quarantined(
                host, chosen, why=report.quarantine[chosen.id], by=f"agent:{host.name}", binding=binding.id
            )
            for chosen in binding.instances
            if chosen.id in report.quarantine and chosen.id not in kept
        ]

    def _clean(self, binding: Binding, report: m.BindingReport, host: Host) -> list[facts.Change]:
        """What the node called dirty while it released, and does not any more."""
        kept = self.state.journal.draft.claims.quarantine.get(host.name, {})
        return [
            facts.QuarantineCleared(host=host.name, instance=name, reason="its node found it clean")
            for name, one in kept.items()
            if one.binding == binding.id and one.by == f"agent:{host.name}" and name not in report.quarantine
        ]

    def _missing(self, host: Host, reports: Mapping[str, m.BindingReport], now: float, *, by: str) -> None:
        """Bindings that the broker has and the node does not: it is told again, and nothing is ready that
        is not there.
        """
        for binding in self.state.journal.draft.claims.on(host.name):
            if binding.id in reports:
                continue
            if binding.state is BindingState.READY:
                gone = m.BindingReport(
                    state=BindingState.PREPARING, reason="its node has nothing of it any more"
                )
                self._persist(self._step(binding, BindingState.PREPARING, gone), by=by)
            if (known := self.state.journal.ledger.claims.bindings.get(binding.id)) is not None:
                self._order(known, now)

    # ------------------------------------------------------------------------------------------ ends

    def turn(self) -> None:
        """Tell agents what has become durable of what they said."""
        if not self._standing:
            return
        told, self._standing = self._standing, {}
        for name, bindings in told.items():
            host = self.state.supply.hosts.get(name)
            if host is None or host.peer is None:
                continue
            known = self.state.journal.ledger.claims.bindings
            states = {
                one: known[one].state.value if one in known and known[one].host == name else UNKNOWN
                for one in sorted(bindings)
            }
            self.state.send(host.peer, m.BindingStanding(bindings=states))

    def _persist(self, changes: Sequence[facts.Change], *, by: str = "", told: Sequence[Effect] = ()) -> None:
        journal = self.state.journal
        if changes and not journal.fault and len(journal) < WAITING:  # else the node says it again
            self.state.out.append(self.state.journal.persist(changes, by=by, told=told))
