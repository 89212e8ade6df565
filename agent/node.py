"""What a node knows: readings, reporters' states, inventories, types; and what is untold.

Pure: it starts nothing, and time comes with each call. It is the `Book` that `core.py` speaks for, in the
agent as in simulated hosts.
"""

from collections.abc import Mapping

import msgspec

from xce.agent.memory import Generation
from xce.agent.types import Types
from xce.model.instance import Inventory, InventoryRef, reference
from xce.model.message import FeedTick, ReporterState
from xce.model.resource import ResourceType
from xce.model.value import Absent, Presence
from xce.reporters.inventory import Found
from xce.reporters.table import Table


class Node:
    """`generations`: of inventories that an earlier process told; a number never stands for two of them.

    `cold`: reporters have not been heard yet, and what the broker has is not withdrawn until `warm_up`.
    """

    def __init__(
        self,
        types: Types,
        *,
        generations: Mapping[str, Generation] | None = None,
        cold: bool = False,
    ) -> None:
        self.types, self.cold = types, cold
        self.table = Table(types.in_force)
        self.states: dict[str, ReporterState] = {}
        self.changes = 0
        """Of the states, counted."""
        self.generations = dict(generations or {})
        self._claimed = {name for name, known in self.generations.items() if cold and known.count >= 0}
        """Reporters whose inventory the broker has from an earlier process, and that were not heard yet."""
        self._types_version = types.version
        self._told: dict[str, ReporterState] = {}
        self._gone: set[str] = set()
        self._inventories: dict[str, tuple[Inventory, InventoryRef]] = {}
        self._new_inventories: set[str] = set()
        self._dirty_states = False

    def warm_up(self) -> None:
        """Whoever wanted to be heard has been: what is not known now is not there."""
        self.cold = False
        self.table.settled_in()
        self._new_inventories |= self._claimed
        self._claimed.clear()

    # ----------------------------------------------------------------------------------- what comes in

    def set_state(self, reporter: str, state: ReporterState) -> None:
        """A reporter's state is this now."""
        if state != self.states.get(reporter):
            self.states[reporter] = state
            self.changes += 1
            self._gone.discard(reporter)
            self._dirty_states = True

    def remove(self, reporter: str) -> None:
        """A reporter is gone, with its values and inventory."""
        self.table.remove(reporter)
        self.changes += 1
        if self.states.pop(reporter, None) is not None and reporter in self._told:
            self._gone.add(reporter)
        if self._inventories.pop(reporter, None) is not None:
            self._new_inventories.add(reporter)

    def stock(self, reporter: str, found: Found) -> bool:
        """A reporter's instances; True if they make a new generation, for `generations` to be kept."""
        before, newest = self._inventories.get(reporter), self.generations.get(reporter)
        ref = reference(found.numbered(reporter, 1))
        if before and (before[1].digest, before[1].complete) == (ref.digest, found.complete):
            return False
        mark = f"{ref.digest}{'' if found.complete else ' incomplete'}"
        known = newest is not None and newest.digest == mark
        number = newest.number + (not known) if newest else 1
        inventory = found.numbered(reporter, number)
        self._inventories[reporter] = inventory, msgspec.structs.replace(ref, generation=number)
        self.generations[reporter] = Generation(number, mark, len(found.instances))
        self._claimed.discard(reporter)
        self._new_inventories.add(reporter)
        return not known

    def apply_types(self, now: float) -> bool:
        """Work by the types that are in force now; True if they have changed."""
        if self.types.version == self._types_version:
            return False
        self._types_version = self.types.version
        self.table.set_types(self.types.in_force, now)
        return True

    # ---------------------------------------------------------------------------------- what is told

    def pending(self) -> bool:
        """Whether any `take` might give something."""
        return bool(
            self._dirty_states
            or self._gone
            or self._new_inventories
            or self.table.news
            or (self.types.untold and not self.types.alone)
        )

    def take_feeds(self, now: float, *, urgent_s: float) -> list[FeedTick]:
        """Changed values, and refreshed feeds whose time to live is short.

        While it is cold, never-seen is left out: the broker may have the value, and the whole comes yet.
        """
        feeds = self.table.take_feeds(now, urgent_s=urgent_s)
        return [_seen(feed) for feed in feeds] if self.cold else feeds

    def take_states(self, *, counters: bool) -> dict[str, ReporterState | None]:
        """Changed states; those that changed in a counter alone only with `counters`."""
        news: dict[str, ReporterState | None] = dict.fromkeys(sorted(self._gone))
        for reporter in news:
            self._told.pop(reporter, None)
        self._gone.clear()
        if self._dirty_states or counters:
            for reporter, state in self.states.items():
                told = self._told.get(reporter)
                if told is None or (state != told if counters else _uncounted(state) != _uncounted(told)):
                    news[reporter] = self._told[reporter] = state
        self._dirty_states = False
        return news

    def take_inventories(self) -> list[Inventory | str]:
        """New inventories; the names of reporters that have none any more."""
        news: list[Inventory | str] = []
        for reporter in sorted(self._new_inventories):
            held = self._inventories.get(reporter)
            news.append(held[0] if held else reporter)
        self._new_inventories.clear()
        return news

    def take_declared(self) -> dict[str, list[ResourceType]]:
        """Declared types that the broker is to be asked about."""
        return self.types.take_untold()

    def forget_told(self, now: float) -> None:  # noqa: ARG002 - of `Book`
        """Count all values as told."""
        self.table.forget_told()

    def untold_types(self) -> None:
        """Ask about declared types anew."""
        self.types.ask_again()

    def all_feeds(self, now: float) -> list[FeedTick]:
        """The whole table."""
        return self.table.all_feeds(now)

    def all_states(self) -> dict[str, ReporterState]:
        """Every reporter's state as it is told."""
        return self.states

    def inventory(self, reporter: str) -> Inventory | None:
        """A reporter's inventory."""
        held = self._inventories.get(reporter)
        return held[0] if held else None

    def references(self) -> dict[str, InventoryRef]:
        """References of all inventories."""
        claimed = {reporter: _reference(self.generations[reporter]) for reporter in sorted(self._claimed)}
        return {**claimed, **{reporter: ref for reporter, (_, ref) in self._inventories.items()}}

    def ages_ms(self, now: float) -> dict[str, int]:
        """Age of each reporter's newest good frame."""
        return self.table.ages_ms(now)

    def digest(self) -> str:
        """Of the whole table."""
        return self.table.digest()

    def types_digest(self) -> str:
        """Of the cluster's types."""
        return self.types.digest


def _seen(feed: FeedTick) -> FeedTick:
    values = {
        name: reading
        for name, reading in feed.values.items()
        if not (isinstance(reading, Absent) and reading.presence is Presence.NEVER_SEEN)
    }
    return msgspec.structs.replace(feed, values=values)


def _reference(known: Generation) -> InventoryRef:
    digest, _, incomplete = known.digest.partition(" ")
    return InventoryRef(generation=known.number, complete=not incomplete, count=known.count, digest=digest)


def _uncounted(state: ReporterState) -> ReporterState:
    return msgspec.structs.replace(state, runs=0, failures=0, overruns=0)
