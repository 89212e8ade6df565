"""LSF's `N name value ...`: whole reports are taken, and a word is never taken for another's value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce.reporters.elim import Stream
from xce.reporters.frame import Frame, Refusal, TooLong


def read(*lines: bytes) -> tuple[list[dict[str, object]], list[str]]:
    stream = Stream()
    results = [result for line in lines for result in stream.feed(line)]
    values = [result.values for result in results if isinstance(result, Frame)]
    return values, [str(result) for result in results if isinstance(result, Refusal)]


@pytest.mark.parametrize(
    "lines",
    [
        (b"2 a 1 b -\n",),
        (b"  2\ta 1   b - \r\n",),
        (b"2\n", b"a 1\n", b"\n", b"b -\n"),
        (b"2 a 1", b"b -"),
        (b"\xef\xbb\xbf2 a 1 b -",),
    ],
)
def test_a_report_may_be_spread_over_lines(lines: tuple[bytes, ...]) -> None:
    assert read(*lines) == ([{"a": "1", "b": "-"}], [])


def test_several_reports_may_stand_on_one_line() -> None:
    assert read(b"1 a 1 2 a 2 b 3 0") == ([{"a": "1"}, {"a": "2", "b": "3"}, {}], [])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"3 a 5 b c 7", "expected a name, got '7': a value is missing before it"),
        (b"2 a 5 b", "'b' has no value on its line"),
        (b"1 a 5 b 6", "more than the 1 values that were announced"),
        (b"a 5", "expected the number of values"),
        (b"12,5 a 1", "'12,5' is not a number of values"),
        (b"2000 a 1", "2000 values, more than 1024"),
        (b"1 a \xff", "not UTF-8 at byte 5"),
    ],
)
def test_a_report_that_does_not_add_up_gives_nothing_and_the_next_is_read(line: bytes, reason: str) -> None:
    values, refused = read(line, b"1 a 9")
    assert values == [{"a": "9"}]
    assert len(refused) == 1
    assert refused[0].startswith(f"line 1: {reason}")


def test_a_report_that_is_cut_short_by_the_next_one_gives_nothing() -> None:
    values, refused = read(b"3 a 1 b 2", b"3 a 4 b 5 c 6")
    assert values == [{"a": "4", "b": "5", "c": "6"}]
    assert refused == ["line 1: report of 3 values ended after 2: the next report began: 3 a 1 b 2"]


def test_a_name_given_twice_in_a_report_is_refused_alone() -> None:
    (frame,) = Stream().feed(b"3 a 1 b 2 a 3")
    assert isinstance(frame, Frame)
    assert frame.values == {"b": "2"}
    assert [str(refusal) for refusal in frame.refusals] == ["line 1: a: given twice in one report"]


def test_a_line_beyond_the_limit_is_named_and_the_next_is_read() -> None:
    stream = Stream()
    (refusal,) = stream.feed(TooLong(b"1 a xxxx", 65536))
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "longer than 65536 bytes, the limit of one elim line"
    (frame,) = stream.feed(b"1 a 2")
    assert isinstance(frame, Frame)
    assert (frame.values, frame.line, frame.tokens) == ({"a": "2"}, 2, True)


def test_an_open_report_can_be_given_up() -> None:
    stream = Stream()
    stream.feed(b"2 a 1")
    assert [str(refusal) for refusal in stream.drop("no more came within 4 s")] == [
        "line 1: report of 2 values ended after 1: no more came within 4 s: 2 a 1"
    ]
    assert stream.drop("again") == []


NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)
WORDS = st.text(alphabet="abc0123.,-+", min_size=1, max_size=6)
PAIRS = st.dictionaries(NAMES, WORDS, max_size=6)


@given(PAIRS, st.data())
def test_a_report_with_one_word_lost_never_stores_a_value_under_a_wrong_name(
    pairs: dict[str, str], data: st.DataObject
) -> None:
    words = [str(len(pairs)), *(word for pair in pairs.items() for word in pair)]
    lost = data.draw(st.integers(0, len(words) - 1))
    line = " ".join(words[:lost] + words[lost + 1 :]).encode()
    values, _ = read(line, b"1 after 1")
    assert values[-1] == {"after": "1"}
    for frame in values[:-1]:
        assert all(pairs.get(name) == word for name, word in frame.items())


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_no_bytes_raise_and_reading_always_starts_anew(lines: list[bytes]) -> None:
    values, _ = read(*[line.replace(b"\n", b" ") for line in lines], b"x", b"1 after 1")
    assert values[-1] == {"after": "1"}


@given(st.lists(PAIRS, max_size=5))
def test_sound_reports_are_all_read(reports: list[dict[str, str]]) -> None:
    lines = [
        " ".join([str(len(pairs)), *(word for pair in pairs.items() for word in pair)]).encode()
        for pairs in reports
    ]
    assert read(*lines) == (reports, [])
