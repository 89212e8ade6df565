"""What the parts of the core share: one bag of state, and the list where effects gather."""

from collections import Counter
from collections.abc import Callable

from xce.broker.core.changes import Changes
from xce.broker.core.effect import CutOff, Effect, Note, Send
from xce.broker.core.external import Externals
from xce.broker.core.freshness import Freshness
from xce.broker.core.hosts import Hosts
from xce.broker.core.intake import Intake
from xce.broker.core.journal import Journal
from xce.broker.core.peer import Peer
from xce.broker.core.reports import Reports
from xce.broker.core.snapshots import Snapshots
from xce.broker.core.supply import SupplyMap
from xce.broker.core.types import Types
from xce.model.configuration import BrokerFile, Discovered
from xce.model.message import Refused
from xce.model.site import Site

RETURNS_PER_S = 60
"""Agents that come back in a second, about: a part of what the broker can welcome, since all else goes on."""
SHORTEST_SPREAD_S, LONGEST_SPREAD_S = 0.5, 8.0
SCOLD_S = 1.0
"""A peer is told at most this often that it does something wrong."""
REFUSALS, REFUSALS_PER_S = 100, 1.0
"""Lines of the audit that one key may cause by what it may not order: at once, and on."""


class State:
    """Everything the broker knows. No part of it does anything by itself."""

    def __init__(
        self,
        config: BrokerFile,
        site: Site,
        journal: Journal,
        *,
        epoch: int,
        incarnation: str,
        wall: Callable[[], str],
    ) -> None:
        self.config, self.site, self.journal, self.wall = config, site, journal, wall
        self.next_key = ""
        """The public key that the broker will have soon: `Questions.announce`."""
        self.spread_ms = 0
        """What agents are told of their return: `count_hosts`."""
        self.supply = SupplyMap()
        self.types = Types(site.types, journal.ledger.types)
        self.intake = Intake(self.supply, self.types)
        self.freshness = Freshness(self.supply, self.types)
        self.reports = Reports(self.supply, self.intake, self.freshness)
        self.externals = Externals(self.supply, self.intake, self.freshness)
        self.hosts = Hosts(self.supply, journal.ledger, site, admit=config.discovered is Discovered.ADMIT)
        self.changes = Changes(epoch, incarnation, keep=config.keep_deltas)
        self.snapshots = Snapshots(self.supply)
        self.peers: dict[Peer, None] = {}
        self._of_key: dict[str, dict[Peer, None]] = {}
        """The same by key, the oldest first."""
        self.counts: Counter[str] = Counter()
        self._refusals: dict[str, float] = {}
        """By key, the time at which all lines that its refusals have caused are paid for."""
        self.out: list[Effect] = []
        """Effects of the call that is being handled."""

    def use(self, types: Types) -> None:
        """Judge by these types from now on."""
        self.types = self.intake.types = self.freshness.types = types
        self.reports.forget_types()

    def epoch_for(self, host: str) -> int:
        """Of an order for a node: its own reign's, or what the node has seen of one that this store lacks."""
        place = self.supply.hosts.get(host)
        return max(self.changes.epoch, place.epoch if place is not None else 0)

    def count_hosts(self) -> None:
        """Find out over how long the agents of so many hosts spread their return."""
        spread_s = len(self.supply.hosts) / RETURNS_PER_S
        self.spread_ms = int(1000 * min(max(spread_s, SHORTEST_SPREAD_S), LONGEST_SPREAD_S))

    def send(self, peer: Peer, document: object) -> None:
        """Send a document to a peer."""
        self.out.append(Send(peer, document))  # type: ignore[arg-type]

    def note(self, text: str, *, fault: bool, host: str = "") -> None:
        """Tell the log of the begin (`fault`) or the end of something."""
        self.out.append(Note(text, fault, host))

    def refuse(self, peer: Peer, code: str, message: str, *, hint: str = "", retry_s: float = 10) -> None:
        """Refuse a peer, and count it."""
        self.counts[f"refused.{code}"] += 1
        self.send(peer, Refused(code=code, message=message, hint=hint, retry_s=retry_s))

    def enter(self, peer: Peer) -> None:
        """A peer is there."""
        self.peers[peer] = None
        self._of_key.setdefault(peer.key, {})[peer] = None

    def leave(self, peer: Peer) -> None:
        """A peer is not there any more."""
        self.peers.pop(peer, None)
        if (others := self._of_key.get(peer.key)) is not None:
            others.pop(peer, None)
            if not others:
                del self._of_key[peer.key]

    def too_many(self, key: str, most: int) -> Peer | None:
        """The oldest peer of a key that has `most`."""
        others = self._of_key.get(key, ())
        return next(iter(others)) if len(others) >= most else None

    def cut(self, peer: Peer) -> None:
        """End a peer's connection. What it says from now on is not heard, and nothing more is sent to it."""
        peer.cut, peer.allowed = True, frozenset()
        self.leave(peer)
        self.changes.gone(peer)
        self.snapshots.gone(peer)
        self.out.append(CutOff(peer))

    def may_record_refusal(self, peer: Peer, now: float) -> bool:
        """Whether the audit has a line for one more: nobody who may order nothing fills its disk."""
        paid = max(now, self._refusals.get(peer.key, now))
        if paid - now >= REFUSALS / REFUSALS_PER_S:
            self.counts["audit.left_out"] += 1
            return False
        self._refusals[peer.key] = paid + 1 / REFUSALS_PER_S
        return True

    def scold(self, peer: Peer, now: float) -> bool:
        """Whether a peer may be told now that it does something wrong."""
        if now - peer.scolded < SCOLD_S and peer.scolded:
            return False
        peer.scolded = now
        return True
