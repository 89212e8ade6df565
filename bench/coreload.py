"""A child that drives the broker's core in process: no socket, no store, only decisions.

    python -m bench.coreload HOSTS

It fills a core with hosts and one watcher, prints a line, and then does one round for each SIGUSR1 (reports
of hosts in random order, 4 of 20 values changed, published each 64) or SIGUSR2 (a snapshot after a tenth of
the hosts have changed), printing what it cost.
"""

import gc
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator

from bench.children import say
from bench.job import reports, xce
from xce.broker.core.effect import Effect, Persist, SendBytes
from xce.broker.core.ledger import Ledger
from xce.broker.core.machine import Broker
from xce.broker.core.peer import Peer
from xce.model.configuration import BrokerFile, Discovered, HostsFile, ResourcesFile
from xce.model.message import (
    Credit,
    FeedTick,
    Position,
    Report,
    SnapshotRequest,
    Tick,
    ToBroker,
    WatchRequest,
)
from xce.model.site import site_of
from xce.wire import codec

_ROUND = 20_000
_BATCH = 64
_CHANGED = reports.SITE[::2]
"""Four names whose values are always floats."""


class Load:
    """A core and its peers; the clock stands still."""

    def __init__(self, hosts: int) -> None:
        config = BrokerFile(discovered=Discovered.ADMIT, max_peers=hosts + 10)
        site = site_of(ResourcesFile(types=reports.types()), HostsFile())
        self.now = time.monotonic()
        self.core = Broker(config, Ledger(), site, incarnation="b", wall=lambda: "", now=self.now)
        self._commit(self.core.start(self.now))
        self._watcher = self._connected(b"watcher")
        self.peers = [self._connected(b"%d" % host) for host in range(hosts)]
        for host, peer in enumerate(self.peers):
            whole = reports.Frame(xce.tick(host, 0, 20, full=True), heads=reports.HEADS).stamp(1, 1)
            for data in (xce.hello(host), bytes(whole), xce.reporters_news()):
                self._say(peer, codec.decode_for_broker(data))
            if host % _BATCH == 0:
                self.core.turn(self.now)
        self.core.turn(self.now)
        self.sequence = [1] * hosts
        self._say(self._watcher, WatchRequest(id="w", since=self._position(), credit=1 << 20))
        gc.collect()
        gc.freeze()

    def ingest(self) -> float:
        """Microseconds of CPU per report."""
        wire = list(self._reports(random.choices(range(len(self.peers)), k=_ROUND)))
        handle, turn, decode, now = self.core.handle, self.core.turn, codec.decode_for_broker, self.now
        start = time.thread_time()
        for number, (peer, data) in enumerate(wire):
            handle(peer, decode(data), now)
            if not number % _BATCH:
                turn(now)
        turn(now)
        cost = (time.thread_time() - start) / _ROUND * 1e6
        self._say(self._watcher, Credit(id="w", more=1 << 20))
        return cost

    def snapshot(self) -> tuple[float, float, int]:
        """Milliseconds of CPU for a whole snapshot, of its longest turn, and its bytes."""
        for peer, data in self._reports(random.sample(range(len(self.peers)), len(self.peers) // 10)):
            self.core.handle(peer, codec.decode_for_broker(data), self.now)
        self.core.turn(self.now)
        turns: list[float] = []
        size = 0
        self.core.handle(self._watcher, SnapshotRequest(id="s"), self.now)
        while True:
            start = time.thread_time()
            effects = self.core.turn(self.now)
            turns.append((time.thread_time() - start) * 1e3)
            size += sum(len(effect.data) for effect in effects if isinstance(effect, SendBytes))
            if not self.core.busy():
                return sum(turns), max(turns), size

    def _reports(self, hosts: Iterable[int]) -> Iterator[tuple[Peer, bytes]]:
        for host in hosts:
            self.sequence[host] += 1
            number = self.sequence[host]
            changed = {name: number + random.random() for name in _CHANGED}
            feed = FeedTick(reports.SITE_REPORTER, number, 0, {**changed})
            yield self.peers[host], codec.encode(Report(number, [feed]))

    def _connected(self, name: bytes) -> Peer:
        peer = Peer(name, key="", address=name.decode(), uid=0, now=self.now)
        self._commit(self.core.connected(peer))
        return peer

    def _say(self, peer: Peer, message: Tick | ToBroker) -> None:
        self._commit(self.core.handle(peer, message, self.now))

    def _commit(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self._commit(self.core.committed(effect.ticket, self.now))

    def _position(self) -> Position:
        return self.core.state.changes.position()


def main(hosts: int) -> None:
    """Fill, then a round for each signal."""
    signals = {signal.SIGUSR1, signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    load = Load(hosts)
    say(hosts=hosts)
    while True:
        if signal.sigwait(signals) is signal.SIGUSR1:
            say(us=load.ingest())
        else:
            whole, longest, size = load.snapshot()
            say(ms=whole, longest_ms=longest, bytes=size)


if __name__ == "__main__":
    main(int(sys.argv[1]))
