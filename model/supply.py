"""Supply: where things are, who put them there, and whether they may be used.

A *location* is a host, a host group, a pool or a storage. A *supply entry* is a resource at a location; its
source and state are those of the location, its amount is the reading. A host's availability is its state and
the absence of holds: every hold has an owner, and only its owner or an admin takes it away.
"""

import re
from enum import StrEnum

import msgspec

from xce.model.transition import Machine

NAME_BYTES = 253
_is_name = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{NAME_BYTES - 1}}}").fullmatch


class LocationKind(StrEnum):
    """What sort of place a location is."""

    HOST = "host"
    GROUP = "group"
    POOL = "pool"
    STORAGE = "storage"


_LOCATION_KINDS = frozenset(kind.value for kind in LocationKind)


def location(kind: LocationKind, name: str) -> str:
    """The key of a location, as it stands in messages and commands: `host:node17`, `pool:matlab`."""
    return f"{kind.value}:{name}"


def split_location(key: str) -> tuple[LocationKind, str]:
    """The kind and name of a location key; raises ValueError that says what would be right."""
    kind, colon, name = key.partition(":")
    if not colon or kind not in _LOCATION_KINDS or name_problem(name):
        raise ValueError(f"location {key!r}: expected host:NAME, group:NAME, pool:NAME or storage:NAME")
    return LocationKind(kind), name


def name_problem(name: str) -> str:
    """'' if `name` can name a host, group, pool or storage, otherwise what is wrong with it."""
    if _is_name(name):
        return ""
    if not name or len(name) > NAME_BYTES:
        return f"must have 1 to {NAME_BYTES} characters"
    return "letters, digits, '.', '_' and '-' only, starting with a letter, digit or '_'"


class Source(StrEnum):
    """Who decided that a location should exist."""

    CONFIG = "config"
    REPORTER = "reporter"
    PROVISIONER = "provisioner"
    DISCOVERED = "discovered"


class SupplyState(StrEnum):
    """The state of a group, pool or storage."""

    REQUESTED = "requested"
    AVAILABLE = "available"
    DRAINING = "draining"
    RELEASING = "releasing"


class HostState(StrEnum):
    """The lifecycle of a host. Down is not drained: `lost` and `draining` never stand for each other."""

    EXPECTED = "expected"
    """It should exist; its agent has not connected (yet, or since its drain ended)."""
    JOINING = "joining"
    """Its agent has connected; its whole table is on the way."""
    AVAILABLE = "available"
    """Its agent is heard and its values are known. It may be chosen unless a hold says no."""
    DRAINING = "draining"
    """An admin wants it empty; nothing new is placed on it."""
    RELEASED = "released"
    """It should no longer exist; its agent is refused."""
    LOST = "lost"
    """It was there and is not heard any more; what was claimed on it stays claimed."""


class HostEvent(StrEnum):
    """What moves a host through its lifecycle."""

    HELLO = "hello"
    """Its agent has connected and proved who it is."""
    SYNCED = "synced"
    """The agent's whole table has been taken."""
    SILENT = "silent"
    """Nothing heard for the documented number of heartbeats."""
    DRAIN = "drain"
    """An admin drains it."""
    UNDRAIN = "undrain"
    """The drain is over."""
    RELEASE = "release"
    """It should go for good."""
    EXPECT = "expect"
    """It is wanted (again)."""


_H, _E = HostState, HostEvent
HOST = Machine(
    "host",
    HostState.EXPECTED,
    {
        (_H.EXPECTED, _E.HELLO): _H.JOINING,
        (_H.EXPECTED, _E.SILENT): _H.EXPECTED,
        (_H.EXPECTED, _E.DRAIN): _H.DRAINING,
        (_H.EXPECTED, _E.RELEASE): _H.RELEASED,
        (_H.JOINING, _E.HELLO): _H.JOINING,
        (_H.JOINING, _E.SYNCED): _H.AVAILABLE,
        (_H.JOINING, _E.SILENT): _H.LOST,
        (_H.JOINING, _E.DRAIN): _H.DRAINING,
        (_H.JOINING, _E.RELEASE): _H.RELEASED,
        (_H.AVAILABLE, _E.HELLO): _H.JOINING,
        (_H.AVAILABLE, _E.SYNCED): _H.AVAILABLE,
        (_H.AVAILABLE, _E.SILENT): _H.LOST,
        (_H.AVAILABLE, _E.DRAIN): _H.DRAINING,
        (_H.AVAILABLE, _E.RELEASE): _H.RELEASED,
        # A draining host stays draining whatever its connection does; `silent` is a condition beside it.
        (_H.DRAINING, _E.HELLO): _H.DRAINING,
        (_H.DRAINING, _E.SYNCED): _H.DRAINING,
        (_H.DRAINING, _E.SILENT): _H.DRAINING,
        (_H.DRAINING, _E.DRAIN): _H.DRAINING,
        (_H.DRAINING, _E.UNDRAIN): _H.EXPECTED,
        (_H.DRAINING, _E.RELEASE): _H.RELEASED,
        (_H.LOST, _E.HELLO): _H.JOINING,
        (_H.LOST, _E.SILENT): _H.LOST,
        (_H.LOST, _E.DRAIN): _H.DRAINING,
        (_H.LOST, _E.RELEASE): _H.RELEASED,
        (_H.RELEASED, _E.EXPECT): _H.EXPECTED,
        (_H.RELEASED, _E.SILENT): _H.RELEASED,
    },
    final=frozenset(),
)


class Condition(StrEnum):
    """What a person should know about a host beside its state."""

    REJOINING = "rejoining"
    """Known from before the broker's start; its agent has not confirmed yet."""
    SILENT = "silent"
    NEVER_JOINED = "never-joined"
    """Expected, and its join deadline is over."""
    UNKNOWN_HOST = "unknown-host"
    """Joined, and nobody expects it: waits for `xce-broker host admit`."""
    DUPLICATE = "duplicate"
    """A second agent claims this name and is being refused."""


class HoldEnds(StrEnum):
    """Who ends a hold, apart from an admin."""

    MANUAL = "manual"
    OWNER = "owner"
    """The automatic code that placed it, once its cause is gone."""


class Hold(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One reason why a location may not be chosen."""

    owner: str
    """`admin:alice`, `reporter:node_health`: automatic code releases only its own."""
    reason: str
    ends: HoldEnds = HoldEnds.MANUAL
    since: str = ""
    """Wall time, ISO 8601, only for showing."""


class PoolAmount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much of a resource a pool has: its own, and what it has borrowed."""

    base: float = 0
    """Its own."""
    borrowed: float = 0
    """On loan from elsewhere, on top."""
