"""The broker's OpenMetrics endpoint: of the broker itself, and of all hosts, reporters and pools.

Threads of its own, which are an ordinary client of the broker over its local socket: they share nothing with
the broker's loop and cannot hold it up. A scrape asks for the status and a snapshot, which is counted and not
kept (`tally.py`); scrapes that come together, or sooner than `FRESH_S`, share one. A broker that does not
answer gives 503 with the reason. A scraper that is slow keeps its place until others want it: there are
`PLACES`, `PER_ADDRESS` of them for one address, and a newcomer takes the oldest one's.

The number of series is bounded, whatever the size of the cluster: hosts are counted by state, reporters
summed by name (`NAMES` of them), and only what is in trouble is named with its place (`TROUBLED` of them).
"""

import contextlib
import re
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import make_wsgi_app

from xce.broker.client import Client
from xce.broker.line import Broker
from xce.broker.session import BrokerError
from xce.broker.tally import TROUBLED, Tally
from xce.model.claim import BindingState
from xce.model.message import BrokerStatus, StatusRequest
from xce.model.supply import HostState

NAMES = 200
"""Reporters, hold owners, or resources of pools that have series of their own; the rest is `(others)`."""
FRESH_S = 2.0
TIMEOUT_S = 10.0
CLIENT_S = 5.0
"""A scraper that says or takes nothing for so long is cut off."""
PLACES, PER_ADDRESS = 8, 2
CLOSE_S = 1.0
_WITHIN = re.compile(r"commits\.within_([0-9]+)_ms")
OTHERS = "(others)"


class MetricsError(Exception):
    """The endpoint cannot be opened; the message names it and the cause."""


# ---------------------------------------------------------------------------------------------- families


def families(status: BrokerStatus, tally: Tally, took_s: float) -> Iterator[Metric]:
    """Everything that a scrape gives."""
    yield from _of_broker(status)
    yield _gauge("xce_broker_scrape_seconds", "time to ask the broker for all of this", [((), took_s)])
    yield from _of_map(tally)
    yield from _of_reporters(tally)
    yield from _of_pools(tally)


def _of_broker(status: BrokerStatus) -> Iterator[Metric]:
    about = {"software": status.software, "incarnation": status.incarnation, "epoch": str(status.epoch)}
    yield InfoMetricFamily("xce_broker", "the broker that answers", value=about)
    for name, text, value in (
        ("uptime_seconds", "time since its start", status.uptime_s),
        ("revision", "number of the newest durable fact", status.revision),
        ("sequence", "number of the newest change in the stream of this incarnation", status.sequence),
        ("watchers", "open change streams", status.watchers),
        ("trouble", "things that need an admin; xce-broker status names them", len(status.trouble)),
    ):
        yield _gauge(f"xce_broker_{name}", text, [((), value)])
    peers = Counter(status.roles)
    yield _gauge("xce_broker_peers", "connected peers", _by(peers), "role")
    states = {state.value: 0 for state in BindingState}
    yield _gauge("xce_claims", "claims", _by(states | status.claims), "state")
    yield _gauge("xce_bindings", "bindings of claims to hosts", _by(states | status.bindings), "state")
    quarantined = [((), float(status.quarantined))]
    yield _gauge("xce_instances_quarantined", "instances that may not be used", quarantined)
    refused = {
        name.removeprefix("refused."): count
        for name, count in status.counters.items()
        if name.startswith("refused.")
    }
    yield _counter("xce_broker_refused", "messages, values and peers that were refused", refused, "reason")
    yield _commits(status.counters)
    connections = status.counters.get("connections", 0)
    yield _gauge("xce_broker_connections", "connections that have spoken", [((), connections)])
    others = {
        name: count
        for name, count in status.counters.items()
        if not name.startswith(("refused.", "commits")) and name != "connections"
    }
    yield _counter("xce_broker_events", "what the broker has counted since its start", others, "event")


