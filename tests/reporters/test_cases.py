"""Reported troubles of other systems, retold as bytes: C-REP-02 to C-REP-05 of the cases."""

import json
from pathlib import Path

from xce.model.resource import Kind, ResourceType
from xce.model.value import Absent, Presence
from xce.reporters.contract import Context, Outcome, finish_run, take_frame
from xce.reporters.elim import Stream
from xce.reporters.frame import Lines, Refusal

CASES = Path(__file__).parent.parent / "cases" / "reporters"
KINDS = json.loads((CASES / "resources.json").read_text()) | {f"d{n:02}": "numeric" for n in range(1, 21)}
TYPES = {name: ResourceType(name=name, kind=Kind(kind)) for name, kind in KINDS.items()}
CONTEXT = Context(reporter="case", types=TYPES, previous={"free_b": 3, "d12": 1, "scratch_free_gb": 9.5})


def run(file: str, names: tuple[str, ...] = ()) -> Outcome:
    lines = Lines()
    output = lines.feed((CASES / file).read_bytes()) + lines.end()
    return finish_run(output, CONTEXT, names=names)


def elim(file: str) -> list[Outcome]:
    stream = Stream()
    frames = [frame for line in Lines().feed((CASES / file).read_bytes()) for frame in stream.feed(line)]
    return [take_frame(frame, CONTEXT) for frame in frames]


def test_c_rep_02_a_decimal_comma_costs_its_line_and_nothing_else() -> None:
    outcome = run("comma.jsonl", names=("scratch_free_gb",))
    assert outcome.values == {"free_a": 5, "free_c": 7}
    assert outcome.silent["scratch_free_gb"] == Absent(
        Presence.UNKNOWN, cause="not in the last run, of which line 2 was refused", last=9.5
    )
    assert outcome.trouble.startswith("line 2: not JSON at column 24: ")
    assert "a decimal comma? 12,5 must be 12.5" in outcome.trouble
    assert outcome.trouble.endswith('{"scratch_free_gb": 12,5}')


def test_c_rep_02_a_decimal_comma_in_an_elim_costs_one_value() -> None:
    (outcome,) = elim("comma.elim")
    absent = outcome.silent["scratch_free_gb"]
    assert outcome.values == {"free_a": 5, "free_c": 7}
    assert "decimal comma" in absent.cause
    assert "12,5" in outcome.trouble


def test_c_rep_03_null_is_unknown_and_not_zero() -> None:
    outcome = run("missing.jsonl")
    absent = outcome.values.pop("free_b")
    assert outcome.values == {"free_a": 5, "free_c": 7}
    assert absent == Absent(Presence.UNKNOWN, cause="the reporter says null")
    assert not outcome.refused


def test_c_rep_03_an_empty_string_is_no_number() -> None:
    outcome = run("missing-empty.jsonl")
    absent = outcome.silent["free_b"]
    assert outcome.values == {"free_a": 5, "free_c": 7}
    assert absent.presence is Presence.UNKNOWN
    assert outcome.trouble == ('line 2: free_b: expected a number, got a string; null says unknown: ""')


def test_c_rep_03_an_elim_line_that_lacks_a_value_gives_nothing() -> None:
    (outcome,) = elim("missing.elim")
    assert outcome.values == {}
    assert outcome.trouble == (
        "line 1: expected a name, got '7': a value is missing before it: 3 free_a 5 free_b free_c 7"
    )


def test_c_rep_04_one_bad_line_among_twenty_costs_one_value() -> None:
    outcome = run("poison.jsonl", names=tuple(f"d{n:02}" for n in range(1, 21)))
    absent = outcome.silent["d12"]
    assert outcome.values == {f"d{n:02}": n * 10 for n in range(1, 21) if n != 12}
    assert absent.presence is Presence.UNKNOWN
    assert absent.last == 1
    assert outcome.refusals == [
        Refusal(name="d12", reason="expected a number, got a string", text='"0.2s)"', line=12)
    ]


def test_c_rep_05_crlf_and_a_byte_order_mark_leave_no_trace_in_values() -> None:
    outcome = run("crlf-bom.jsonl")
    assert outcome.values == {"scratch_free_gb": 12.5, "ib_state": "Active"}
    assert not outcome.refused
    assert outcome.notes == [
        "line 1: starts with a byte-order mark, which was skipped: save the script without it"
    ]
    (outcome,) = elim("crlf.elim")
    assert outcome.values == {"scratch_free_gb": 12.5, "ib_state": "Active"}


def test_c_rep_09_nothing_is_taken_of_a_run_that_failed() -> None:
    outcome = finish_run([b'{"scratch_free_gb": 12.5}'], CONTEXT, fault="exit status 37: cannot read quota")
    assert (outcome.verdict, outcome.cause) == ("failed", "exit status 37: cannot read quota")
    assert outcome.values == {}
    assert outcome.frames == 1
