"""A broker's end and peers' ends on real sockets; a test that leaves one open fails."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from xce.wire import keys
from xce.wire.dealer import Dealer
from xce.wire.router import Router, Stranger
from xce.wire.zap import Authenticator


class Hub:
    """A Router with its Authenticator, driven by hand; peers are their `Stranger`s."""

    def __init__(self, tmp_path: Path) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.key = keys.new("broker", "broker")
        self.known: dict[bytes, str] = {}
        self.met: list[Stranger] = []
        self.ended: list[Stranger] = []
        self.got: list[tuple[Stranger, bytes]] = []
        self.zap = Authenticator(self.known.get, context=self.context)
        self.router: Router[Stranger] = Router(
            listen=["tcp://127.0.0.1:*"],
            local=str(tmp_path / "b.sock"),
            key=self.key,
            admit=self._admit,
            gone=self.ended.append,
            context=self.context,
        )
        self.local, self.tcp = self.router.endpoints
        self.dealers: list[Dealer] = []

    def _admit(self, stranger: Stranger) -> Stranger:
        self.met.append(stranger)
        return stranger

    def dealer(self, endpoint: str, key: keys.KeyPair | None = None, broker: bytes | None = None) -> Dealer:
        dealer = Dealer(endpoint, key=key, broker_key=broker, retry_s=(0.1, 0.2), context=self.context)
        self.dealers.append(dealer)
        return dealer

    def known_key(self, name: str) -> keys.KeyPair:
        key = keys.new(name, "agent")
        self.known[key.public] = name
        return key

    def turn(self) -> None:
        self.zap.serve()
        self.router.serve_monitor()
        self.got += self.router.receive()

    def until(self, condition: Callable[[], bool], *, within_s: float = 30) -> None:
        """Turn the loop until `condition` holds; fails after the deadline."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, "did not happen in time"
            self.turn()
            time.sleep(0.002)

    def close(self) -> None:
        for dealer in self.dealers:
            dealer.close()
        self.router.close()
        self.zap.close()
        self.context.term()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    hub = Hub(tmp_path)
    yield hub
    hub.close()
