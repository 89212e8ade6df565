"""Resource types: the descriptor that every resource has, and the check of a value against it.

The cluster's `resources.yaml` declares types; a reporter's NAME.yaml may declare new ones. Both become
`ResourceType`, which cannot be constructed wrong: `ValueError` says what would be right.
"""

import math
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import msgspec

from xce.model.value import Value, digest_of, is_finite

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*")
NAME_BYTES = 63
STRING_BYTES = 1024
SET_ITEMS = 1024
SET_ITEM_BYTES = 256
STEP_TOLERANCE = 1e-9


class Kind(StrEnum):
    """What a value of the type looks like."""

    NUMERIC = "numeric"
    """An integer of 64 bits or a finite number."""
    BOOLEAN = "boolean"
    """true or false."""
    STRING = "string"
    """Text of at most 1024 bytes, without control characters."""
    STRING_SET = "string-set"
    """At most 1024 texts of at most 256 bytes; order and repeats do not matter."""


class Order(StrEnum):
    """Which end of a numeric is better: LSF's INCREASING says that a larger value means more load."""

    NONE = "none"
    """No order."""
    INCREASING = "increasing"
    """A larger value means more load."""
    DECREASING = "decreasing"
    """A smaller value means more load."""


class Scope(StrEnum):
    """Where a value of the type belongs."""

    HOST = "host"
    """One host; reported on it."""
    HOST_GROUP = "host-group"
    """A group of hosts as a whole."""
    POOL = "pool"
    """A pool."""
    EXTERNAL = "external"
    """Something outside the cluster, a licence server for example."""


class Layer(StrEnum):
    """How a resource behaves: L1 matched, L2 counted, L3 identified or with a lifecycle."""

    ATTRIBUTE = "attribute"
    """Matched, not used up."""
    COUNTER = "counter"
    """Counted."""
    INSTANCE = "instance"
    """Identified units, or a lifecycle."""


class Instances(StrEnum):
    """Whether units are counted or known one by one."""

    COUNTED = "counted"
    """One unit is as good as the next."""
    IDENTIFIED = "identified"
    """Each unit has a name of its own."""


class WhenStale(StrEnum):
    """What a controller does with a value whose time is over."""

    UNKNOWN = "unknown"
    """A predicate on it is false, with its own reason."""
    EXCLUDE = "exclude"
    """The location is not chosen for requests that name the resource."""
    HOLD_LAST = "hold-last"
    """The last good value (`Absent.last`) is used as if it were fresh."""


_TEXTS = {"description": 500, "unit": 63, "reporter": 253, "provider": 253}
"""Characters: all types go to every agent and controller in one message."""

Seconds = Annotated[float, msgspec.Meta(ge=0.01, le=31 * 86400, title="seconds")]


