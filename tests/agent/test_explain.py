"""What `xce-agent explain` says to people, from the document that the agent answers with."""

from typing import Any

from xce.agent.cli.explain import lines

DOCUMENT: dict[str, Any] = {
    "name": "x",
    "type": {"name": "x", "kind": "numeric"},
    "waiting": "",
    "refused": [],
    "held": None,
    "reporter": None,
    "host": {"state": "available", "holds": []},
    "broker": {"known": True, "reading": None, "differs": "", "revision": 7},
}
REPORTER: dict[str, Any] = {
    "name": "r",
    "state": "refused",
    "path": "/r",
    "script": "",
    "last_run_s": None,
    "next_run_s": None,
    "cause": "",
    "stderr": "",
    "note": "",
    "notes": [],
}


def test_a_resource_that_no_host_reports_is_said_to_be_none() -> None:
    pooled = DOCUMENT["type"] | {"scope": "pool"}
    first = lines(DOCUMENT | {"type": pooled})[0]
    assert first == ("x", "is of scope pool, which no host reports; xce-broker supply x")
    assert lines(DOCUMENT)[0] == ("x", "no value: no reporter of this host has given it")


def test_causes_and_notes_of_several_lines_are_several_lines() -> None:
    reporter = REPORTER | {"cause": "r.yaml:1: a\nr.yaml:2: b", "note": "c\nd", "notes": ["e"]}
    shown = lines(DOCUMENT | {"reporter": reporter})
    assert [text for label, text in shown if label == "trouble"] == ["r.yaml:1: a", "r.yaml:2: b"]
    assert [text for label, text in shown if label == "note"] == ["c", "d", "e"]
