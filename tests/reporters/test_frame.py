"""One line of output: what is read, what is refused with which words, and that no bytes break it."""

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from xce.reporters.frame import LIMITS, Frame, Lines, Refusal, TooLong, Unfit, escape, parse_line, shown


def frame(line: bytes) -> Frame:
    result = parse_line(line, 1)
    assert isinstance(result, Frame), result
    return result


def test_the_short_form_is_an_object_of_values() -> None:
    assert frame(b' {"a": 1, "b": null, "c": ["x"], "d": 2.5}\r\n').values == {
        "a": 1,
        "b": None,
        "c": ["x"],
        "d": 2.5,
    }


def test_the_full_form_has_values_instances_and_conditions() -> None:
    parsed = frame(b'{"xce":1,"values":{"a":1},"instances":[{}],"complete":false,"conditions":[{}]}')
    assert (parsed.values, parsed.instances, parsed.complete, parsed.conditions) == (
        {"a": 1},
        [{}],
        False,
        [{}],
    )
    parsed = frame(b'{"xce":1,"vales":{"a":1}}')
    assert parsed.values == {}
    assert parsed.instances is None
    assert parsed.notes == ["the key 'vales' means nothing here"]


@pytest.mark.parametrize("line", [b"", b"\n", b" \t\r\n", b"\xef\xbb\xbf\n"])
def test_a_blank_line_says_nothing(line: bytes) -> None:
    assert parse_line(line) is None


def test_a_name_given_twice_is_refused_and_its_neighbours_are_kept() -> None:
    parsed = frame(b'{"a": 1, "b": 2, "a": 3}')
    assert parsed.values == {"b": 2}
    assert [str(refusal) for refusal in parsed.refusals] == ["line 1: a: given 2 times in one object: 1, 3"]


def test_numbers_that_nobody_can_keep_cost_only_their_name() -> None:
    parsed = frame(
        b'{"a": NaN, "b": -Infinity, "c": 1e999, "d": 9223372036854775808, "e": 9223372036854775807, "f": '
        + b"1" * 5000
        + b"}"
    )
    assert [name for name, value in parsed.values.items() if not isinstance(value, Unfit)] == ["e"]
    assert parsed.values["d"] == Unfit("9223372036854775808", "does not fit in 64 bits")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"a": 5,', "not JSON at column 9: expected a name in double quotes; the line ends too early"),
        (b'{"a": 12,5}', "a decimal comma? 12,5 must be 12.5, whatever the locale"),
        (b'{"a": -0,25, "b": 1}', "a decimal comma? -0,25 must be -0.25"),
        (b'{"a": }', "not JSON at column 7: a value is missing or not JSON; write null for unknown"),
        (b'{"a": , "b": 1}', "write null for unknown"),
        (b"{'a': 1}", "JSON has double quotes only"),
        (b'{"a": True}', "JSON has true, false and null"),
        (b'{"a": nan}', "and no nan"),
        (b'{"a": 1,}', "a comma before the closing bracket"),
        (b'{"a": 1} {"b": 2}', "not JSON at column 10: something follows the object"),
        (b'{"a": "x}', "not JSON at column 7: a string does not end"),
        (b'{"a": "\x07"}', "a control character inside a string"),
        (b'{"a":\x001}', "a NUL byte at column 6"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 8"),
        (b"[1]", "expected one JSON object"),
        (b"a=1", 'expected one JSON object: {"NAME": VALUE, ...}'),
        (b"2 a 1 b 2", "for LSF's `N name value` output set `mode: elim`"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 20_000, "nested too deeply"),
        (b'{"xce": 2}', "frame of version 2; this agent reads version 1"),
        (b'{"xce": true}', "frame of version true"),
        (b'{"xce": 1, "values": []}', "'values' must be an object"),
        (b'{"xce": 1, "instances": {}}', "'instances' must be a list"),
        (b'{"xce": 1, "complete": 1}', "'complete' must be true or false"),
        (b'{"xce": 1, "values": {}, "values": {}}', "'values' occurs twice in the frame"),
    ],
)
def test_a_line_that_is_refused_says_where_and_why(line: bytes, words: str) -> None:
    refusal = parse_line(line, 7)
    assert isinstance(refusal, Refusal)
    assert words in refusal.reason
    assert (refusal.name, refusal.line) == ("", 7)
    assert refusal.text
    assert refusal.text.isprintable()


