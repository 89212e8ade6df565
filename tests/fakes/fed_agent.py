"""An agent that reports what a test gives it: the real protocol over the real socket, in its own thread."""

import select
import threading
import time
from types import TracebackType

from xce.broker.line import Broker
from xce.model import message as m
from xce.model.instance import Inventory
from xce.model.value import Reading, digest
from xce.wire import codec
from xce.wire.dealer import Dealer, LinkState

REPORTER = "fed"


class FedAgent:
    """Says hello whenever its link is up, then reports `values`; `feed` changes them at any pace."""

    def __init__(
        self,
        broker: Broker,
        host: str,
        values: dict[str, Reading] | None = None,
        *,
        inventory: Inventory | None = None,
    ) -> None:
        self.host, self.values, self.inventory = host, dict(values or {}), inventory
        self.welcomes: list[m.Welcome] = []
        self.refused: list[m.Refused] = []
        self._broker = broker
        self._changed: set[str] = set()
        self._lock = threading.Lock()
        self._sequence = self._run = 0
        self._welcome = False
        self._published = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def feed(self, **values: Reading | None) -> None:
        """Change values; None withdraws."""
        with self._lock:
            for name, value in values.items():
                if value is None:
                    self.values.pop(name, None)
                else:
                    self.values[name] = value
                self._changed.add(name)

    def publish(self, inventory: Inventory) -> None:
        """Report a new inventory."""
        with self._lock:
            self.inventory = inventory
            self._published = False

    def wait_welcome(self, count: int = 1, seconds: float = 20) -> None:
        """Until the broker has let it in so many times."""
        deadline = time.monotonic() + seconds
        while len(self.welcomes) < count:
            assert time.monotonic() < deadline, f"{self.host} was not let in; refused: {self.refused}"
            time.sleep(0.01)

    def __enter__(self) -> "FedAgent":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)

    def _serve(self) -> None:
        broker = self._broker
        dealer = Dealer(broker.endpoint, key=broker.key, broker_key=broker.broker_key, retry_s=(0.05, 0.1))
        beat = 0.0
        while not self._stop.is_set():
            if not dealer.readable():
                select.select([dealer.fileno(), dealer.monitor_fileno()], [], [], 0.005)
            for event in dealer.events():
                if event.state is LinkState.READY:
                    dealer.send(codec.encode(self._hello()))
                elif event.state is LinkState.DISCONNECTED:
                    self._welcome = False
            for data in dealer.receive():
                self._take(codec.decode_from_broker(data), dealer)
            if self._welcome and self.inventory and not self._published:
                self._published = True
                dealer.send(codec.encode(m.InventoryNews(inventory=self.inventory)))
            if self._welcome and (self._changed or time.monotonic() > beat):
                self._report(dealer, full=False)
                beat = time.monotonic() + 0.5
        dealer.close()

    def _hello(self) -> m.Hello:
        return m.Hello(
            protocol=m.PROTOCOL,
            role="agent",
            name=self.host,
            nonce=f"{id(self)}",
            digest=digest({"none": {"a": 1}}),
        )

    def _take(self, message: m.FromBroker, dealer: Dealer) -> None:
        match message:
            case m.Welcome():
                self._sequence, self._welcome, self._published = 0, True, False
                self._report(dealer, full=True)
                state = m.ReporterState(state="waiting", interval_ms=1000, ttl_ms=60_000)
                dealer.send(codec.encode(m.ReporterNews(reporters={REPORTER: state}, full=True)))
                self.welcomes.append(message)
            case m.Resync():
                self._report(dealer, full=True)
            case m.Refused():
                self.refused.append(message)

    def _report(self, dealer: Dealer, *, full: bool) -> None:
        with self._lock:
            self._sequence, self._run = self._sequence + 1, self._run + 1
            names = self.values if full else self._changed
            values: dict[str, Reading | None] = {name: self.values.get(name) for name in names}
            self._changed.clear()
        if not values and not full:
            dealer.send(codec.encode(m.Heartbeat(self._sequence, {REPORTER: 0})))
        else:
            feed = m.FeedTick(REPORTER, self._run, 0, values)
            dealer.send(codec.encode(m.Report(self._sequence, [feed], full)))
