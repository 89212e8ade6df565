"""Values against types, and a run by its outcome."""

import json
import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce.model.message import ReportedCondition
from xce.model.resource import Kind, ResourceType, Scope
from xce.model.value import Absent, Presence
from xce.reporters.contract import Checked, Context, Verdict, check, fault_of, finish_run, take_frame
from xce.reporters.frame import LIMITS, Frame, Refusal, TooLong, parse_line

TYPES = {
    kind.name: kind
    for kind in (
        ResourceType(name="gb", kind=Kind.NUMERIC, minimum=0, maximum=1000, max_step=100),
        ResourceType(name="n", kind=Kind.NUMERIC),
        ResourceType(name="ok", kind=Kind.BOOLEAN),
        ResourceType(name="state", kind=Kind.STRING),
        ResourceType(name="sets", kind=Kind.STRING_SET),
        ResourceType(name="rack", kind=Kind.STRING, reporter="static"),
        ResourceType(name="theirs", kind=Kind.NUMERIC, reporter="other"),
        ResourceType(name="mine", kind=Kind.NUMERIC, reporter="disk"),
        ResourceType(name="lic", kind=Kind.NUMERIC, scope=Scope.POOL, reporter="licences"),
        ResourceType(name="loose", kind=Kind.NUMERIC, scope=Scope.EXTERNAL),
    )
}
NODE = Context(reporter="disk", types=TYPES, previous={"gb": 500, "n": 7})
OUTSIDE = Context(reporter="licences", types=TYPES, external=True)


def checked(values: object, context: Context = NODE, *, tokens: bool = False) -> Checked:
    frame = parse_line(json.dumps(values).encode())
    assert isinstance(frame, Frame)
    frame.tokens = tokens
    return check(frame, context)


def test_values_that_fit_are_taken_and_sets_are_put_in_order() -> None:
    values = {"gb": 450.5, "n": -3, "ok": True, "state": "Active", "sets": ["b", "a", "b"], "mine": 1}
    result = checked(values)
    assert result.values == values | {"sets": ["a", "b"]}
    assert not result.refusals
    assert not result.silent


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("gb", "12", "expected a number, got a string"),
        ("gb", True, "expected a number, got a boolean"),
        ("gb", "", "expected a number, got a string; null says unknown"),
        ("gb", -1, "below the minimum 0"),
        ("gb", 1001, "above the maximum 1000"),
        ("gb", 700, "changed by 200 at once, more than max_step 100"),
        ("n", float("nan"), "not a finite number; write null for unknown"),
        ("n", 2**70, "does not fit in 64 bits"),
        ("n", {"deep": {"er": 1}}, "expected a number, got an object"),
        ("ok", 1, "expected true or false, got a number"),
        ("state", "a\x1b[31m", "holds a control or invisible character"),
        ("state", "x" * 1025, "longer than 1024 bytes"),
        ("sets", "a,b", "expected a list of strings, got a string"),
        ("sets", ["a", 1], "expected a list of strings, found a number in it"),
        ("sets", [""], "an empty item"),
        ("sets", [str(n) for n in range(1025)], "1025 items, more than 1024"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_alone_and_says_why(
    name: str, value: object, reason: str
) -> None:
    neighbour = "mine"
    result = checked({name: value, neighbour: 1})
    assert result.values == {neighbour: 1}
    (refusal,) = result.refusals
    assert (refusal.name, refusal.reason) == (name, reason)
    absent = result.silent[name]
    assert absent.presence is Presence.UNKNOWN
    assert absent.cause == f"refused: {reason}: {refusal.text}"
    assert absent.last == NODE.previous.get(name)
    assert len(refusal.text) <= 240
    assert refusal.text.isprintable()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "nobody",
            "no such resource type (declare it in resources.yaml, or under 'types:' in disk.yaml)",
        ),
        ("\ufeffgb", "not a name: starts with a byte-order mark"),
        ("a b", "not a name: letters, digits and _ only"),
        ("", "not a name: is empty"),
        ("x" * 64, "not a name: is longer than 63 characters"),
        ("rack", "only hosts.yaml gives it (reporter: static)"),
        ("theirs", "only 'other' reports it"),
        ("lic", "has scope pool: only an external reporter (xce-reporter run) gives it"),
        ("gb@host:other", "a reporter on a node gives values of its own host: leave out '@'"),
    ],
)
def test_a_name_that_the_reporter_may_not_give_leaves_no_reading(name: str, reason: str) -> None:
    result = checked({name: 1, "n": 2})
    assert result.values == {"n": 2}
    assert result.silent == {}
    assert result.refusals[0].reason.startswith(reason)


