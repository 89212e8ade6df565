"""What people see: rows, cells and sentences, made from the map alone."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.test_mirror import delta, mirror
from xce.broker import views
from xce.broker.cli import changes, output
from xce.model import human
from xce.model.message import LocationChange, LocationView, ReporterState
from xce.model.resource import Kind, ResourceType
from xce.model.supply import Hold, PoolAmount, Source
from xce.model.value import Absent, Presence

HOLD = Hold(owner="reporter:health", reason="fan 3 is dead")
STALE = Absent(Presence.STALE, cause="not refreshed within 40 s", last=0.4, since_ms=2000)
NODE = LocationView(
    source=Source.CONFIG,
    state="available",
    holds=[HOLD],
    values={"mem": 812, "ut": STALE, "rack": "r7", "arch": Absent(Presence.NOT_APPLICABLE)},
    reporters={
        "builtin": ReporterState(state="waiting"),
        "lic": ReporterState(state="backoff", cause="exit 3"),
    },
    origins={"mem": "builtin", "ut": "builtin", "arch": "lic"},
    ages_ms={"builtin": 4200},
)
POOL = LocationView(
    source=Source.CONFIG,
    state="available",
    values={"lic_free": 7},
    amounts={"lic": PoolAmount(base=10, borrowed=2.5)},
    origins={"lic_free": "lic"},
    reporters={"lic": ReporterState(state="backoff", cause="exit status 3")},
    ages_ms={"lic": 90_000},
)


def test_a_supply_row_says_value_age_origin_and_cause() -> None:
    rows = {row.resource: row for row in views.supply_rows(mirror({"host:node1": NODE}))}
    assert (rows["mem"].value, rows["mem"].age_s, rows["mem"].reporter) == (812, 4.2, "builtin")
    assert (rows["ut"].value, rows["ut"].last, rows["ut"].age_s) == (None, 0.4, 3.0)
    assert rows["ut"].cause == "not refreshed within 40 s"
    assert (rows["rack"].age_s, rows["rack"].reporter) == (None, ""), "what is configured does not age"
    assert all(row.holds == [HOLD] for row in rows.values())


def test_problems_are_what_is_absent_without_meaning_to_be_and_what_its_reporter_cannot_refresh() -> None:
    rows = views.supply_rows(mirror({"host:node1": NODE, "pool:lic": POOL}))
    assert [row.resource for row in rows if row.is_problem] == ["lic_free", "ut"]


def test_what_was_never_seen_says_what_its_reporter_died_of() -> None:
    promised = Absent(Presence.NEVER_SEEN, cause="promised by 'lic', not heard yet")
    view = msgspec.structs.replace(NODE, values={"arch": promised})
    (row,) = views.supply_rows(mirror({"host:node1": view}))
    assert row.cause == "promised by 'lic', not heard yet; backoff: exit 3"


def test_a_pool_shows_its_amounts_and_what_is_reported_apart() -> None:
    amount, reported = views.pool_rows(mirror({"pool:lic": POOL}))
    assert (amount.resource, amount.base, amount.borrowed, amount.total) == ("lic", 10, 2.5, 12.5)
    assert (amount.reported, amount.presence) == (None, None)
    assert (reported.resource, reported.reported, reported.age_s, reported.total) == ("lic_free", 7, 90, None)
    assert reported.cause == "exit status 3"


def test_an_amount_that_nobody_reports_is_supply() -> None:
    rows = {row.resource: row for row in views.supply_rows(mirror({"pool:lic": POOL}))}
    assert rows["lic"].value == 12.5


def test_a_host_row_counts_its_readings_and_names_its_troubled_reporters() -> None:
    (row,) = views.host_rows(mirror({"host:node1": NODE, "pool:lic": POOL}))
    assert row.presences == {"value": 2, "stale": 1, "not-applicable": 1}
    assert row.trouble == {"lic": "backoff: exit 3"}
    assert row.is_problem


def test_hosts_are_listed_as_people_count() -> None:
    names = [f"host:node{n}" for n in (10, 9, 100, 1)]
    rows = views.host_rows(mirror(dict.fromkeys(names, NODE)))
    assert [row.host for row in rows] == ["node1", "node9", "node10", "node100"]


@given(st.integers(0), st.integers(0), st.text(alphabet="a\u0663\u00b2-", max_size=6))
def test_any_two_numbers_in_a_name_are_in_their_order(one: int, other: int, text: str) -> None:
    names = [f"{text}{number}{text}" for number in sorted((one, other))]
    assert sorted(names, key=views.natural) == names


def test_a_plain_table_has_a_word_in_every_cell() -> None:
    lines = human.table(("HOST", "STATE", "HOLDS"), [("n1", "available", ""), ("node10", "lost", "a (b)")])
    assert lines == ["HOST    STATE      HOLDS", "n1      available  -", "node10  lost       a (b)"]


def test_no_name_is_broken_on_a_narrow_terminal_and_empty_columns_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    name = "a_resource_with_a_name_that_is_long"
    output.table(("RESOURCE", "LOCATION", "HOLDS", "CAUSE"), [(name, "host:node17", "", "z " * 40)], none="")
    shown = capsys.readouterr().out
    assert name in shown
    assert "host:node17" in shown
    assert "HOLDS" not in shown
    assert shown.count("z") == 40


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, ""), (0.04, "40 ms"), (9.94, "10 s"), (119, "119 s"), (3725, "62 min"), (200_000, "2 d")],
)
def test_ages_are_said_as_a_person_says_them(seconds: float | None, words: str) -> None:
    assert human.span(seconds) == words


def test_values_are_short_and_carry_their_unit() -> None:
    assert output.value(True) == "true"
    assert output.value(0.123456789) == "0.123457"
    assert output.value(["a", "b"]) == "a,b"
    assert output.value([]) == "(none)"
    assert output.value(812, "MB") == "812 MB"
    assert len(output.value("x" * 1000)) == output.VALUE_CHARS


@given(st.text())
def test_no_text_from_outside_can_do_more_than_be_seen(text: str) -> None:
    assert human.printable(text).isprintable()


MEM = {"mem": ResourceType(name="mem", kind=Kind.NUMERIC, unit="MB")}


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (LocationChange(values={"mem": 799}), ["mem 812 → 799 MB"]),
        (LocationChange(values={"mem": STALE}), ["mem 812 MB → stale (not refreshed within 40 s)"]),
        (LocationChange(values={"mem": None}), ["mem 812 MB → withdrawn"]),
        (LocationChange(values={"new": "x"}), ["new x (new)"]),
        (LocationChange(state="lost"), ["state available → lost"]),
        (LocationChange(conditions=["silent"]), ["condition +silent"]),
        (LocationChange(holds=[]), ["no longer held by reporter:health"]),
        (LocationChange(groups=["gpu"]), ["group +gpu"]),
        (LocationChange(about={"address": "10.0.0.1"}), ["address - → 10.0.0.1"]),
        (
            LocationChange(reporters={"lic": ReporterState(state="waiting")}),
            ["reporter lic backoff: exit 3 → good"],
        ),
        (LocationChange(reporters={"builtin": ReporterState(state="waiting", runs=9)}), []),
        (LocationChange(reporters={"lic": None}), ["reporter lic gone"]),
        (LocationChange(amounts={"lic": PoolAmount(base=3)}), ["lic base 3, borrowed 0"]),
    ],
)
def test_a_change_is_a_line_that_says_what_was_and_what_is(change: LocationChange, lines: list[str]) -> None:
    assert [text for _, text in changes.of_location(change, NODE, MEM)] == lines


def test_a_new_and_a_removed_location_are_told() -> None:
    news = LocationChange(source=Source.DISCOVERED, state="joining", values={"mem": 1})
    told = changes.of_delta(
        delta(removed=["host:old"], locations={"host:new": news}), {"host:old": NODE}, MEM
    )
    assert list(told) == [
        ("host:old", "", "removed"),
        ("host:new", "", "new: joining (source discovered)"),
        ("host:new", "mem", "mem 1 MB (new)"),
    ]
