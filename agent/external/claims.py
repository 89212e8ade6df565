"""The claims of one simulated host: orders in, reports out, with the delays and faults of a file. Pure.

It keeps the rules of a node (docs/agent-link.md): an order that comes again changes nothing, what has ended
is never begun again, a release of something unknown is answered. Its journal is this object: a fleet that is
started anew has hosts that have lost theirs.
"""

import heapq
import random
from collections.abc import Callable, Hashable
from typing import TypeAlias, TypeVar

import msgspec

from xce.agent.holdings import Holdings
from xce.model.claim import BindingState, Condition, PortsAsk
from xce.model.message import BindingPrepare, BindingRelease, BindingReport
from xce.model.profile import ClaimPorts
from xce.model.simulated import BindingRule, Delay, Loss, SimulatedClaims, Trouble, chance_of, draw, first
from xce.model.value import digest_of

KEPT = 1000
"""So many bindings that have ended are remembered, and so many consumers that were seen."""
NEVER = float("inf")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Held(msgspec.Struct):
    """One binding here."""

    order: BindingPrepare
    rule: BindingRule
    chance: random.Random
    state: BindingState = BindingState.PENDING
    ports: dict[str, list[int]] = {}
    act: int = 0
    """Grows with each order and reboot: what was planned before is void then."""


Do: TypeAlias = Callable[[str, _Held, float], None]


