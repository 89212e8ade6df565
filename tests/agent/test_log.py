"""A fault is written when it begins and when it ends, and not in between."""

import io
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from xce.agent import log
from xce.agent.log import Log
from xce.agent.service import Service
from xce.wire import journal


def test_a_fault_is_written_twice_whatever_happens_in_between() -> None:
    stream = io.StringIO()
    one = Log(stream, prefixes=False)
    one.fault("broker", "no route", 10)
    for second in range(1000):
        one.fault("broker", f"no route, again {second}", 11 + second)
    one.fault("broker", "", 2000)
    one.fault("broker", "", 2001)
    assert stream.getvalue() == "broker: no route\nbroker: all right again after 1990 s\n"


def test_a_fault_that_comes_and_goes_is_written_a_few_times_an_hour() -> None:
    stream = io.StringIO()
    one = Log(stream, prefixes=False)
    for second in range(0, 3600, 2):
        one.fault("reporter disk", "exit status 1", second)
        one.fault("reporter disk", "", second + 1)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2 * log.OFTEN
    assert "comes and goes, and is not logged again within the hour" in lines[-2]
    one.fault("reporter disk", "exit status 2", 3601)
    assert stream.getvalue().splitlines()[-1] == "reporter disk: exit status 2"


def test_faults_of_many_are_told_together_and_what_is_gone_is_over_and_forgotten() -> None:
    stream = io.StringIO()
    one = Log(stream, prefixes=False)
    one.fault("broker", "no route", 0)
    one.faults("reporter ", {"a": "bad", "b": "worse"}, 0)
    one.faults("reporter ", {"a": "bad still"}, 10)
    assert stream.getvalue().splitlines() == [
        "broker: no route",
        "reporter a: bad",
        "reporter b: worse",
        "reporter b: all right again after 10 s",
    ]
    for number in range(100):
        one.faults("reporter ", {f"n{number}": "bad"}, 10_000 * (number + 1))
    assert len(one._faults) <= 3


def test_a_fault_ends_without_a_word_with_the_thing_that_had_it() -> None:
    """A binding that is degraded, released, and gone is not all right again."""
    stream = io.StringIO()
    one = Log(stream, prefixes=False)
    for second, binding in enumerate(("released", "mended")):
        one.faults("binding ", {binding: "degraded"}, second)
        one.faults("binding ", {}, second + 1, right={"mended"})
    one.faults("binding ", {"released": "blocked"}, 9)
    assert stream.getvalue().splitlines() == [
        "binding released: degraded",
        "binding mended: degraded",
        "binding mended: all right again after 1 s",
        "binding released: blocked",
    ]


def test_a_fault_that_becomes_one_of_another_kind_is_written_again_once() -> None:
    stream = io.StringIO()
    one = Log(stream, prefixes=False)
    for second in range(10):
        one.fault("reporter disk", f"exit status {second}", second)
    for second in range(10, 100):  # tried again now and then, which is of no kind of its own
        kind = "quarantined" if second % 7 else ""
        one.fault("reporter disk", f"failed {second} times in a row", second, kind)
    one.fault("reporter disk", "", 100)
    one.fault("reporter disk", "failed 1 times in a row", 101, "quarantined")
    assert stream.getvalue().splitlines() == [
        "reporter disk: exit status 0",
        "reporter disk: failed 10 times in a row",
        "reporter disk: all right again after 100 s",
        "reporter disk: failed 1 times in a row",
    ]


def test_in_the_journal_a_line_has_its_priority_and_is_one_line() -> None:
    stream = io.StringIO()
    one = Log(stream, prefixes=True)
    one.notice("runs")
    one.warning("first\nsecond")
    assert stream.getvalue() == "<5>runs\n<4>first; second\n"


def test_a_log_that_cannot_be_written_is_no_reason_to_end() -> None:
    stream = io.StringIO()
    stream.close()
    Log(stream).warning("nobody reads this")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_kicked_at_half_its_time_if_it_is_ours(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: float | None
) -> None:
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Service().watchdog_s() == expected


def test_the_diet_keeps_openssl_out_and_hashes_work_all_the_same() -> None:
    code = (
        "import xce.agent.diet, hashlib, sys; import msgspec; "
        "assert hashlib.sha256(b'x').hexdigest().startswith('2d71'); "
        "assert not any('_hashlib' in str(module) for module in sys.modules.values())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_where_the_journal_listens_lines_have_fields_and_elsewhere_they_are_plain() -> None:
    sent: list[tuple[str, int, dict[str, str]]] = []
    stream = io.StringIO()

    def send(text: str, priority: int, fields: Mapping[str, str]) -> bool:
        sent.append((text, priority, dict(fields)))
        return len(sent) < 4

    one = Log(stream, prefixes=True, send=send)
    one.host, one.claims = "node1", {"b7": "train"}
    one.notice("runs")
    one.faults("reporter ", {"disk": "exit status 1"}, 0)
    one.faults("binding ", {"b7": "degraded"}, 0)
    one.warning("the journal does not answer")
    assert sent[:3] == [
        ("runs", log.NOTICE, {"XCE_HOST": "node1"}),
        ("reporter disk: exit status 1", log.WARNING, {"XCE_HOST": "node1", "XCE_REPORTER": "disk"}),
        (
            "binding b7: degraded",
            log.WARNING,
            {"XCE_HOST": "node1", "XCE_BINDING": "b7", "XCE_CLAIM": "train"},
        ),
    ]
    assert stream.getvalue() == "<4>the journal does not answer\n"


def test_a_stream_that_is_not_the_journals_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "1:1")
    assert journal.listening(sys.stderr, "xce-agent") is None