class ResourceType(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The descriptor of one resource."""

    name: str
    """Letters, digits and _, not starting with a digit; parts may be joined by a dot."""
    kind: Kind
    """What a value looks like."""
    description: str = ""
    """For people."""
    unit: str = ""
    """Of numbers: `GB`, `KB/s`; for people."""
    order: Order = Order.NONE
    """Which end of a number is better."""
    consumable: bool = False
    """Whether a job takes its part away from it while it runs; numbers only."""
    scope: Scope = Scope.HOST
    """Where a value belongs."""
    reporter: str = ""
    """'' anybody · 'static' only hosts.yaml · 'builtin' · a reporter's name · pools: an identity."""
    interval: Seconds | None = None
    """Seconds between two readings; wins over the reporter's own setting."""
    ttl: Seconds | None = None
    """Seconds after which a reading is stale, no fewer than `interval`; default: the reporter's interval +
    timeout."""
    layer: Layer = Layer.ATTRIBUTE
    """How it behaves."""
    instances: Instances = Instances.COUNTED
    """Whether units are counted or known one by one."""
    provider: str = ""
    """Who carries out a lifecycle on it (claims); '' for nobody."""
    minimum: float | None = None
    """A smaller number is refused."""
    maximum: float | None = None
    """A larger number is refused."""
    max_step: float | None = None
    """Largest believable change between two readings in a row."""
    when_stale: WhenStale = WhenStale.UNKNOWN
    """What a controller does once its time is over."""

    def __post_init__(self) -> None:
        if problem := name_problem(self.name):
            raise ValueError(f"name {self.name!r}: {problem}")
        self._check_texts()
        limits = (self.minimum, self.maximum, self.max_step)
        if not all(limit is None or math.isfinite(limit) for limit in limits):
            raise ValueError(f"{self.name}: minimum, maximum and max_step must be finite")
        if self.kind is not Kind.NUMERIC:
            if any(limit is not None for limit in limits):
                raise ValueError(f"{self.name}: minimum, maximum and max_step are for numeric types only")
            if self.consumable:
                raise ValueError(f"{self.name}: only a numeric type can be consumable")
            if self.order is not Order.NONE:
                raise ValueError(f"{self.name}: only a numeric type has an order")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError(f"{self.name}: minimum {self.minimum:g} is above maximum {self.maximum:g}")
        if self.max_step is not None and self.max_step <= 0:
            raise ValueError(f"{self.name}: max_step must be above 0")

    def _check_texts(self) -> None:
        for key, limit in _TEXTS.items():
            text: str = getattr(self, key)
            if len(text) > limit:
                raise ValueError(f"{self.name}: {key} has {len(text)} characters, more than {limit}")


def ttl_problem(kind: ResourceType, otherwise: float | None) -> str:
    """'' if readings live until the next one comes, else what is wrong with `ttl`.

    `otherwise`: the interval of a type that has none. A file is refused for it, and no message or fact: other
    versions have let it pass.
    """
    interval = kind.interval if kind.interval is not None else otherwise
    if kind.ttl is None or interval is None or kind.ttl >= interval:
        return ""
    return f"is less than the interval: a value would be stale before the next one; give {interval:g} or more"


def types_digest(types: Iterable[ResourceType]) -> str:
    """16 hex digits over a set of types, whatever their order: what `Hello.types` compares."""
    ordered = sorted(types, key=lambda kind: kind.name)
    return digest_of([msgspec.to_builtins(kind) for kind in ordered])


def name_problem(name: str) -> str:
    """'' if `name` can name a resource, otherwise what is wrong with it."""
    if not name:
        return "is empty"
    if len(name) > NAME_BYTES:
        return f"is longer than {NAME_BYTES} characters"
    if name[0] == "\ufeff":
        return "starts with a byte-order mark"
    if not NAME.fullmatch(name):
        return "letters, digits and _ only, not starting with a digit; parts may be joined by a dot"
    return ""


def value_problem(resource: ResourceType, value: object, previous: Value | None = None) -> str:
    """'' if `value` is of the type's kind and within its physics, otherwise the reason for refusing it.

    `value` is what a JSON or MessagePack parser gave; `previous` the last good value, for `max_step`.
    A string-set must be a list of strings; order and repeats are the caller's to normalise (`normalise`).
    """
    check = _CHECKS[resource.kind]
    return check(resource, value, previous)


def normalise(resource: ResourceType, value: Value) -> Value:
    """The one form in which a value that passed `value_problem` is kept: sets sorted, without repeats."""
    return sorted(set(value)) if resource.kind is Kind.STRING_SET and isinstance(value, list) else value


def _numeric(resource: ResourceType, value: object, previous: Value | None) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"expected a number, got {_what(value)}"
    if not is_finite(value):
        return "not a finite 64-bit number"
    if resource.minimum is not None and value < resource.minimum:
        return f"below the minimum {resource.minimum:g}"
    if resource.maximum is not None and value > resource.maximum:
        return f"above the maximum {resource.maximum:g}"
    if resource.max_step is not None and isinstance(previous, int | float):
        step = abs(value - previous)
        if step > resource.max_step * (1 + STEP_TOLERANCE):
            return f"changed by {step:g} at once, more than max_step {resource.max_step:g}"
    return ""


def _boolean(_resource: ResourceType, value: object, _previous: Value | None) -> str:
    return "" if isinstance(value, bool) else f"expected true or false, got {_what(value)}"


def _string(_resource: ResourceType, value: object, _previous: Value | None) -> str:
    if not isinstance(value, str):
        return f"expected a string, got {_what(value)}"
    return _text_problem(value, STRING_BYTES)


def _string_set(_resource: ResourceType, value: object, _previous: Value | None) -> str:
    if not isinstance(value, list):
        return f"expected a list of strings, got {_what(value)}"
    if len(value) > SET_ITEMS:
        return f"{len(value)} items, more than {SET_ITEMS}"
    for item in value:
        if not isinstance(item, str):
            return f"expected a list of strings, found {_what(item)} in it"
        if problem := _text_problem(item, SET_ITEM_BYTES) or ("an empty item" if not item else ""):
            return problem
    return ""


def _text_problem(text: str, limit: int) -> str:
    if len(text.encode(errors="surrogatepass")) > limit:
        return f"longer than {limit} bytes"
    if not text.isprintable():
        return "holds a control or invisible character"
    return ""


def _what(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"


_CHECKS = {Kind.NUMERIC: _numeric, Kind.BOOLEAN: _boolean, Kind.STRING: _string, Kind.STRING_SET: _string_set}