def test_a_name_whose_type_waits_for_the_broker_is_not_said_to_be_undeclared() -> None:
    context = Context(reporter="disk", types=TYPES, waiting={"new": "/r/new.yaml"})
    (refusal,) = checked({"new": 1}, context).refusals
    assert refusal.reason == "its type, declared in /r/new.yaml, waits for the broker to let it in"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("lic", ""),
        ("lic@pool:matlab", ""),
        ("lic@host:node1", "a value of scope pool is at pool:NAME or storage:NAME, not at host:node1"),
        ("lic@group:gpu", "a value of scope pool is at pool:NAME or storage:NAME, not at group:gpu"),
        ("lic@matlab", "location 'matlab': expected host:NAME, group:NAME, pool:NAME or storage:NAME"),
        ("loose", "its type names no reporter"),
        ("n", "has scope host: only a reporter on the host gives it"),
    ],
)
def test_an_external_reporter_gives_what_its_identity_is_assigned(name: str, reason: str) -> None:
    result = checked({name: 5}, OUTSIDE)
    assert result.values == ({} if reason else {name: 5})
    assert [refusal.reason for refusal in result.refusals] == ([reason] if reason else [])


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("n", "5", 5),
        ("n", "-5.25", -5.25),
        ("n", "1e3", 1000.0),
        ("n", ".5", 0.5),
        ("ok", "1", True),
        ("ok", "0", False),
        ("state", "12", "12"),
    ],
)
def test_an_elim_word_becomes_what_its_type_says(name: str, word: str, value: object) -> None:
    result = checked({name: word}, tokens=True)
    assert result.values == {name: value}
    assert type(result.values[name]) is type(value)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("n", "12,5"),
        ("n", "nan"),
        ("n", "inf"),
        ("n", "0x10"),
        ("n", "1_0"),
        ("n", "1" * 30),
        ("n", "٣"),
        ("ok", "2"),
        ("sets", "a"),
    ],
)
def test_an_elim_word_that_is_no_such_thing_is_refused(name: str, word: str) -> None:
    result = checked({name: word}, tokens=True)
    assert not result.values
    assert result.silent[name].presence is Presence.UNKNOWN


def test_lsfs_dash_is_unknown_for_every_kind() -> None:
    result = checked({"n": "-", "state": "-"}, tokens=True)
    assert [value for value in result.values.values() if isinstance(value, Absent)] == [
        Absent(Presence.UNKNOWN, cause="the reporter says null")
    ] * 2


def test_conditions_are_checked_one_by_one() -> None:
    line = json.dumps(
        {
            "xce": 1,
            "conditions": [
                {"name": "ro_root", "reason": "/ is read-only\n", "hold": True},
                {"name": "note"},
                {"name": "note", "reason": "again"},
                {"name": "a b"},
                {"name": "x", "hold": "yes"},
                {"reason": "no name"},
                5,
            ],
        }
    )
    frame = parse_line(line.encode(), 4)
    assert isinstance(frame, Frame)
    outcome = take_frame(frame, NODE)
    assert outcome.conditions == [
        ReportedCondition(name="ro_root", reason="/ is read-only\\n", hold=True),
        ReportedCondition(name="note"),
    ]
    assert [str(refusal).split(": {")[0] for refusal in outcome.refusals][:3] == [
        "line 4: note: given twice in one frame",
        "line 4: a b: not a name: letters, digits and _ only, not starting with a digit; "
        "parts may be joined by a dot",
        "line 4: x: 'hold' must be true or false",
    ]
    assert outcome.refused == 5


