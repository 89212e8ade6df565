"""Claims, bindings and quarantine as the facts left them; the part of the ledger that `ledger.py` keeps here.

Records are frozen and replaced whole. Beside them stands what is asked all the time: which bindings a claim,
a host and a gang have, and in which states. Nothing here judges; a fact about something
that is not there changes nothing.
"""

from typing import Any, TypeVar

import msgspec

from xce.model import fact as facts
from xce.model.claim import (
    ENDED,
    Binding,
    BindingState,
    Chosen,
    Claim,
    Quarantine,
    binding_number,
    claim_state,
)

ENDED_KEPT = 16
"""Bindings of a claim that have ended and are remembered, for people; the oldest are forgotten, and those
that failed last.
"""

K = TypeVar("K")
T = TypeVar("T")


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A claim, and what has become of it beside its bindings."""

    claim: Claim
    by: str = ""
    provided: BindingState = BindingState.READY
    reason: str = ""
    volume: dict[str, str] = {}
    ending: bool = False


class ClaimLedger(msgspec.Struct, kw_only=True):
    """Everything durable about claims."""

    claims: dict[str, ClaimRecord] = {}
    bindings: dict[str, Binding] = {}
    quarantine: dict[str, dict[str, Quarantine]] = {}
    """Host to instance."""
    given_up: dict[str, dict[str, None]] = {}
    """Host to bindings whose release was forced: the node is to take them back when it returns."""
    stood: dict[str, None] = {}
    """Gangs that were ready as a whole, and bindings alone, whatever came of them since; while known."""
    of_claim: dict[str, dict[str, None]] = {}
    """Claim to its bindings, the oldest first."""
    ended_of: dict[str, dict[str, None]] = {}
    """Claim to its bindings that have ended, the oldest end first."""
    of_host: dict[str, dict[str, None]] = {}
    """Host to its live bindings."""
    of_gang: dict[str, dict[str, None]] = {}
    """Gang to its bindings, as long as one of them is known."""
    states_of: dict[str, dict[BindingState, int]] = {}
    """Claim or gang to how many of its known bindings are in each state."""
    newest: int = 0
    """The highest number of a binding."""

    def copy(self) -> "ClaimLedger":
        """An equal ledger that shares only frozen records."""
        return ClaimLedger(
            claims=dict(self.claims),
            bindings=dict(self.bindings),
            quarantine=_copied(self.quarantine),
            given_up=_copied(self.given_up),
            stood=dict(self.stood),
            of_claim=_copied(self.of_claim),
            ended_of=_copied(self.ended_of),
            of_host=_copied(self.of_host),
            of_gang=_copied(self.of_gang),
            states_of=_copied(self.states_of),
            newest=self.newest,
        )

    def bare(self) -> "ClaimLedger":
        """What cannot be worked out from the rest; `work_out` does that."""
        return ClaimLedger(
            claims=self.claims,
            bindings=self.bindings,
            quarantine=self.quarantine,
            given_up=self.given_up,
            stood=self.stood,
            newest=self.newest,
        )

    def work_out(self) -> None:
        """All that stands beside the records, of a bare ledger."""
        for binding in self.bindings.values():
            self._index(binding)
        ended = (one for one in self.bindings.values() if one.state in ENDED)
        for binding in sorted(ended, key=lambda one: one.revision):
            _remove(self.of_host, binding.host, binding.id)
            self.ended_of.setdefault(binding.claim, {})[binding.id] = None

    # ---------------------------------------------------------------------------------------- reading

    def live(self, claim: str) -> list[Binding]:
        """Bindings of a claim that have not ended."""
        names = self.of_claim.get(claim, ())
        return [one for name in names if (one := self.bindings[name]).state not in ENDED]

    def all_of(self, claim: str) -> list[Binding]:
        """All known bindings of a claim."""
        return [self.bindings[one] for one in self.of_claim.get(claim, ())]

    def members(self, gang: str) -> list[Binding]:
        """All known bindings of a gang."""
        return [self.bindings[one] for one in self.of_gang.get(gang, ())]

    def on(self, host: str) -> list[Binding]:
        """Live bindings of a host."""
        return [self.bindings[one] for one in self.of_host.get(host, ())]

    def state(self, claim: str) -> BindingState:
        """A claim's state."""
        record = self.claims[claim]
        states = self.states_of.get(f"claim:{claim}", ())
        return claim_state(record.claim.form, record.provided, states)

    def count(self, gang: str, *states: BindingState) -> int:
        """How many bindings of a gang are in one of these states."""
        counts = self.states_of.get(f"gang:{gang}", {})
        return sum(counts.get(state, 0) for state in states)

    def was_ready(self, binding: Binding) -> bool:
        """Whether it was ready at some time, with all of its gang."""
        return (binding.gang or binding.id) in self.stood

    def _counted(self, binding: Binding, change: int) -> None:
        """One binding more or less in its state."""
        keys = [f"claim:{binding.claim}", *([f"gang:{binding.gang}"] if binding.gang else [])]
        for key in keys:
            counts = self.states_of.setdefault(key, {})
            counts[binding.state] = counts.get(binding.state, 0) + change
            if not counts[binding.state]:
                _remove(self.states_of, key, binding.state)

    def held(self, host: str) -> list[tuple[Chosen, str]]:
        """What may not be chosen on a host, each with why: instances of live bindings, and quarantined."""
        found = [
            (chosen, f"binding {one.id} of claim {one.claim} has it ({one.state.value})")
            for one in self.on(host)
            for chosen in one.instances
        ]
        found += [
            (kept.instance, f"it is quarantined: {kept.reason}")
            for kept in self.quarantine.get(host, {}).values()
        ]
        return found

    # ----------------------------------------------------------------------------------------- facts

    def take(self, change: object, *, by: str, revision: int) -> None:  # noqa: C901 - one short arm for each
        """Take one change, if it is about claims."""
        match change:
            case facts.ClaimCreated():
                provided = BindingState.PENDING if change.claim.provider else BindingState.READY
                self.claims[change.claim.id] = ClaimRecord(claim=change.claim, by=by, provided=provided)
            case facts.ClaimDeleted():
                self.claims.pop(change.claim, None)
                for binding in list(self.of_claim.get(change.claim, ())):
                    self._forget(binding)
            case facts.ClaimProvided():
                self._claim(change.claim, provided=change.state, reason=change.reason, volume=change.volume)
            case facts.ClaimEnding():
                self._claim(change.claim, ending=True)
            case facts.BindingMade():
                self._made(msgspec.structs.replace(change.binding, revision=revision))
            case facts.BindingMoved():
                self._moved(change, revision)
            case facts.BindingGone():
                _remove(self.given_up, change.host, change.binding)
            case facts.GangReady():
                for member in change.members:
                    self._moved(member, revision)
            case facts.InstanceQuarantined():
                kept = self.quarantine.setdefault(change.host, {})
                kept[change.quarantine.instance.id] = change.quarantine
            case facts.QuarantineCleared():
                _remove(self.quarantine, change.host, change.instance)

    def _claim(self, claim: str, **changes: object) -> None:
        if (record := self.claims.get(claim)) is not None:
            self.claims[claim] = msgspec.structs.replace(record, **changes)

    def _made(self, binding: Binding) -> None:
        self._forget(binding.id)
        self.bindings[binding.id] = binding
        self._index(binding)
        if binding.state in ENDED:
            self._ended(binding)

    def _index(self, binding: Binding) -> None:
        self.newest = max(self.newest, binding_number(binding.id))
        self._counted(binding, 1)
        self.of_claim.setdefault(binding.claim, {})[binding.id] = None
        if binding.gang:
            self.of_gang.setdefault(binding.gang, {})[binding.id] = None
        self._stands(binding)
        self.of_host.setdefault(binding.host, {})[binding.id] = None

    def _stands(self, binding: Binding) -> None:
        """The members of a gang become ready together: one that is ready says it of all."""
        if binding.state is BindingState.READY:
            self.stood[binding.gang or binding.id] = None

    def _moved(self, change: facts.BindingMoved, revision: int) -> None:
        before = self.bindings.get(change.binding)
        if before is None or before.state in ENDED:
            return
        after = self.bindings[before.id] = msgspec.structs.replace(
            before,
            state=change.state,
            reason=change.reason,
            evidence=change.evidence,
            ports=change.ports,
            revision=revision,
        )
        self._counted(before, -1)
        self._counted(after, 1)
        self._stands(after)
        if change.forced:
            self.given_up.setdefault(before.host, {})[before.id] = None
        if change.state in ENDED:
            self._ended(after)

    def _ended(self, binding: Binding) -> None:
        """Its instances are free, unless they are quarantined; of many that have ended few are kept."""
        _remove(self.of_host, binding.host, binding.id)
        ended = self.ended_of.setdefault(binding.claim, {})
        ended[binding.id] = None
        if len(ended) > ENDED_KEPT:
            released = (one for one in ended if self.bindings[one].state is BindingState.RELEASED)
            self._forget(next(released, next(iter(ended))))

    def _forget(self, binding_id: str) -> None:
        binding = self.bindings.pop(binding_id, None)
        if binding is None:
            return
        self._counted(binding, -1)
        _remove(self.of_host, binding.host, binding_id)
        _remove(self.of_claim, binding.claim, binding_id)
        _remove(self.ended_of, binding.claim, binding_id)
        _remove(self.of_gang, binding.gang, binding_id)
        self.stood.pop(binding_id, None)
        if binding.gang not in self.of_gang:
            self.stood.pop(binding.gang, None)


def _copied(table: dict[str, dict[K, T]]) -> dict[str, dict[K, T]]:
    return {key: dict(inner) for key, inner in table.items()}


def _remove(table: dict[str, dict[K, Any]], outer: str, inner: K) -> None:
    """Take an entry out of a table of tables, and the table with its last entry."""
    entries = table.get(outer)
    if entries is not None and entries.pop(inner, _remove) is not _remove and not entries:
        del table[outer]
