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
    "last_script": "",
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


def test_the_script_that_the_newest_value_is_of_is_named_while_a_changed_one_has_its_first_run() -> None:
    same = REPORTER | {"state": "waiting", "script": "beef", "last_script": "beef"}
    assert ("reporter", "r (waiting) /r, script beef") in lines(DOCUMENT | {"reporter": same})
    changed = same | {"state": "running", "script": "cafe"}
    told = "r (running) /r, script cafe, and what is known is of script beef"
    assert ("reporter", told) in lines(DOCUMENT | {"reporter": changed})
