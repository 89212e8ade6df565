"""The endpoint: what a scrape gives can be parsed, is true, and is bounded, and no scraper can do harm."""

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics

from tests.broker.test_client import at
from tests.broker.test_client import obedient as map_of_one_host
from tests.broker.test_views import NODE, POOL
from tests.fakes.fed_agent import FedAgent
from tests.fakes.live_broker import LiveBroker
from tests.fakes.scripted_broker import Answers, ScriptedBroker
from xce.broker.metrics import PER_ADDRESS, PLACES, Exporter, MetricsError, families
from xce.broker.tally import TROUBLED, Tally
from xce.model.message import (
    BrokerStatus,
    LocationView,
    Quality,
    ReporterState,
    SnapshotRequest,
    StatusRequest,
    ToBroker,
)
from xce.model.supply import Source

STATUS = BrokerStatus(
    id="",
    software="xce 0.1.0",
    pid=1,
    epoch=3,
    incarnation="abcd",
    revision=9,
    sequence=41,
    uptime_s=2.5,
    quality=Quality(),
    roles={"agent": 2},
    watchers=2,
    counters={"refused.duplicate": 4, "refused.value.maximum": 1, "watchers_cut": 1, "deltas": 41},
    trouble=["the disk is full"],
)


def broker(message: ToBroker) -> Answers:
    if isinstance(message, StatusRequest):
        return [msgspec.structs.replace(STATUS, id=message.id)]
    return map_of_one_host(message)


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    with ScriptedBroker(broker, local=tmp_path / "b"):
        exporter = Exporter("127.0.0.1:0", at(tmp_path / "b"), patience=0.5)
        exporter.start()
        yield exporter
        exporter.close()


