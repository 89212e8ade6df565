"""The node's own OpenMetrics endpoint, for sites that scrape nodes. Loaded only when `metrics:` asks for it.

The broker serves the same counters for all its agents; this one costs 10 MB of memory. It answers one kind of
request, `GET /metrics`, to a few clients at a time. Who is slow cannot keep others from it: a newcomer takes
the place of the oldest client, of its own address if that has two already. The page is made at most once a
second, from the status document (`status.py`), so that the two cannot differ.
"""

import socket
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest

from xce.linux.listen import Listener
from xce.linux.loop import Loop
from xce.model.link import Phase
from xce.model.reporter import ReporterState
from xce.model.value import Presence

CLIENTS, PER_ADDRESS = 8, 2
REQUEST_BYTES = 8192
PATIENCE_S = 10.0
PAGE_S = 1.0
"""For so long a page is given out again."""

Status = dict[str, Any]


class Exporter:
    """Listens at `host`:`port` and answers with what `status` gives. Raises OSError."""

    def __init__(self, loop: Loop, host: str, port: int, status: Callable[[], Status]) -> None:
        self._loop = loop
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(status))
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._clients: dict[_Client, str] = {}
        """With their addresses, the oldest first."""
        self._page, self._made = b"", float("-inf")
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(CLIENTS)
        except OSError:
            listening.close()
            raise
        self.port: int = listening.getsockname()[1]
        self._listener = Listener(loop, listening, self._take)

    def page(self) -> bytes:
        """The whole answer's body."""
        if (now := self._loop.now()) - self._made >= PAGE_S:
            self._page = generate_latest(self._registry)  # type: ignore[no-untyped-call]  # no stubs of this module
            self._made = now
        return self._page

    def close(self) -> None:
        """Stop answering; may be called twice."""
        self._listener.close()
        for client in tuple(self._clients):
            client.close()

    def _take(self, connection: socket.socket) -> bool:
        try:
            address = connection.getpeername()[0]
        except OSError:
            return False  # gone again
        same = [client for client, one in self._clients.items() if one == address]
        if len(same) >= PER_ADDRESS:
            same[0].close()
        elif len(self._clients) >= CLIENTS:
            next(iter(self._clients)).close()
        self._clients[_Client(self._loop, connection, self.page, self._gone)] = address
        return True

    def _gone(self, client: "_Client") -> None:
        self._clients.pop(client, None)


class _Client:
    """One request, one answer."""

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        page: Callable[[], bytes],
        gone: Callable[["_Client"], None],
    ) -> None:
        self._loop, self._connection, self._page, self._gone = loop, connection, page, gone
        self._request, self._answer = b"", b""
        loop.add_reader(connection.fileno(), self._read)
        self._patience = loop.call_later(PATIENCE_S, self.close)

    def close(self) -> None:
        if self._connection.fileno() < 0:
            return
        self._patience.cancel()
        self._loop.remove_reader(self._connection.fileno())
        self._loop.remove_writer(self._connection.fileno())
        self._connection.close()
        self._gone(self)

    def _read(self) -> None:
        try:
            data = self._connection.recv(REQUEST_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        self._request += data
        if not data or len(self._request) > REQUEST_BYTES:
            self.close()
        elif b"\r\n\r\n" in self._request:
            self._loop.remove_reader(self._connection.fileno())
            self._answer = self._response()
            self._loop.add_writer(self._connection.fileno(), self._write)

    def _response(self) -> bytes:
        if not self._request.startswith((b"GET /metrics ", b"GET /metrics?")):
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        body = self._page()
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: {CONTENT_TYPE_LATEST}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + body

    def _write(self) -> None:
        try:
            self._answer = self._answer[self._connection.send(self._answer) :]
        except BlockingIOError:
            return
        except OSError:
            self._answer = b""
        if not self._answer:
            self.close()


class _Collector:
    """Asked by the registry for each page."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        return families(self._status())


def families(status: Status) -> Iterator[Metric]:
    """All metrics of a status document."""
    agent, link = status["agent"], status["link"]
    yield _info(agent)
    yield GaugeMetricFamily("xce_agent_uptime_seconds", "Since the agent started.", value=agent["running_s"])
    yield GaugeMetricFamily(
        "xce_agent_resident_memory_bytes", "Of the agent itself.", value=agent["memory_kb"] * 1024
    )
    phases = GaugeMetricFamily("xce_agent_link", "1 for the phase that the link is in.", labels=["phase"])
    for phase in Phase:
        phases.add_metric([phase.value], float(link["phase"] == phase))
    yield phases
    yield CounterMetricFamily(
        "xce_agent_welcomes", "How often the broker took us in.", value=link["welcomes"]
    )
    yield CounterMetricFamily("xce_agent_resyncs", "How often it wanted everything.", value=link["resyncs"])
    yield from _reporters(status["reporters"])


def _info(agent: Status) -> Metric:
    info = GaugeMetricFamily("xce_agent", "This agent.", labels=["name", "software"])
    info.add_metric([agent["name"], agent["software"]], 1)
    return info


def _reporters(reporters: list[Status]) -> Iterator[Metric]:
    states = GaugeMetricFamily(
        "xce_reporter_state", "1 for the state that the reporter is in.", labels=["reporter", "state"]
    )
    names = GaugeMetricFamily(
        "xce_reporter_names", "Names that it gives, by presence.", labels=["reporter", "presence"]
    )
    for one in reporters:
        for state in ReporterState:
            states.add_metric([one["name"], state.value], float(one["state"] == state))
        for presence in Presence:
            names.add_metric([one["name"], presence.value], one["values"].get(presence.value, 0))
    yield states
    yield names
    for key, what, family in (
        ("runs", "Runs that were started.", CounterMetricFamily),
        ("failures", "Runs that failed.", CounterMetricFamily),
        ("overruns", "Runs that were left out since one before still ran.", CounterMetricFamily),
        ("refused", "Values that were refused in the last run.", GaugeMetricFamily),
        ("abandoned", "Children that cannot be killed.", GaugeMetricFamily),
        ("age_s", "Age of its newest good frame.", GaugeMetricFamily),
        ("took_s", "Duration of its last run.", GaugeMetricFamily),
    ):
        metric = family(f"xce_reporter_{key.replace('_s', '_seconds')}", what, labels=["reporter"])
        for one in reporters:
            value = one[key] if not isinstance(one[key], list) else len(one[key])
            if value is not None:
                metric.add_metric([one["name"]], value)
        yield metric
