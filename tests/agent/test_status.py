"""What `xce-agent status` says to people, from documents that the agent answers with."""

from typing import Any

import pytest

from xce.agent import status
from xce.agent.cli.status import head

AGENT = {"name": "n1", "role": "agent", "pid": 7, "running_s": 60, "software": "0", "memory_kb": 4096}
HOST: dict[str, Any] = {"state": "available", "conditions": [], "holds": [], "refused": []}
LINK = {"phase": "disconnected", "since_s": 2, "endpoint": "tcp://b:7400", "trouble": "no route"}
REPORTER: dict[str, Any] = {"name": "r", "cause": "", "warning": ""} | dict.fromkeys(
    ("refused", "conditions", "abandoned"), ()
)


@pytest.mark.parametrize(
    ("heard_s", "next_try_s", "told"),
    [
        (1800, 12, "disconnected for 2 s, tcp://b:7400, last heard 30 min ago, next try in 12 s"),
        (None, None, "disconnected for 2 s, tcp://b:7400, never linked"),
    ],
)
def test_a_broken_link_says_how_long_nobody_was_heard(
    heard_s: float | None, next_try_s: float | None, told: str
) -> None:
    """Each try begins a phase anew: `disconnected for 2 s` alone hides half an hour."""
    link = LINK | {"heard_s": heard_s, "next_try_s": next_try_s}
    assert dict(head({"agent": AGENT, "link": link, "host": HOST}))["broker"] == told


def test_each_line_of_a_cause_is_a_line_of_trouble() -> None:
    """A NAME.yaml may be wrong in five places."""
    reporter = REPORTER | {"cause": "r.yaml:1: a\nr.yaml:2: b"}
    document = {"agent": AGENT, "link": LINK, "host": HOST, "reporters": [reporter]}
    assert status.troubles(document, {}) == ["broker: no route", "r: r.yaml:1: a", "r: r.yaml:2: b"]


def test_a_condition_that_gives_no_reason_is_shown_as_one_that_does_not() -> None:
    conditions = [
        {"name": "disk", "reason": "", "hold": True},
        {"name": "fan", "reason": "3 of 4 turn", "hold": False},
    ]
    linked = LINK | {"phase": "synced"}
    reporters = [REPORTER | {"conditions": conditions}]
    document = {"agent": AGENT, "link": linked, "host": HOST, "reporters": reporters}
    assert status.troubles(document, {}) == [
        "r: reports disk, without a reason, which holds the host",
        "r: reports fan: 3 of 4 turn",
    ]


def test_what_the_broker_does_not_take_is_trouble_of_whoever_reports_it() -> None:
    words = "lic@pool:matlap: there is no pool:matlap; did you mean 'matlab'?"
    document = {
        "agent": AGENT,
        "link": LINK | {"phase": "synced"},
        "host": HOST | {"refused": [words]},
        "reporters": [],
    }
    assert status.troubles(document, {}) == [f"broker: refuses {words}"]


def test_an_external_reporter_is_shown_as_one_and_is_no_host() -> None:
    link = LINK | {"heard_s": 1, "next_try_s": None}
    nowhere = HOST | {"state": ""}
    shown = head({"agent": AGENT | {"role": "reporter"}, "link": link, "host": nowhere})
    assert [name for name, _ in shown] == ["reporter", "broker"]
    assert [name for name, _ in head({"agent": AGENT, "link": link, "host": HOST})] == [
        "agent",
        "broker",
        "host",
    ]
    assert dict(head({"agent": AGENT, "link": link, "host": HOST}))["host"] == "available (as last heard)"
