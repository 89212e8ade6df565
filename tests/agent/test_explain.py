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
    "user": "nobody",
    "pid": None,
    "running_s": None,
    "last_run_s": None,
    "took_s": None,
    "exit": "",
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


def test_the_run_that_goes_on_is_told_apart_from_the_last_one_that_is_over() -> None:
    over = REPORTER | {"last_run_s": 9.0, "took_s": 4.0, "exit": "exit status 0"}
    shown = lines(DOCUMENT | {"reporter": over | {"running_s": 1.0, "pid": 71}})
    assert ("running", "for 1 s, pid 71, as nobody") in shown
    assert ("last run", "9 s ago, took 4 s, exit status 0, as nobody") in shown
    assert not [text for label, text in lines(DOCUMENT | {"reporter": over}) if label == "running"]


def test_what_was_never_seen_has_no_time_to_be_stale_at() -> None:
    held: dict[str, Any] = {"presence": "never-seen", "cause": "promised", "last": None, "value": None}
    held |= {"age_s": None, "run": 0, "ttl_s": 0.0, "since_s": 3.0, "rivals": [], "history": [{}]}
    assert ("freshness", "unchanged for 3 s") in lines(DOCUMENT | {"held": held})
    assert ("freshness", "stale after 5 s; unchanged for 3 s") in lines(
        DOCUMENT | {"held": held | {"ttl_s": 5}}
    )
