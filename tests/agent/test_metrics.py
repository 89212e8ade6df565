"""The agent's own OpenMetrics page, over a real socket."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from xce.agent import status
from xce.agent.core import Core, Identity
from xce.agent.metrics import CLIENTS, PER_ADDRESS, Exporter
from xce.agent.node import Node
from xce.agent.types import Types
from xce.linux.loop import Loop
from xce.model.message import ReporterState


def document() -> dict[str, Any]:
    node = Node(Types())
    core = Core(Identity(role="agent", name="n1"), node, now=0, random=lambda low, _high: low)
    node.set_state("builtin", ReporterState(state="running", runs=7, failures=2, ttl_ms=9000))
    node.table.publish("builtin", {"mem": 5.0}, run=7, at=90, ttl=60, now=100)
    one = status.reporter_document("builtin", node.states["builtin"], node, view=None, account=None, now=100)
    return {
        "agent": {"name": "n1", "software": "0", "running_s": 100.0, "memory_kb": 20_000},
        "link": status.link_document(core, "tcp://b:1", 100),
        "host": status.host_document(core),
        "reporters": [one],
    }


@pytest.fixture
def exporter() -> Iterator[tuple[Exporter, Loop]]:
    loop = Loop()
    exporter = Exporter(loop, "127.0.0.1", 0, document)
    yield exporter, loop
    exporter.close()
    exporter.close()
    loop.close()


def ask(exporter: Exporter, loop: Loop, request: bytes) -> bytes:
    client = socket.create_connection(("127.0.0.1", exporter.port))
    client.setblocking(False)
    client.sendall(request)
    answer, deadline = b"", time.monotonic() + 10
    while time.monotonic() < deadline:
        loop.turn(0.01)
        try:
            data = client.recv(65536)
        except BlockingIOError:
            continue
        except ConnectionError:
            data = b""
        if not data:
            client.close()
            return answer
        answer += data
    raise AssertionError("no answer in time")


def test_the_page_is_openmetrics_and_says_what_the_status_says(exporter: tuple[Exporter, Loop]) -> None:
    head, _, body = ask(*exporter, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").partition(b"\r\n\r\n")
    assert b"200 OK" in head
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())  # type: ignore[no-untyped-call]  # no stubs
        for sample in family.samples
    }
    assert samples["xce_agent_resident_memory_bytes",] == 20_000 * 1024
    assert samples["xce_agent_link", ("phase", "disconnected")] == 1
    assert samples["xce_agent_link", ("phase", "synced")] == 0
    assert samples["xce_reporter_runs_total", ("reporter", "builtin")] == 7
    assert samples["xce_reporter_failures_total", ("reporter", "builtin")] == 2
    assert samples["xce_reporter_age_seconds", ("reporter", "builtin")] == 10
    assert samples["xce_reporter_names", ("presence", "value"), ("reporter", "builtin")] == 1
    assert samples["xce_reporter_state", ("reporter", "builtin"), ("state", "running")] == 1


def test_anything_else_is_not_found_and_rubbish_is_cut_off(exporter: tuple[Exporter, Loop]) -> None:
    assert b"404" in ask(*exporter, b"GET / HTTP/1.1\r\n\r\n")
    assert ask(*exporter, b"x" * 20_000) == b""


def test_scrapers_that_do_not_ask_or_do_not_read_keep_nobody_from_the_page(
    exporter: tuple[Exporter, Loop],
) -> None:
    """Eight of one address once held all places for ten seconds each."""
    one, loop = exporter
    idle = [socket.create_connection(("127.0.0.1", one.port)) for _ in range(CLIENTS)]
    for _ in range(CLIENTS):
        loop.turn(0.01)
    assert len(one._clients) == PER_ADDRESS
    assert b"200 OK" in ask(one, loop, b"GET /metrics HTTP/1.1\r\n\r\n")
    for client in idle:
        client.close()


def test_when_all_places_are_taken_the_oldest_goes(exporter: tuple[Exporter, Loop]) -> None:
    one, loop = exporter
    idle = [
        socket.create_connection(("127.0.0.1", one.port), source_address=(f"127.0.0.{2 + number}", 0))
        for number in range(CLIENTS)
    ]
    for _ in range(CLIENTS):
        loop.turn(0.01)
    assert len(one._clients) == CLIENTS
    assert b"200 OK" in ask(one, loop, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert "127.0.0.2" not in one._clients.values()
    assert "127.0.0.3" in one._clients.values()
    for client in idle:
        client.close()


def test_a_page_is_made_once_a_second_however_often_it_is_wanted() -> None:
    made: list[float] = []
    now = 100.0

    def status() -> dict[str, Any]:
        made.append(now)
        return document()

    loop = Loop(clock=lambda: now)
    exporter = Exporter(loop, "127.0.0.1", 0, status)
    pages = {exporter.page() for _ in range(5)}
    assert (len(pages), made) == (1, [100.0])
    now = 101.5
    exporter.page()
    assert made == [100.0, 101.5]
    exporter.close()
    loop.close()