def _commits(counters: dict[str, int]) -> Metric:
    """The histogram that the broker keeps of its store's latency, from its counters."""
    total, spent_us = counters.get("commits", 0), counters.get("commits.us", 0)
    buckets = [
        (str(int(match[1]) / 1000), float(count))
        for name, count in counters.items()
        if (match := _WITHIN.fullmatch(name))
    ]
    buckets.append(("+Inf", float(total)))
    text = "time until facts that were handed to the store were on its disk"
    return HistogramMetricFamily("xce_broker_commit_seconds", text, buckets=buckets, sum_value=spent_us / 1e6)


def _of_map(tally: Tally) -> Iterator[Metric]:
    quality = tally.quality
    readings = {
        "value": quality.value,
        "unknown": quality.unknown,
        "stale": quality.stale,
        "never-seen": quality.never_seen,
        "not-applicable": quality.not_applicable,
    }
    yield _gauge("xce_readings", "readings of the whole map", _by(readings), "presence")
    hosts = {state.value: 0 for state in HostState} | quality.hosts
    yield _gauge("xce_hosts", "hosts", _by(hosts), "state")
    yield _gauge("xce_hosts_rejoining", "hosts not confirmed since the start", [((), quality.rejoining)])
    yield _gauge("xce_host_conditions", "hosts with a condition", _by(tally.conditions), "condition")
    yield _gauge("xce_locations", "locations", _by(tally.locations), "kind")
    yield _gauge("xce_holds", "holds", _by(_bounded(tally.holds)), "owner")


def _of_reporters(tally: Tally) -> Iterator[Metric]:
    known = _bounded(Counter(name for name, _ in tally.reporters))
    states: Counter[tuple[str, ...]] = Counter()
    for (name, state), count in tally.reporters.items():
        states[name if name in known else OTHERS, state] += count
    yield _gauge(
        "xce_reporters", "locations, by the state of a reporter there", states.items(), "reporter", "state"
    )
    for field, text in (
        ("runs", "runs"),
        ("failures", "runs that failed"),
        ("overruns", "turns that were missed because a run was still going on"),
        ("refused", "values refused in the last runs"),
        ("abandoned", "children that cannot be killed"),
    ):
        sums: Counter[tuple[str, ...]] = Counter()
        for name, count in tally.sums[field].items():
            sums[(name if name in known else OTHERS,)] += count
        help_text = (
            f"{text}, as the agents that are known now count them: falls when one leaves or starts anew"
        )
        yield _gauge(f"xce_reporter_{field}", help_text, sums.items(), "reporter")
    troubled = (((key, name, state), 1.0) for key, name, state in tally.troubled)
    text = f"reporters in trouble, at most {TROUBLED}"
    yield _gauge("xce_reporter_trouble", text, troubled, "location", "reporter", "state")
    yield _gauge("xce_reporter_trouble_hidden", "reporters in trouble beyond those", [((), tally.hidden)])


def _of_pools(tally: Tally) -> Iterator[Metric]:
    amounts = list(tally.amounts.items())[:NAMES]
    base = ((labels, base) for labels, (base, _) in amounts)
    borrowed = ((labels, borrowed) for labels, (_, borrowed) in amounts)
    yield _gauge("xce_pool_base", "what a pool has itself", base, "pool", "resource")
    yield _gauge("xce_pool_borrowed", "what a pool has borrowed", borrowed, "pool", "resource")
    reported = list(tally.reported.items())[:NAMES]
    yield _gauge(
        "xce_pool_reported", "what is reported of a pool; absent: unknown", reported, "pool", "resource"
    )