def test_a_condition_that_holds_the_host_without_saying_why_is_taken_and_noted() -> None:
    line = b'{"xce": 1, "conditions": [{"name": "full", "hold": true}, {"name": "old"}]}'
    outcome = finish_run([line], NODE)
    assert [(each.name, each.reason, each.hold) for each in outcome.conditions or ()] == [
        ("full", "", True),
        ("old", "", False),
    ]
    note = "line 1: the condition full has no 'reason': whoever finds the host held will ask for one"
    assert (outcome.refused, outcome.notes) == (0, [note])


def test_a_slip_in_a_key_of_an_instance_or_a_condition_is_noted() -> None:
    """`attribute` for `attributes` and `held` for `hold` once said nothing, and nobody was told."""
    unit = b'{"id": "x", "kind": "gpu", "attribute": {"numa": 1}}'
    condition = b'{"name": "full", "reason": "r", "held": true}'
    line = b'{"xce": 1, "instances": [' + unit + b'], "conditions": [' + condition + b"]}"
    outcome = finish_run([line], NODE)
    assert outcome.notes == [
        "line 1: the key 'attribute' of an instance means nothing here",
        "line 1: the key 'held' of a condition means nothing here",
    ]
    assert (outcome.refused, len(outcome.conditions or ())) == (0, 1)


def test_the_last_line_of_a_run_wins_and_that_is_noted() -> None:
    outcome = finish_run([b'{"n": 1, "ok": true}', b'{"n": 2}', b'{"ok": 5}'], NODE)
    assert outcome.values == {"n": 2}
    assert outcome.silent["ok"].cause.startswith("refused: expected true or false")
    assert outcome.notes == ["given by several lines, the last one counts: n"]
    assert outcome.frames == 3


def test_a_finished_run_makes_the_names_that_it_lacks_unknown() -> None:
    outcome = finish_run([b'{"n": 1}'], NODE, names=["n", "gb"])
    assert outcome.silent == {"gb": Absent(Presence.UNKNOWN, cause="not in the last run", last=500)}


def test_a_run_that_prints_nothing_says_so() -> None:
    outcome = finish_run([b""], NODE, names=["n"])
    assert outcome.notes == ["printed nothing"]
    assert outcome.silent["n"].cause == "not in the last run"
    assert outcome.conditions == []


def test_conditions_end_with_the_run_that_does_not_give_them_and_inventories_do_not() -> None:
    outcome = finish_run([b'{"n": 1}'], NODE)
    assert outcome.conditions == []
    assert outcome.instances is None
    outcome = finish_run(
        [
            b'{"xce":1,"conditions":[{"name":"a"}],"instances":[{"id":"1","kind":"gpu"}]}',
            b'{"xce":1,"conditions":[{"name":"b"}]}',
        ],
        NODE,
    )
    assert [condition.name for condition in outcome.conditions or []] == ["a", "b"]
    assert outcome.instances
    assert outcome.instances.complete


def test_a_frame_of_a_persistent_reporter_says_nothing_of_what_is_not_in_it() -> None:
    frame = parse_line(b'{"n": 1}')
    assert isinstance(frame, Frame)
    outcome = take_frame(frame, NODE)
    assert outcome.silent == {}
    assert outcome.conditions is None
    refusal = take_frame(Refusal(reason="not JSON", line=3), NODE)
    assert (refusal.refused, refusal.trouble) == (1, "line 3: not JSON")


def test_a_failed_run_gives_nothing_and_still_shows_what_was_wrong_with_its_lines() -> None:
    outcome = finish_run([b'{"n": 1}', b"oops"], NODE, fault="exit status 3", names=["n"])
    assert (outcome.verdict, outcome.cause) == (Verdict.FAILED, "exit status 3")
    assert (outcome.values, outcome.silent, outcome.conditions) == ({}, {}, None)
    assert outcome.trouble.startswith("line 2: expected one JSON object")


