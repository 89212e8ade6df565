"""Thousands of agents in one process: the agent's own link and protocol, each with a fixed table behind it.

    python -m bench.fleet FLEET

Prints a line when all are synced for the first time, and serves until it is ended. Each agent has its own
socket, so its keys, handshakes, reconnects and delays are those of a real one.
"""

import random
import sys
import time
from pathlib import Path

import msgspec

from bench import product
from bench.children import say
from bench.job import reports
from bench.job.floor import CONTEXT
from xce.agent.core import Core, Identity
from xce.agent.effect import Effect, Learn
from xce.agent.link import Link
from xce.linux.loop import Loop
from xce.model.instance import Inventory, InventoryRef, reference
from xce.model.link import Phase
from xce.model.message import FeedTick, ReporterState
from xce.model.resource import ResourceType, types_digest
from xce.model.value import Reading, digest
from xce.wire import keys

_LOOK_S = 0.2
_BEAT_S = 0.02
_SOCKETS_EACH = 4
"""The link's, and two of its monitor; some of those that were closed count for a moment more."""


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Which agents, and where they belong."""

    endpoint: str
    keys: str = ""
    """Directory of `product.Broker.keys`; '' for no CURVE."""
    first: int = 0
    agents: int
    values: int = 20
    instances: int = 0
    changing_s: float = 0
    """For so long, four values of each agent change about once a second."""


class Table:
    """`xce.agent.book.Book` with readings that change only when they are told to, and never age."""

    cold = False

    def __init__(self, host: int, fleet: Fleet) -> None:
        indices, site = reports.values(host, 0, fleet.values)
        self._indices: dict[str, Reading] = {**indices}
        self._site: dict[str, Reading] = {**site}
        self._changed: dict[str, Reading | None] = {}
        self._types = ""
        self._feeds = [
            FeedTick(reports.BUILTIN, 1, 0, dict(indices)),
            FeedTick(reports.SITE_REPORTER, 1, 0, dict(site)),
        ]
        self._digest = self._whole()
        self._host, self._instances = host, fleet.instances
        self._reference = reference(reports.inventory(host, fleet.instances)) if fleet.instances else None

    def change(self) -> None:
        """Give four values new numbers."""
        for name in list(self._site)[:4]:
            self._site[name] = self._changed[name] = random.randrange(1 << 30)
        self._feeds[1] = FeedTick(reports.SITE_REPORTER, 1, 0, dict(self._site))
        self._digest = self._whole()

    def _whole(self) -> str:
        return digest({reports.BUILTIN: self._indices, reports.SITE_REPORTER: self._site})

    def pending(self) -> bool:
        return bool(self._changed)

    def take_feeds(self, now: float, *, urgent_s: float) -> list[FeedTick]:
        changed, self._changed = self._changed, {}
        return [FeedTick(reports.SITE_REPORTER, 1, 0, changed)] if changed else []

    def take_states(self, *, counters: bool) -> dict[str, ReporterState | None]:
        return {}

    def take_inventories(self) -> list[Inventory | str]:
        return []

    def take_declared(self) -> dict[str, list[ResourceType]]:
        return {}

    def forget_told(self, now: float) -> None:
        self._changed = {}

    def untold_types(self) -> None:
        """None are declared."""

    def all_feeds(self, now: float) -> list[FeedTick]:
        return self._feeds

    def all_states(self) -> dict[str, ReporterState]:
        return reports.STATES

    def inventory(self, reporter: str) -> Inventory | None:
        return reports.inventory(self._host, self._instances) if self._reference else None

    def references(self) -> dict[str, InventoryRef]:
        return {reports.DEVICES: self._reference} if self._reference else {}

    def ages_ms(self, now: float) -> dict[str, int]:
        return {feed.reporter: 0 for feed in self._feeds}

    def digest(self) -> str:
        return self._digest

    def types_digest(self) -> str:
        return self._types

    def hear(self, effect: Effect) -> None:
        """Remember the cluster's types, as agents do."""
        if isinstance(effect, Learn):
            self._types = types_digest(effect.types)


class _Agents:
    """All agents of a fleet on one loop."""

    def __init__(self, fleet: Fleet) -> None:
        own = broker = None
        if fleet.keys:
            directory = Path(fleet.keys)
            own = keys.load(directory / f"{product.AGENT_KEY}.key", secret=True)
            broker = keys.load(directory / f"{product.BROKER_KEY}.pub", secret=False).public
        self.loop = Loop()
        self._cores: list[Core] = []
        self._links: list[tuple[Table, Link]] = []
        for host in range(fleet.first, fleet.first + fleet.agents):
            table = Table(host, fleet)
            core = _core(host, table)
            link = Link(
                self.loop,
                core,
                endpoint=fleet.endpoint,
                credentials=lambda: (own, broker),
                on_effect=table.hear,
                every_turn=False,
            )
            self._cores.append(core)
            self._links.append((table, link))
            link.turn()
        self._changing_s = fleet.changing_s
        self._await()

    def _await(self) -> None:
        """Say so when all are synced."""
        if any(core.phase is not Phase.SYNCED for core in self._cores):
            self.loop.call_later(_LOOK_S, self._await)
            return
        say(synced=len(self._cores))
        self._change(self.loop.now() + self._changing_s)

    def _change(self, end: float) -> None:
        """Change some, on a beat."""
        if self.loop.now() < end:
            for table, link in random.sample(self._links, max(1, int(len(self._links) * _BEAT_S))):
                table.change()
                link.turn()
            self.loop.call_later(_BEAT_S, self._change, end)


def run(fleet: Fleet) -> None:
    """Start all agents at once, as after a power cut, and serve them for ever."""
    CONTEXT.max_sockets = fleet.agents * _SOCKETS_EACH + 16
    _Agents(fleet).loop.run()


def _core(host: int, table: Table) -> Core:
    name = reports.host_name(host)
    identity = Identity(
        role="agent",
        name=name,
        software="bench",
        machine_id=f"{host:032x}",
        boot_id=f"{host:032x}",
        nonce=f"{host:016x}",
        address=f"{name} pid 1",
    )
    return Core(identity, table, now=time.monotonic(), random=random.uniform)


if __name__ == "__main__":
    run(msgspec.json.decode(sys.argv[1], type=Fleet))