class HostClaims:
    """All of one host. `holdings` is what its link says; `lose` takes a loss of the host and its length."""

    def __init__(self, host: str, file: SimulatedClaims, lose: Callable[[Loss, float], None]) -> None:
        self.holdings = Holdings()
        self.holdings.serving = True
        self._host, self._file, self._lose_host = host, file, lose
        self._held: dict[str, _Held] = {}
        self._ended: dict[str, BindingReport] = {}
        self._seen: dict[tuple[str, str], int] = {}
        """How often a claim was bound here for a consumer."""
        self._plans: list[tuple[float, int, str, int | None, Do]] = []
        """When, in which order, what for, in which act (None: in any), and what."""
        self._planned = 0

    # --------------------------------------------------------------------------------------------- orders

    def ordered(self, order: BindingPrepare | BindingRelease, now: float) -> None:
        """The broker has given an order."""
        name = order.binding if isinstance(order, BindingRelease) else order.binding.id
        held = self._held.get(name)
        if (report := self._ended.get(name)) is not None:
            self.holdings.report(name, report)
        elif isinstance(order, BindingPrepare) and held is None:
            self._prepare(name, order, now)
        elif isinstance(order, BindingRelease) and (held is None or held.state is not BindingState.RELEASING):
            self._release(name, held, now)
        elif (report := self.holdings.reports.get(name)) is not None:
            self.holdings.report(name, report)
        self.advance(now)

    def _prepare(self, name: str, order: BindingPrepare, now: float) -> None:
        binding = order.binding
        who = binding.claim, binding.consumer.name
        times = self._seen.get(who, 0)
        _keep(self._seen, who, times + 1)
        chance = chance_of(self._file.seed, self._host, *who, times)
        names = {"hosts": self._host, "claims": binding.claim, "consumers": binding.consumer.name}
        rule = first(self._file.bindings, names, chance) or BindingRule()
        held = self._held[name] = _Held(order, rule, chance)
        if rule.refuse is None:
            self._plan(rule.answer_s, name, held, now, self._begin)
        else:
            self._plan(rule.refuse.after_s, name, held, now, self._refuse)

    def _release(self, name: str, held: _Held | None, now: float) -> None:
        if held is None:
            self._end(name, BindingReport(state=BindingState.RELEASED))
        else:
            held.act += 1
            held.state = BindingState.RELEASING
            self._plan(held.rule.answer_s, name, held, now, self._let_go)

    # ------------------------------------------------------------------------------------- what is planned

    def due(self) -> float:
        """When `advance` has something to do; `NEVER` if nothing is planned."""
        return self._plans[0][0] if self._plans else NEVER

    def advance(self, now: float) -> None:
        """Do what is due."""
        while self._plans and self._plans[0][0] <= now:
            when, _number, name, act, do = heapq.heappop(self._plans)
            held = self._held.get(name)
            if held is not None and act in {held.act, None}:
                do(name, held, when)

    def started_anew(self, now: float) -> None:
        """The machine was rebooted: what was ready or under way is prepared once more."""
        for name, held in self._held.items():
            if held.state in {BindingState.PREPARING, BindingState.READY}:
                held.act += 1
                held.state, held.ports = BindingState.PREPARING, {}
                self._say(name, held, reason="the host was started anew")
                self._work(name, held, now)
        self.advance(now)

    def _plan(self, delay: Delay, name: str, held: _Held, now: float, do: Do) -> None:
        self._planned += 1
        when = now + draw(delay, held.chance)
        act = None if do == self._lose else held.act  # the host goes, whatever was ordered since
        heapq.heappush(self._plans, (when, self._planned, name, act, do))

    def _plan_end(self, trouble: Trouble, name: str, held: _Held, now: float, do: Do) -> None:
        if trouble.for_s is not None:
            self._plan(trouble.for_s, name, held, now, do)

    # ---------------------------------------------------------------------------------------- what happens

    def _refuse(self, name: str, held: _Held, now: float) -> None:
        refusal = held.rule.refuse
        assert refusal is not None, "internal error: a binding is refused that has no such rule"
        self._say(name, held, note=refusal.note)
        self._plan_end(refusal, name, held, now, self._begin)

    def _begin(self, name: str, held: _Held, now: float) -> None:
        held.state = BindingState.PREPARING
        self._say(name, held)
        if held.rule.lose is not None:
            self._plan(held.rule.lose.after_s, name, held, now, self._lose)
        self._work(name, held, now)

    def _lose(self, _name: str, held: _Held, _now: float) -> None:
        loss = held.rule.lose
        assert loss is not None, "internal error: a host is lost by a binding that has no such rule"
        self._lose_host(loss, NEVER if loss.for_s is None else draw(loss.for_s, held.chance))

    def _work(self, name: str, held: _Held, now: float) -> None:
        if not held.rule.hang:
            self._plan(held.rule.prepare_s, name, held, now, self._finish)

    def _finish(self, name: str, held: _Held, now: float) -> None:
        problem = held.rule.fail or self._pick_ports(held)
        if problem:
            self._end(name, BindingReport(state=BindingState.FAILED, reason=problem))
            return
        self._stand(name, held, now)
        if held.rule.degrade is not None:
            self._plan(held.rule.degrade.after_s, name, held, now, self._degrade)

    def _stand(self, name: str, held: _Held, _now: float) -> None:
        held.state = BindingState.READY
        self._say(name, held)

    def _degrade(self, name: str, held: _Held, now: float) -> None:
        trouble = held.rule.degrade
        assert trouble is not None, "internal error: a binding is degraded that has no such rule"
        self._say(name, held, condition=Condition.DEGRADED, note=trouble.note)
        self._plan_end(trouble, name, held, now, self._stand)

    def _let_go(self, name: str, held: _Held, now: float) -> None:
        block = held.rule.block
        self._say(name, held)
        if block is None:
            self._unblock(name, held, now)
        else:
            self._plan(block.after_s, name, held, now, self._block)

    def _block(self, name: str, held: _Held, now: float) -> None:
        block = held.rule.block
        assert block is not None, "internal error: a binding is blocked that has no such rule"
        self._say(name, held, condition=Condition.BLOCKED, note=block.note)
        self._plan_end(block, name, held, now, self._unblock)

    def _unblock(self, name: str, held: _Held, now: float) -> None:
        self._say(name, held)
        self._plan(held.rule.release_s, name, held, now, self._gone)

    def _gone(self, name: str, held: _Held, _now: float) -> None:
        self._end(name, BindingReport(state=BindingState.RELEASED, quarantine=_dirty(held)))

    # ---------------------------------------------------------------------------------------- what is said

    def _say(
        self, name: str, held: _Held, *, reason: str = "", note: str = "", condition: Condition | None = None
    ) -> None:
        binding, ready = held.order.binding, held.state is BindingState.READY
        report = BindingReport(
            state=held.state,
            epoch=held.order.epoch,
            reason=reason,
            evidence=digest_of([binding.id, [one.id for one in binding.instances]]) if ready else "",
            ports=held.ports if ready else {},
            conditions=[condition.value] if condition else [],
            note=note,
            instances=binding.instances,
            quarantine=_dirty(held) if held.state is BindingState.RELEASING else {},
        )
        if self.holdings.reports.get(name) != report:
            self.holdings.report(name, report)

    def _end(self, name: str, report: BindingReport) -> None:
        self._held.pop(name, None)
        _keep(self._ended, name, report)
        self.holdings.report(name, report)

    def _pick_ports(self, held: _Held) -> str:
        """Ports that no binding here has; what is wrong, or ''."""
        taken = {port for one in self._held.values() for some in one.ports.values() for port in some}
        for ask in held.order.claim.ask.ports:
            held.ports = {**held.ports, ask.name: _ports(ask, taken)}
            taken.update(held.ports[ask.name])
            if len(held.ports[ask.name]) < (len(ask.exact) or ask.count):
                return f"ports {ask.name}: not so many are free"
        return ""


def _ports(ask: PortsAsk, taken: set[int]) -> list[int]:
    if ask.exact:
        return [port for port in ask.exact if port not in taken]
    low, high = ask.low or ClaimPorts().low, ask.high or ClaimPorts().high
    return [port for port in range(low, high + 1) if port not in taken][: ask.count]


def _dirty(held: _Held) -> dict[str, str]:
    why = held.rule.quarantine
    return {one.id: why for one in held.order.binding.instances} if why else {}


def _keep(kept: dict[K, V], key: K, value: V) -> None:
    """Put something into a map that forgets its oldest."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > KEPT:
        del kept[next(iter(kept))]
