"""What is known of one place right now: its view as controllers see it, and where each part of it came from.

Volatile, and plain data: `supply.py` is the only place that changes views, `intake.py` feeds, `hosts.py`
lifecycles.
"""

import math
import zlib
from typing import Any

import msgspec

from xce.broker.core.peer import Peer
from xce.model.claim import Quarantine
from xce.model.instance import InventoryRef
from xce.model.message import ReporterState, Standing
from xce.model.supply import Hold, HostState, LocationKind, PoolAmount, Source, SupplyState
from xce.model.value import Absent, Reading

NEVER = math.inf
_LEVEL = 1

Bounds = tuple[float, float]
"""Smallest and largest value that needs no closer look."""


def packed(body: bytes) -> bytes:
    """An inventory's bytes as they are kept."""
    return zlib.compress(body, _LEVEL)


def unpacked(kept: bytes) -> bytes:
    """An inventory's bytes as they were."""
    return zlib.decompress(kept)


Readings = dict[str, Reading | None]
"""New readings of one location by name; None: withdrawn."""


class View(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`message.LocationView`, alive: it is encoded as it stands. The same fields in the same order."""

    source: Source
    state: str
    conditions: list[str] = []
    holds: list[Hold] = []
    groups: list[str] = []
    values: dict[str, Reading] = {}
    reporters: dict[str, ReporterState] = {}
    inventories: dict[str, InventoryRef] = {}
    amounts: dict[str, PoolAmount] = {}
    about: dict[str, str] = {}
    origins: dict[str, str] = {}
    ages_ms: dict[str, int] = {}
    quarantined: dict[str, Quarantine] = {}


class Feed:
    """The readings of one reporter at one location; their freshness is its own."""

    __slots__ = ("born", "names", "plain", "refused", "reporter", "run", "shared", "state")

    def __init__(self, reporter: str) -> None:
        self.reporter = reporter
        self.run = 0
        self.born = 0.0
        """Monotonic time of its last good frame, in seconds."""
        self.shared = False
        """`names` is other feeds' too: copy it before a change."""
        self.names: dict[str, Bounds | None] = {}
        """Names that it owns here. The bounds let a number pass at once; None: look closely."""
        self.plain: frozenset[str] | None = None
        """Those of `names` that hold a number now and may hold any plain one; None: to be found out."""
        self.refused: dict[str, tuple[Reading, str]] = {}
        """What it reported and the broker does not take, and why."""
        self.state: ReporterState | None = None

    def refusals(self) -> dict[str, str]:
        """Of that, what people should know: a name that is not given any more is an absence, and no news."""
        return {name: words for name, (held, words) in self.refused.items() if is_given(held, words)}


def is_given(refused: Reading, words: str) -> bool:
    """Whether a reading that is refused with these words is more than the lack of one."""
    return not isinstance(refused, Absent) or refused.cause == words


class Location:
    """A group, pool or storage, and the part of a host that is like them."""

    __slots__ = (
        "bodies",
        "deadline",
        "dirty",
        "expires",
        "feeds",
        "key",
        "kind",
        "name",
        "news",
        "overlay",
        "packed",
        "pending",
        "static",
        "text",
        "values",
        "view",
    )

    def __init__(self, kind: LocationKind, name: str, key: str, source: Source, state: str) -> None:
        self.kind, self.name, self.key = kind, name, key
        self.view = View(source=source, state=state)
        self.values = self.view.values
        """The view's own dict."""
        self.feeds: dict[str, Feed] = {}
        self.static: dict[str, Reading] = {}
        """From the configuration; no reporter can replace them."""
        self.overlay: dict[str, Reading] = {}
        """What was reported of names whose time is over; the view holds their absence."""
        self.bodies: dict[str, bytes] = {}
        """Inventories in MessagePack, compressed (`packed`), by reporter: they are large, and seldom asked
        for.
        """
        self.expires = 0.0
        """Nothing here turns stale before this moment; it may be later."""
        self.deadline = NEVER
        """Of a host: when it counts as silent."""
        self.packed: bytes | None = None
        """Key and view in MessagePack, as they stand in a snapshot; None: not needed since it changed."""
        self.text: bytes | None = None
        """The same in JSON."""
        self.dirty = False
        """Changed in this turn."""
        self.pending: Readings | None = None
        """Values that changed in this turn; `values` itself when a report had them all."""
        self.news: dict[str, Any] | None = None
        """Everything else that changed in this turn, as fields of `LocationChange`; empty when that is only
        that a value was withdrawn.
        """


class Host(Location):
    """A host and its agent's link."""

    __slots__ = (
        "agent",
        "epoch",
        "join_by",
        "newest",
        "nonce",
        "overdue",
        "peer",
        "quiet_s",
        "rejoining",
        "rival",
        "rival_until",
        "silent",
        "state",
        "synced",
        "told",
        "where",
    )

    def __init__(self, name: str, key: str, source: Source) -> None:
        super().__init__(LocationKind.HOST, name, key, source, HostState.EXPECTED.value)
        self.state = HostState.EXPECTED
        self.peer: Peer | None = None
        """The connection of its agent; None when there is none, as far as we know."""
        self.nonce = ""
        """Of the agent's process."""
        self.agent: dict[str, str] = {}
        """What its hello said: software, machine_id, boot_id, claims (yes or no)."""
        self.epoch = 0
        """The newest reign whose orders its node has seen, as its hello said."""
        self.newest = 0
        """The highest number of a binding that its node has known, as its hello said."""
        self.where = ""
        """Host name and pid, as its hello said, and the address that we see."""
        self.quiet_s = NEVER
        """Silence after which it counts as gone."""
        self.synced = False
        """Its whole table has been taken since its hello."""
        self.silent = False
        self.rejoining = False
        """Known from before the broker's start and not confirmed yet."""
        self.overdue = False
        """It should have joined by now."""
        self.join_by = NEVER
        self.rival = ""
        """Where a second agent of this name is."""
        self.rival_until = 0.0
        self.told: Standing | None = None
        """What its agent knows of how it stands."""


SUPPLY_AVAILABLE = SupplyState.AVAILABLE.value