def scrape(exporter: Exporter, path: str = "/metrics", accept: str = "") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{exporter.port}{path}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Name and label values to number."""
    families_of = parser.text_string_to_metric_families
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families_of(text)
        for sample in family.samples
    }


def test_a_scrape_says_what_the_broker_and_the_map_say(exporter: Exporter) -> None:
    found = samples(scrape(exporter))
    assert found["xce_broker_revision",] == 9
    assert found["xce_broker_peers", "agent"] == 2
    assert found["xce_broker_trouble",] == 1
    assert found["xce_broker_refused_total", "duplicate"] == 4
    assert found["xce_broker_refused_total", "value.maximum"] == 1
    assert found["xce_broker_events_total", "watchers_cut"] == 1
    assert found["xce_locations", "host"] == 1
    assert found["xce_hosts", "lost"] == 0, "an alert can be written on a state without hosts"


def test_it_is_openmetrics_for_whoever_asks_for_that(exporter: Exporter) -> None:
    text = scrape(exporter, accept="application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    families_of = openmetrics.text_string_to_metric_families
    names = {family.name for family in families_of(text)}  # type: ignore[no-untyped-call]
    assert {"xce_broker", "xce_broker_refused", "xce_readings", "xce_reporters"} <= names


def test_reporters_are_summed_by_name_and_those_in_trouble_named_with_their_place() -> None:
    tally = Tally()
    tally.count("host:node1", NODE)
    tally.count("host:node2", NODE)
    found = {
        (family.name, *sample.labels.values()): sample.value
        for family in families(STATUS, tally, 0.1)
        for sample in family.samples
    }
    assert found["xce_reporters", "lic", "backoff"] == 2
    assert found["xce_reporter_trouble", "host:node2", "lic", "backoff"] == 1
    assert ("xce_reporter_trouble", "host:node1", "builtin", "waiting") not in found
    assert found["xce_holds", "reporter:health"] == 2


def test_an_external_reporter_counts_once_however_many_places_it_reports_on() -> None:
    tally = Tally()
    state = ReporterState(state="waiting", runs=5, refused=2)
    for place in ("pool:matlab", "pool:cfd", "group:rack1"):
        view = LocationView(source=Source.CONFIG, state="available", reporters={"licences/lic": state})
        tally.count(place, view)
    assert tally.sums["runs"] == {"licences/lic": 5}
    assert tally.sums["refused"] == {"licences/lic": 2}
    assert tally.reporters["licences/lic", "waiting"] == 3


def test_a_pool_has_its_amounts_and_what_is_reported() -> None:
    tally = Tally()
    tally.count("pool:lic", POOL)
    found = {
        (family.name, *sample.labels.values()): sample.value
        for family in families(STATUS, tally, 0.1)
        for sample in family.samples
    }
    assert found["xce_pool_base", "lic", "lic"] == 10
    assert found["xce_pool_borrowed", "lic", "lic"] == 2.5
    assert found["xce_pool_reported", "lic", "lic_free"] == 7


def test_ten_thousand_hosts_do_not_make_more_series_than_are_wanted() -> None:
    tally = Tally()
    for number in range(10_000):
        state = ReporterState(state="backoff", runs=2)
        view = LocationView(
            source=Source.CONFIG, state="available", reporters={f"r{number % 3000}": state, "all": state}
        )
        tally.count(f"host:node{number}", view)
    found = list(families(STATUS, tally, 0.1))
    assert sum(len(family.samples) for family in found) < 2500
    runs = next(family for family in found if family.name == "xce_reporter_runs")
    assert sum(sample.value for sample in runs.samples) == 40_000, "nothing is left out of the sums"
    assert tally.hidden == 20_000 - TROUBLED


def test_scrapes_that_come_together_share_one_snapshot(tmp_path: Path) -> None:
    with ScriptedBroker(broker, local=tmp_path / "b") as scripted:
        exporter = Exporter("127.0.0.1:0", at(tmp_path / "b"), clock=lambda: 100.0)
        exporter.start()
        for _ in range(5):
            scrape(exporter)
        exporter.close()
        assert sum(isinstance(message, SnapshotRequest) for message in scripted.heard) == 1


def test_a_broker_that_does_not_answer_is_503_with_the_reason(tmp_path: Path) -> None:
    exporter = Exporter("127.0.0.1:0", at(tmp_path / "none"), timeout=0.2)
    exporter.start()
    with pytest.raises(urllib.error.HTTPError) as caught:
        scrape(exporter)
    assert caught.value.code == 503
    assert b"there is no socket" in caught.value.read()
    exporter.close()


def test_another_path_is_404(exporter: Exporter) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        scrape(exporter, "/etc/passwd")


def test_a_scraper_that_says_nothing_keeps_no_other_waiting(exporter: Exporter) -> None:
    with socket.create_connection(("127.0.0.1", exporter.port)) as silent:
        assert "xce_broker_revision" in scrape(exporter)
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):  # it is waited for still
            silent.recv(1)


def test_scrapers_that_dribble_keep_nobody_from_the_page(tmp_path: Path) -> None:
    """A byte now and then is no end of patience; they once had the page for themselves."""
    with ScriptedBroker(broker, local=tmp_path / "b"):
        exporter = Exporter("127.0.0.1:0", at(tmp_path / "b"), patience=60)
        exporter.start()
        slow = [socket.create_connection(("127.0.0.1", exporter.port)) for _ in range(2 * PLACES)]
        for one in slow[-PER_ADDRESS:]:
            one.sendall(b"GET /met")
        started = time.monotonic()
        assert "xce_broker_revision" in scrape(exporter)
        assert time.monotonic() - started < 30
        assert slow[0].recv(1) == b"", "the oldest had to go"
        assert sum(thread.name.startswith("Thread-") for thread in threading.enumerate()) <= PLACES
        exporter.close()
        for one in slow:
            one.close()


@pytest.mark.parametrize("address", ["7401", "localhost:", "127.0.0.1:99999", "a b:1x"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(MetricsError, match="expected ADDRESS:PORT"):
        Exporter(address, at(Path("none")))


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MetricsError, match=rf"127\.0\.0\.1:{port}: Address already in use"):
            Exporter(f"127.0.0.1:{port}", at(Path("none")))


@pytest.mark.system
def test_the_real_broker_serves_its_metrics_where_its_file_says(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with (
        LiveBroker(tmp_path, metrics=f"127.0.0.1:{port}") as broker,
        FedAgent(broker.local, "node1", {"level": 7}) as agent,
    ):
        agent.wait_welcome()
        time.sleep(0.2)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            found = samples(answer.read().decode())
        assert found["xce_hosts", "available"] == 1
        assert found["xce_hosts", "expected"] == 2
        assert found["xce_readings", "value"] >= 1
        assert found["xce_reporters", "fed", "waiting"] == 1
        assert found["xce_pool_base", "matlab", "lic"] == 10
        assert found["xce_broker_events_total", "reports"] >= 1
        assert found["xce_broker_commit_seconds_count",] >= 1
        assert found["xce_broker_commit_seconds_bucket", "+Inf"] == found["xce_broker_commit_seconds_count",]
        assert 0 < found["xce_broker_commit_seconds_sum",] < 60