def test_status_78_makes_all_declared_names_not_applicable() -> None:
    outcome = finish_run([], NODE, not_applicable=78, names=["n"], promised=["gb", "undeclared"])
    assert outcome.verdict is Verdict.NOT_APPLICABLE
    assert {name: absent.presence for name, absent in outcome.silent.items()} == {
        "n": Presence.NOT_APPLICABLE,
        "gb": Presence.NOT_APPLICABLE,
    }
    assert outcome.silent["n"].cause == "the reporter ended with status 78"
    assert outcome.conditions == []


def test_a_line_beyond_the_limit_costs_only_itself() -> None:
    outcome = finish_run([TooLong(b"{...", LIMITS.frame_bytes), b'{"n": 1}'], NODE, names=["ok"])
    assert outcome.values == {"n": 1}
    assert outcome.trouble == "line 1: longer than 262144 bytes, the limit of one line: {..."
    assert outcome.silent["ok"].cause == "not in the last run, of which line 1 was refused"


def test_refusals_are_kept_up_to_a_number_and_all_counted() -> None:
    outcome = finish_run([b"x"] * 500, NODE)
    assert (len(outcome.refusals), outcome.refused) == (LIMITS.refusals, 500)
    assert outcome.trouble.endswith("(and 499 more)")


@pytest.mark.parametrize(
    ("status", "killed_by", "stderr", "fault"),
    [
        (0, 0, "all is well", ""),
        (78, 0, "", ""),
        (37, 0, "cannot read quota table, using df\n", "exit status 37: cannot read quota table, using df"),
        (1, 0, "", "exit status 1"),
        (0, signal.SIGSEGV, "", "killed by SIGSEGV"),
        (0, 99, "\x1b[31mred", "killed by signal 99: \\x1b[31mred"),
    ],
)
def test_the_fault_of_a_run_has_its_status_and_first_complaint(
    status: int, killed_by: int, stderr: str, fault: str
) -> None:
    assert fault_of(status=status, killed_by=killed_by, stderr=stderr) == fault


GOOD = {"n": st.integers(-(2**62), 2**62), "ok": st.booleans(), "state": st.sampled_from(["", "Active", "ä"])}
BAD = st.sampled_from(
    [b"{", b'{"n":', b"\xff", b'{"nobody": 1}', b'{"sets": 5}', b'{"xce": 9}', b'{"n": 12,5}']
)


@given(st.fixed_dictionaries(GOOD), st.lists(BAD, max_size=5), st.randoms())
def test_bad_lines_never_cost_the_values_of_good_ones(
    values: dict[str, object], bad: list[bytes], random: object
) -> None:
    good = [json.dumps({name: value}).encode() for name, value in values.items()]
    lines = [*good, *bad]
    random.shuffle(lines)  # type: ignore[attr-defined]
    outcome = finish_run(lines, NODE, names=list(values))
    assert outcome.values == values
    assert outcome.refused == len(bad)
    assert set(outcome.silent) <= {"sets"}


def test_ten_thousand_lines_with_a_name_each_are_joined_at_once() -> None:
    types = {f"n{number}": ResourceType(name=f"n{number}", kind=Kind.NUMERIC) for number in range(4000)}
    lines = [b'{"n%d": %d}' % (number % 4000, number) for number in range(10_000)]
    began = time.thread_time()
    outcome = finish_run(lines, Context(reporter="disk", types=types))
    assert time.thread_time() - began < 1.5  # 0.2 s; it was 2.5 s, and grew with the square
    assert len(outcome.values) == 4000
    assert outcome.values["n0"] == 8000


def test_more_conditions_than_anybody_can_read_are_counted_not_told_one_by_one() -> None:
    line = b'{"xce":1,"conditions":[' + b"1," * 100_000 + b"1]}"
    outcome = take_frame(parse_line(line) or Frame(), NODE)
    assert outcome.refused < 2000
    assert outcome.refusals[0].reason == "100001 of them; only the first 1024 were looked at"
    lines = [b'{"xce":1,"conditions":[{"name":"c%d"}]}' % number for number in range(LIMITS.conditions + 9)]
    run = finish_run(lines, NODE)
    assert len(run.conditions or []) == LIMITS.conditions
    assert run.refusals[0].reason == "73 of them in one run, more than 64"