def test_a_frame_at_the_limit_is_read_and_one_byte_more_is_named() -> None:
    line = b'{"a": "' + b"x" * (LIMITS.frame_bytes - 9) + b'"}'
    assert len(line) == LIMITS.frame_bytes
    assert frame(line).values["a"] == "x" * (LIMITS.frame_bytes - 9)
    refusal = parse_line(line + b" ", 3)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "longer than 262144 bytes, the limit of one line"
    assert refusal.text.startswith('{"a": "xxx')


def test_more_values_than_the_limit_are_refused_whole() -> None:
    many = {f"n{number}": number for number in range(LIMITS.values + 1)}
    refusal = parse_line(json.dumps(many).encode())
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "1025 values, more than 1024 in one frame"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
PIECES = st.sampled_from(
    [
        b'{"a":1}',
        b'{"xce":1,',
        b'"values":{',
        b"}",
        b",",
        b":",
        b'"',
        b"\\u",
        b"nan",
        b"\xef\xbb\xbf",
        b"1e9",
        b" ",
        b"[",
        b"]",
        b"'",
    ]
)


@given(
    st.binary(max_size=300)
    | st.lists(PIECES, max_size=12).map(b"".join)
    | JSON.map(lambda doc: json.dumps(doc).encode())
)
@example(b'{"\\ud800": 1, "\\ud800": 2}')
@example(b'{"a": "\\ud800"}')
@example(b'\xef\xbb\xbf\xef\xbb\xbf{"a":1}')
def test_no_bytes_raise_and_what_is_refused_gives_no_name(line: bytes) -> None:
    result = parse_line(line, 1)
    if isinstance(result, Refusal):
        assert result.name == ""
        assert len(result.text) <= 2000
        assert result.text.isprintable()
        assert result.reason.isprintable()
    elif result is not None:
        assert all(refusal.name not in result.values for refusal in result.refusals)


@given(st.dictionaries(st.text(max_size=8), st.integers(-(2**63) + 1, 2**63 - 1) | st.text(), max_size=8))
def test_what_json_can_say_is_read_as_it_was_said(values: dict[str, object]) -> None:
    assert frame(json.dumps({"xce": 1, "values": values}).encode()).values == values


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line)), st.integers(1, 9))
def test_lines_are_the_same_however_the_stream_is_cut(lines: list[bytes], size: int) -> None:
    stream = b"".join(line + b"\n" for line in lines) + b"rest"
    cutter = Lines(limit=12)
    found = [line for at in range(0, len(stream), size) for line in cutter.feed(stream[at : at + size])]
    found += cutter.end()
    assert found == [line if len(line) <= 12 else TooLong(line[:12], 12) for line in [*lines, b"rest"]]


def test_an_endless_line_is_told_at_once_and_costs_no_memory() -> None:
    cutter = Lines(limit=1000)
    found = [line for _ in range(1000) for line in cutter.feed(b"x" * 4096)]
    assert found == [TooLong(b"x" * 200, 1000)]
    assert cutter.feed(b'x\n{"a":1}\n') == [b'{"a":1}']


@given(st.text())
def test_escaped_text_is_printable_and_bounded(text: str) -> None:
    assert escape(text, 50).isprintable()
    assert len(escape(text, 50)) <= 500


@pytest.mark.parametrize(
    "line", [b"{" + b"1" * 200_000, b'{"a": 1,' + b"1" * 200_000, b"{1" + b",1" * 100_000]
)
def test_looking_for_the_usual_reason_takes_no_time_on_a_line_of_digits(line: bytes) -> None:
    began = time.thread_time()
    assert isinstance(parse_line(line, 1), Refusal)
    assert time.thread_time() - began < 1  # some milliseconds; it was a minute


def test_a_value_that_is_nested_as_deep_as_can_be_read_can_be_shown() -> None:
    for depth in range(1, 1200):
        line = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
        parsed = parse_line(line, 1)
        if isinstance(parsed, Frame):
            assert deeper(lambda value=parsed.values["a"]: shown(value), 5)  # type: ignore[misc]


def deeper(call: Callable[[], str], frames: int) -> str:
    """Call with so much less of the stack left: who shows is deeper in it than who reads."""
    return deeper(call, frames - 1) if frames else call()
