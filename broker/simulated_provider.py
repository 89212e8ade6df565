"""A provider that only seems to make what is claimed, with the delays and faults of a file. Pure.

It is shown each claim of its own whenever that changes, and says what is to be told to the broker, and when.
It keeps nothing on disk: after a restart it goes by what the broker shows.
"""

import heapq
from random import Random
from typing import NamedTuple

import msgspec

from xce.model.claim import BindingState, Claim, Condition
from xce.model.message import ClaimView
from xce.model.simulated import Delay, ProviderRule, SimulatedClaims, chance_of, draw, first

NEVER = float("inf")
READY, FAILED, RELEASED = BindingState.READY, BindingState.FAILED, BindingState.RELEASED


class Word(NamedTuple):
    """What the broker is to be told of a claim."""

    claim: str
    state: BindingState
    reason: str = ""
    volume: dict[str, str] = {}


class _Held(msgspec.Struct):
    """One claim of ours."""

    rule: ProviderRule
    chance: Random
    ending: bool = False
    """It is to go: what was planned for its making is void."""


class SimulatedProvider:
    """All claims of one provider."""

    def __init__(self, file: SimulatedClaims) -> None:
        self._file = file
        self._held: dict[str, _Held] = {}
        self._plans: list[tuple[float, int, Word]] = []
        self._planned = 0

    def see(self, name: str, view: ClaimView | None, now: float, *, bound: bool) -> None:
        """A claim is like this now; None: it is gone. `bound`: somebody has it on a host."""
        if view is None:
            self._held.pop(name, None)
            return
        ending = Condition.ENDING.value in view.conditions and not bound
        held = self._held.get(name)
        if held is None:
            held = self._held[name] = self._new(view.claim)
            if not ending and not bound and view.state not in {READY, FAILED}:
                self._make(name, held, now)
        if ending and not held.ending:
            held.ending = True
            if not held.rule.keep:
                self._plan(now, held.rule.delete_s, held, Word(name, RELEASED))

    def due(self) -> float:
        """When `take` would give something."""
        return self._plans[0][0] if self._plans else NEVER

    def take(self, now: float) -> list[Word]:
        """What is to be told now."""
        words = []
        while self._plans and self._plans[0][0] <= now:
            word = heapq.heappop(self._plans)[2]
            held = self._held.get(word.claim)
            if held is not None and held.ending == (word.state is RELEASED):
                words.append(word)
        return words

    def again(self, word: Word, when: float) -> None:
        """It could not be told: it is to be told then."""
        self._planned += 1
        heapq.heappush(self._plans, (when, self._planned, word))

    def _new(self, claim: Claim) -> _Held:
        chance = chance_of(self._file.seed, claim.provider, claim.id)
        names = {"claims": claim.id, "owners": claim.owner}
        return _Held(first(self._file.claims, names, chance) or ProviderRule(), chance)

    def _make(self, name: str, held: _Held, now: float) -> None:
        rule = held.rule
        begun = self._plan(now, rule.answer_s, held, Word(name, BindingState.PREPARING))
        if rule.fail:
            self._plan(begun, rule.create_s, held, Word(name, FAILED, rule.fail))
        elif not rule.hang:
            volume = {key: text.replace("{claim}", name) for key, text in rule.volume.items()}
            self._plan(begun, rule.create_s, held, Word(name, READY, volume=volume))

    def _plan(self, now: float, delay: Delay, held: _Held, word: Word) -> float:
        when = now + draw(delay, held.chance)
        self.again(word, when)
        return when
