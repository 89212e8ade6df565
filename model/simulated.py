"""Claims that only seem to be made true: how long everything takes, and what goes wrong. A file of rules.

`xce-reporter fleet --claims FILE` reads what becomes of bindings on its hosts, `xce-broker provide FILE` what
becomes of claims at their provider; one file may hold both. The same file, seed and orders give the same
delays and faults everywhere, in whatever order the orders come. Pure.
"""

import random
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, TypeAlias, TypeVar

import msgspec

Moment = Annotated[float, msgspec.Meta(ge=0, le=31 * 86400, title="seconds")]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Delay: TypeAlias = Moment | list[Moment]
"""So many seconds, or any time between the two of a list."""


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong for a while, in words."""

    note: str
    """What is told about it."""
    after_s: Delay = 0
    """How long it takes to begin."""
    for_s: Delay | None = None
    """How long it lasts; for good, if nothing is said."""

    def __post_init__(self) -> None:
        _check(self.after_s, self.for_s)
        if not self.note:
            raise ValueError("a note must say what is wrong")


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A host that is not heard any more, without a goodbye. What it has goes on meanwhile."""

    after_s: Delay = 0
    """How long after a binding was begun."""
    for_s: Delay | None = None
    """How long it is away; for good, if nothing is said."""
    reboot: bool = False
    """It comes back started anew: nothing is ready that was, everything is prepared once more."""

    def __post_init__(self) -> None:
        _check(self.after_s, self.for_s)


class BindingRule(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the bindings that it takes. The first rule of a file that takes one decides."""

    hosts: list[str] = []
    """Shell-style patterns of names; none: all."""
    claims: list[str] = []
    """The same of claims."""
    consumers: list[str] = []
    """The same of consumers."""
    share: Share = 1
    """Takes this share of the bindings that fit; the others are for the rules below it."""
    answer_s: Delay = 0
    """Until the host says that it has taken an order, of either kind."""
    prepare_s: Delay = 0
    """From then until the binding is ready or has failed."""
    release_s: Delay = 0
    """From the order to release until nothing is left, or from the end of `block`."""
    refuse: Trouble | None = None
    """The host cannot take the order yet: the binding stays pending."""
    fail: str = ""
    """It fails instead of getting ready, with this reason."""
    hang: bool = False
    """It neither gets ready nor fails."""
    degrade: Trouble | None = None
    """Once ready, it is degraded."""
    block: Trouble | None = None
    """It cannot be released."""
    quarantine: str = ""
    """Its instances are given back dirty, with this reason."""
    lose: Loss | None = None
    """Its host is lost."""

    def __post_init__(self) -> None:
        _check(self.answer_s, self.prepare_s, self.release_s)


class ProviderRule(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the claims that it takes, at their provider. The first rule that takes one decides."""

    claims: list[str] = []
    """Shell-style patterns of ids; none: all."""
    owners: list[str] = []
    """The same of owners."""
    share: Share = 1
    """Takes this share of the claims that fit; the others are for the rules below it."""
    answer_s: Delay = 0
    """Until the provider says that it has begun."""
    create_s: Delay = 0
    """From then until the claim is there or has failed."""
    delete_s: Delay = 0
    """From the end of the claim until the provider has let go of it."""
    fail: str = ""
    """It cannot be made, with this reason."""
    hang: bool = False
    """It is neither made nor does it fail."""
    keep: bool = False
    """The provider never lets go of it: an ending claim stays."""
    volume: dict[str, str] = {}
    """What the provider says of it once it is there; `{claim}` stands for its id."""

    def __post_init__(self) -> None:
        _check(self.answer_s, self.create_s, self.delete_s)


class SimulatedClaims(msgspec.Struct, frozen=True, kw_only=True):
    """A file of simulated claims."""

    seed: int = 1
    """Of all that is left to chance."""
    bindings: list[BindingRule] = []
    """What becomes of bindings on hosts; one that no rule takes is ready, and gone, at once."""
    claims: list[ProviderRule] = []
    """What becomes of claims at their provider; one that no rule takes is there, and gone, at once."""


R = TypeVar("R", BindingRule, ProviderRule)


def chance_of(seed: int, *what: object) -> random.Random:
    """Chance for one thing, the same whatever else happens before."""
    return random.Random("\0".join(map(str, (seed, *what))))  # noqa: S311 - repeatable on purpose


def draw(delay: Delay, chance: random.Random) -> float:
    """Seconds."""
    return chance.uniform(delay[0], delay[1]) if isinstance(delay, list) else delay


def first(rules: Sequence[R], names: Mapping[str, str], chance: random.Random) -> R | None:
    """The first rule that takes something; `names` has by a rule's key what its patterns must fit."""
    for rule in rules:
        fits = all(not (wanted := getattr(rule, key)) or _fits(name, wanted) for key, name in names.items())
        if fits and (rule.share == 1 or chance.random() < rule.share):
            return rule
    return None


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check(*delays: Delay | None) -> None:
    for delay in delays:
        if isinstance(delay, list) and (len(delay) != 2 or delay[0] > delay[1]):
            raise ValueError("a time is a number of seconds, or two of them: [shortest, longest]")
