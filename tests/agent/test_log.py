"""A fault is written when it begins and when it ends, and not in between."""

import io
import os
import subprocess
import sys

import pytest

from xce.agent.log import Log
from xce.agent.service import Service


def test_a_fault_is_written_twice_whatever_happens_in_between() -> None:
    stream = io.StringIO()
    one = Log(stream, journal=False)
    one.fault("broker", "no route", 10)
    for second in range(1000):
        one.fault("broker", f"no route, again {second}", 11 + second)
    one.fault("broker", "", 2000)
    one.fault("broker", "", 2001)
    assert stream.getvalue() == "broker: no route\nbroker: all right again after 1990 s\n"


def test_in_the_journal_a_line_has_its_priority_and_is_one_line() -> None:
    stream = io.StringIO()
    one = Log(stream, journal=True)
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
