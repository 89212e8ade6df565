"""What a node holds, as the link sees it: the side of `core.py` that knows about values.

`node.Node` is one in the agent and in simulated hosts; a test may bring another.
"""

from typing import Protocol

from xce.model.instance import Inventory, InventoryRef
from xce.model.message import FeedTick, ReporterState
from xce.model.resource import ResourceType


class Book(Protocol):
    """What a node holds, and what of it has not been told yet. Telling clears; a hello clears all values."""

    cold: bool
    """Just started: what is not in it may only not have been heard yet. Nothing may be withdrawn for that."""

    def pending(self) -> bool:
        """Whether any `take` might give something."""

    def take_feeds(self, now: float, *, urgent_s: float) -> list[FeedTick]:
        """Values that changed since they were last taken, by reporter.

        Also, without values, feeds that were refreshed and whose time to live is shorter than `urgent_s`: the
        broker must not count them as stale before the next heartbeat tells their age.
        """

    def take_states(self, *, counters: bool) -> dict[str, ReporterState | None]:
        """States that changed; None: gone. With `counters` also those of which only a counter moved."""

    def take_inventories(self) -> list[Inventory | str]:
        """Inventories that are new; the reporter's name where one is gone."""

    def take_declared(self) -> dict[str, list[ResourceType]]:
        """Types that the node's NAME.yaml files declare and the broker has not been asked about, by file."""

    def forget_told(self, now: float) -> None:
        """Count everything as told: a hello with the digest of the whole is about to be sent."""

    def untold_types(self) -> None:
        """Count declared types as not told: there is a new broker to ask."""

    def all_feeds(self, now: float) -> list[FeedTick]:
        """The whole table."""

    def all_states(self) -> dict[str, ReporterState]:
        """The state of every reporter."""

    def inventory(self, reporter: str) -> Inventory | None:
        """A reporter's inventory, if it has one."""

    def references(self) -> dict[str, InventoryRef]:
        """References of all inventories."""

    def ages_ms(self, now: float) -> dict[str, int]:
        """Age of each reporter's last good frame."""

    def digest(self) -> str:
        """`model.value.digest` of the whole table as it is told, ages not applied."""

    def types_digest(self) -> str:
        """`model.resource.types_digest` of the cluster's types that the node works by."""
