"""Claims and bindings as controllers see them, and which of them have changed in this turn.

What is durable comes from the ledger, the conditions beside it from what nodes say and from how their hosts
stand. Views are frozen and replaced whole: a snapshot that is being sent keeps those of its instant.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from xce.broker.core.ledger import Ledger
from xce.broker.core.location import Host
from xce.broker.core.supply import SupplyMap
from xce.model.claim import ENDED, Binding, Condition
from xce.model.message import BindingReport, BindingView, ClaimView
from xce.model.supply import HostState

FROM_NODE = frozenset({Condition.DEGRADED, Condition.UNDOING, Condition.BLOCKED, Condition.UNCERTAIN})
"""Conditions that a node may report."""
UNSERVED = "its agent serves no claims now: xce-agent status on its host says why"
NOTE = 1024
"""Characters of a note or reason of a node."""

V = TypeVar("V")


class ClaimViews:
    """All views. `touch` what has changed; `take_turn` gives it to the stream."""

    def __init__(self, ledger: Ledger, supply: SupplyMap) -> None:
        self._ledger, self._supply = ledger, supply
        self.claims: dict[str, ClaimView] = {}
        self.bindings: dict[str, BindingView] = {}
        self.said: dict[str, BindingReport] = {}
        """The last report of live bindings."""
        self._settled: set[str] = set()
        """Hosts whose agent has said, on the connection that it has now, which bindings it has."""
        self.claim_states: Counter[str] = Counter()
        self.binding_states: Counter[str] = Counter()
        """How many views are in each state."""
        self.of_claim: dict[str, dict[str, None]] = {}
        """Claim to its bindings that have a view."""
        self._claims: set[str] = set()
        self._bindings: set[str] = set()

    def build(self) -> None:
        """Make the views of all that the ledger has; nobody follows yet."""
        for claim in self._ledger.claims.claims:
            self.touch(claim, self._ledger.claims.of_claim.get(claim, ()))
        self.take_turn()

    # --------------------------------------------------------------------------------------- changes

    def touch(self, claim: str, bindings: Iterable[str]) -> None:
        """A claim has changed, or bindings of it."""
        self._claims.add(claim)
        self._bindings.update(bindings)

    def touch_forgotten(self, claim: str) -> None:
        """Bindings of a claim may have been forgotten."""
        known = self._ledger.claims.bindings
        self.touch(claim, [one for one in self.of_claim.get(claim, ()) if one not in known])

    def touch_host(self, host: str) -> None:
        """How a host stands has changed."""
        for binding in self._ledger.claims.on(host):
            self._bindings.add(binding.id)

    def settled(self, host: str) -> bool:
        """See `settle`."""
        return host in self._settled

    def settle(self, host: str, *, settled: bool) -> None:
        """A host's agent has said which bindings it has, or has gone."""
        if settled != (host in self._settled):
            (self._settled.add if settled else self._settled.discard)(host)

    def changed(self) -> bool:
        """Whether `take_turn` would give something."""
        return bool(self._claims or self._bindings)

    def take_turn(self) -> tuple[dict[str, ClaimView | None], dict[str, BindingView | None]]:
        """Claims and bindings whose view has changed since the last call; None: gone."""
        bindings = _renewed(self.bindings, self._bindings, self._binding, self._index)
        claims = _renewed(self.claims, self._claims, self._claim, self._count_claim)
        self._claims.clear()
        self._bindings.clear()
        return claims, bindings

    def _count_claim(self, old: ClaimView | None, new: ClaimView | None) -> None:
        _count(self.claim_states, old.state if old else "", new.state if new else "")

    def _index(self, old: BindingView | None, new: BindingView | None) -> None:
        _count(
            self.binding_states,
            old.binding.state if old else "",
            new.binding.state if new else "",
        )
        if new is not None:
            self.of_claim.setdefault(new.binding.claim, {})[new.binding.id] = None
        elif old is not None and (kept := self.of_claim.get(old.binding.claim)) is not None:
            kept.pop(old.binding.id, None)
            if not kept:
                del self.of_claim[old.binding.claim]

    # ----------------------------------------------------------------------------------------- views

    def _claim(self, claim: str) -> ClaimView | None:
        ledger = self._ledger.claims
        record = ledger.claims.get(claim)
        if record is None:
            return None
        return ClaimView(
            claim=record.claim,
            state=ledger.state(claim),
            conditions=[Condition.ENDING.value] if record.ending else [],
            reason=record.reason,
            volume=record.volume,
            by=record.by,
        )

    def _binding(self, binding_id: str) -> BindingView | None:
        binding = self._ledger.claims.bindings.get(binding_id)
        if binding is None:
            self.said.pop(binding_id, None)
            return None
        if binding.state in ENDED:
            self.said.pop(binding_id, None)
            return BindingView(binding=binding)
        said, host = self.said.get(binding_id), self._supply.hosts.get(binding.host)
        note = said.note[:NOTE] if said else ""
        if serves_none(host):
            note = UNSERVED
        return BindingView(binding=binding, conditions=self._conditions(binding, said, host), note=note)

    def _conditions(self, binding: Binding, said: BindingReport | None, host: Host | None) -> list[str]:
        found = {one for one in said.conditions if one in FROM_NODE} if said else set()
        if said is not None and said.state == "ready" and binding.state == "preparing":
            found.add(Condition.VERIFIED.value)
        if unheard(host) or serves_none(host):
            found.add(Condition.UNREACHABLE.value)
        elif binding.host not in self._settled:
            found.add(Condition.REJOINING.value)
        return sorted(found)


def unheard(host: Host | None) -> bool:
    """Whether a host cannot be reached, as far as is known."""
    return host is None or host.silent or host.state in {HostState.LOST, HostState.RELEASED}


def serves_none(host: Host | None) -> bool:
    """Whether a host is heard, and its agent carries no claims out."""
    return host is not None and not unheard(host) and host.agent.get("claims") == "no"


def _count(states: Counter[str], old: str, new: str) -> None:
    """One has gone from a state to another; '': from or to nowhere."""
    if old:
        states[old] -= 1
    if new:
        states[new] += 1


def _renewed(
    views: dict[str, V],
    keys: Iterable[str],
    view_of: Callable[[str], V | None],
    replaced: Callable[[V | None, V | None], None],
) -> dict[str, V | None]:
    """Put new views in the place of the old; what has changed thereby."""
    changed: dict[str, V | None] = {}
    for key in keys:
        old, view = views.get(key), view_of(key)
        if old is view or old == view:
            continue
        changed[key] = view
        if view is None:
            del views[key]
        else:
            views[key] = view
        replaced(old, view)
    return changed
