"""A book that a test writes in: the smallest thing that an agent's core can speak for."""

from xce.model.instance import Inventory, InventoryRef, reference
from xce.model.message import FeedTick, ReporterState
from xce.model.resource import ResourceType, types_digest
from xce.model.value import Reading, digest


class Pad:
    """Values by reporter; what was put since it was last taken is told."""

    def __init__(self) -> None:
        self.cold = False
        self.feeds: dict[str, dict[str, Reading]] = {}
        self.states: dict[str, ReporterState] = {}
        self.inventories: dict[str, Inventory] = {}
        self.types: list[ResourceType] = []
        self.declared: dict[str, list[ResourceType]] = {}
        self.asked = False
        self._values: dict[str, dict[str, Reading | None]] = {}
        self._states: dict[str, ReporterState | None] = {}
        self._inventories: list[Inventory | str] = []

    def put(self, reporter: str, **values: Reading | None) -> None:
        self.states.setdefault(reporter, ReporterState(state="waiting"))
        feed = self.feeds.setdefault(reporter, {})
        for name, reading in values.items():
            if reading is None:
                feed.pop(name, None)
            else:
                feed[name] = reading
        self._values.setdefault(reporter, {}).update(values)

    def state(self, reporter: str, state: ReporterState | None) -> None:
        self._states[reporter] = state
        if state is None:
            self.feeds.pop(reporter, None)
            self._values.pop(reporter, None)
            del self.states[reporter]
        else:
            self.states[reporter] = state

    def stock(self, inventory: Inventory) -> None:
        self.inventories[inventory.reporter] = inventory
        self._inventories.append(inventory)

    def pending(self) -> bool:
        return bool(self._values or self._states or self._inventories)

    def take_feeds(self, now: float, *, urgent_s: float) -> list[FeedTick]:
        taken = [FeedTick(reporter, 1, 0, values) for reporter, values in self._values.items()]
        self._values = {}
        return taken

    def take_states(self, *, counters: bool) -> dict[str, ReporterState | None]:
        taken, self._states = self._states, {}
        return taken

    def take_inventories(self) -> list[Inventory | str]:
        taken, self._inventories = self._inventories, []
        return taken

    def take_declared(self) -> dict[str, list[ResourceType]]:
        asked, self.asked = self.asked, True
        return {} if asked else self.declared

    def forget_told(self, now: float) -> None:
        self._values = {}

    def untold_types(self) -> None:
        self.asked = False

    def all_feeds(self, now: float) -> list[FeedTick]:
        return [FeedTick(reporter, 1, 0, dict(values)) for reporter, values in self.feeds.items()]

    def all_states(self) -> dict[str, ReporterState]:
        return self.states

    def inventory(self, reporter: str) -> Inventory | None:
        return self.inventories.get(reporter)

    def references(self) -> dict[str, InventoryRef]:
        return {name: reference(inventory) for name, inventory in self.inventories.items()}

    def ages_ms(self, now: float) -> dict[str, int]:
        return dict.fromkeys(self.feeds, 0)

    def digest(self) -> str:
        return digest(self.feeds)

    def types_digest(self) -> str:
        return types_digest(self.types)