def _gauge(name: str, text: str, samples: Iterable[tuple[tuple[str, ...], float]], *labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family


def _counter(name: str, text: str, counts: dict[str, int], label: str) -> Metric:
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, number in sorted(counts.items()):
        family.add_metric((value,), number)
    return family


def _by(counts: dict[str, int] | Counter[str]) -> list[tuple[tuple[str, ...], float]]:
    return [((value,), number) for value, number in sorted(counts.items())]


def _bounded(counts: Counter[str]) -> Counter[str]:
    """The most frequent names, and all others under one."""
    if len(counts) <= NAMES:
        return counts
    kept = Counter(dict(counts.most_common(NAMES - 1)))
    kept[OTHERS] = counts.total() - kept.total()
    return kept


# ------------------------------------------------------------------------------------------------ server


class Exporter:
    """The endpoint at `ADDRESS:PORT`; bound at once, served after `start`. Raises `MetricsError`."""

    def __init__(
        self,
        address: str,
        broker: Broker,
        *,
        timeout: float = TIMEOUT_S,
        patience: float = CLIENT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout` (seconds) bounds each answer of the broker, `patience` each scraper."""
        host, port = _split(address)
        self._broker, self._timeout, self._clock = broker, timeout, clock
        self._client: Client | None = None
        self._newest: tuple[float, list[Metric]] | None = None
        self._asking = threading.Lock()
        """For the client and what it has brought: one scraper asks at a time."""
        try:
            self._server = _Server((host, port), patience)
        except OSError as error:
            raise MetricsError(f"cannot serve metrics at {address}: {error.strerror}") from error
        self._server.set_app(self._app)
        self._scrape = make_wsgi_app(self)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens, also when port 0 was asked for."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving; may be called twice. A scrape that hangs ends with the process."""
        self._stop.set()
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread up
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._server.server_close()

    def collect(self) -> list[Metric]:
        """The families of one scrape: a collector for prometheus_client. Raises `BrokerError`."""
        with self._asking:
            now = self._clock()
            if self._newest is None or now - self._newest[0] > FRESH_S:
                client = self._client = self._client or Client(self._broker, timeout=self._timeout)
                status = client.ask(StatusRequest(id=""))
                tally = client.finish(Tally())
                self._newest = (now, list(families(status, tally, self._clock() - now)))
            return self._newest[1]

    def _serve(self) -> None:
        while not self._stop.is_set():
            self._server.handle_request()
        with self._asking:
            if self._client is not None:
                self._client.close()

    def _app(self, environ: dict[str, object], start_response: Callable[..., object]) -> Iterable[bytes]:
        if environ["PATH_INFO"] not in {"/metrics", "/"}:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"metrics are at /metrics\n"]
        try:
            answer: Iterable[bytes] = self._scrape(environ, start_response)
        except BrokerError as error:
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [f"{error.message}\n".encode()]
        return answer


class _Handler(WSGIRequestHandler):
    """One request, in bounded time, without a line in the log."""

    def setup(self) -> None:
        """Bound every wait for the scraper."""
        self.request.settimeout(self.server.patience)  # type: ignore[attr-defined]
        super().setup()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class calls it so
        """Say nothing."""

    def address_string(self) -> str:
        """The peer's address, without asking DNS."""
        return str(self.client_address[0])


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """A thread for each scraper that has a place."""

    request_queue_size = 16
    daemon_threads, block_on_close = True, False

    def __init__(self, address: tuple[str, int], patience: float) -> None:
        self.patience = patience
        self._scrapers: dict[socket.socket, str] = {}
        """Who has a place, with the address, the oldest first."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without asking DNS for our own name, as HTTPServer would."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a scraper a place, for which another one may have to go."""
        address = str(client_address[0])
        held = list(self._scrapers.items())
        same = [one for one, its in held if its == address]
        if len(same) >= PER_ADDRESS or len(held) >= PLACES:
            oldest = same[0] if len(same) >= PER_ADDRESS else held[0][0]
            self._scrapers.pop(oldest, None)
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread finds the end
        self._scrapers[request] = address
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """It is served, or gone."""
        self._scrapers.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that went away, or was cut off, is nobody's concern."""


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise MetricsError(f"cannot serve metrics at {address!r}: expected ADDRESS:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)
