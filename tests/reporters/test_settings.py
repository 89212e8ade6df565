"""NAME.yaml beyond its shape: what cannot be carried out is told with its place, and all of it at once."""

import pytest

from xce.model.refusal import ConfigRefused
from xce.reporters.directory import parse_settings


def refused(text: str) -> list[str]:
    with pytest.raises(ConfigRefused) as caught:
        parse_settings(text, "/r/free.yaml")
    return [str(error) for error in caught.value.errors]


def test_all_that_cannot_be_carried_out_is_told_with_its_line() -> None:
    text = """interval: 5
environment:
  A: fine
  XCE_NODE: me
  A=B: x
  N: "x\\0y"
  LONG: {long}
arguments:
  - fine
  - "a\\0b"
  - {longer}
types:
  - {{name: a, kind: numeric}}
  - name: b
    kind: string
  - kind: string
    name: a
""".format(long="x" * 131_066, longer="x" * 131_072)
    assert refused(text) == [
        "/r/free.yaml:4: environment.XCE_NODE: is the agent's to set",
        "/r/free.yaml:5: environment.A=B: cannot be set; letters, digits and '_' only, no digit first",
        "/r/free.yaml:6: environment.N: cannot be set; it holds a NUL character",
        "/r/free.yaml:7: environment.LONG: is longer than 131070 bytes, and cannot be passed on",
        "/r/free.yaml:10: arguments[1]: cannot be passed on; it holds a NUL character",
        "/r/free.yaml:11: arguments[2]: is longer than 131070 bytes, and cannot be passed on",
        "/r/free.yaml:17: types[a].name: is declared twice in this file; remove one",
    ]


def test_what_just_fits_is_taken() -> None:
    text = f"environment: {{LONG: {'x' * 131_065}}}\narguments: [{'x' * 131_070}]\n"
    settings = parse_settings(text, "/r/free.yaml")
    assert len(settings.environment["LONG"]) == 131_065


def test_types_whose_values_would_be_stale_before_the_next_run_are_refused() -> None:
    text = """interval: 60
types:
  - {name: a, kind: numeric, ttl: 60}
  - {name: b, kind: numeric, ttl: 59}
"""
    words = "is less than the interval: a value would be stale before the next one; give"
    assert refused(text) == [f"/r/free.yaml:4: types[b].ttl: {words} 60 or more"]
    quicker = text + "  - {name: c, kind: numeric, interval: 59, ttl: 20}\n"
    assert refused(quicker) == [f"/r/free.yaml:5: types[c].ttl: {words} 59 or more"]


def test_a_reporter_that_runs_on_may_speak_more_often_than_it_must() -> None:
    text = "mode: persistent\ninterval: 60\ntypes: [{name: a, kind: numeric, ttl: 5}]\n"
    assert parse_settings(text, "/r/free.yaml").types[0].ttl == 5
