"""The node's readings: freshness, owners, and that what is told is what is held."""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from xce.model.message import FeedTick
from xce.model.resource import Kind, ResourceType
from xce.model.value import Absent, Presence, Reading, Value, digest
from xce.reporters.table import Table

NUMBER = {name: ResourceType(name=name, kind=Kind.NUMERIC) for name in "abcd"}
TYPES = NUMBER | {
    "quick": ResourceType(name="quick", kind=Kind.NUMERIC, ttl=5),
    "word": ResourceType(name="word", kind=Kind.STRING),
}
NULL = Absent(Presence.UNKNOWN, cause="the reporter says null")


def publish(table: Table, reporter: str, now: float, run: int = 1, **values: Reading) -> list[str]:
    refusals = table.publish(reporter, values, run=run, at=now, ttl=40, now=now)
    return [str(refusal) for refusal in refusals]


def settled() -> Table:
    table = Table(TYPES)
    table.settled_in()
    return table


def test_only_changes_are_told_and_each_once() -> None:
    table = settled()
    publish(table, "disk", 10, a=1, b=2)
    assert table.take_feeds(10.5) == [FeedTick("disk", 1, 500, {"a": 1, "b": 2})]
    publish(table, "disk", 20, run=2, a=1, b=3)
    assert table.news
    assert table.take_feeds(20) == [FeedTick("disk", 2, 0, {"b": 3})]
    publish(table, "disk", 30, run=3, a=1, b=3)
    assert table.take_feeds(30) == []
    assert not table.news
    assert table.ages_ms(31) == {"disk": 1000}


def test_a_refreshed_feed_with_a_short_life_is_told_without_values() -> None:
    table = settled()
    publish(table, "disk", 10, quick=1, a=1)
    table.take_feeds(10, urgent_s=20)
    publish(table, "disk", 13, run=2, quick=1)
    assert table.take_feeds(13, urgent_s=20) == [FeedTick("disk", 2, 0, {})]
    publish(table, "disk", 14, run=3, quick=1)
    assert table.take_feeds(14, urgent_s=4) == []


def test_values_live_for_their_time_and_then_say_why_they_ended() -> None:
    table = settled()
    publish(table, "disk", 100, a=1, quick=2)
    assert table.soonest == 105
    table.settle(105.1)
    assert table.readings() == {"a": 1, "quick": Absent(Presence.STALE, "not refreshed within 5 s", 2)}
    table.fault("disk", "exit status 3: no answer")
    assert table.soonest == 140
    table.settle(140)
    assert table.readings()["a"] == 1
    table.settle(140.1)
    assert table.readings()["a"] == Absent(Presence.UNKNOWN, "exit status 3: no answer", 1)
    assert table.soonest == math.inf


def test_a_name_that_was_promised_meanwhile_is_more_than_the_same_again() -> None:
    table = settled()
    values = {"a": 1}
    table.publish("disk", values, run=1, at=0, ttl=30, now=0)
    assert table.again("disk", values, run=2, at=1, ttl=30)
    table.expect("disk", ["b"], 2)
    assert not table.again("disk", values, run=3, at=2, ttl=30)


def test_what_is_over_comes_back_only_when_it_is_given_again() -> None:
    table = settled()
    publish(table, "disk", 0, quick=2, a=1)
    table.settle(6)
    publish(table, "disk", 7, run=2, a=1)
    assert table.readings()["quick"] == Absent(Presence.STALE, "not refreshed within 5 s", 2)
    publish(table, "disk", 8, run=3, quick=2)
    assert table.readings()["quick"] == 2


def test_the_age_of_a_value_counts_from_the_start_of_its_run() -> None:
    table = settled()
    table.publish("slow", {"a": 1}, run=1, at=50, ttl=40, now=80)
    assert table.ages_ms(80) == {"slow": 30000}
    assert table.soonest == 90


def test_the_first_owner_keeps_a_name_until_it_stops_giving_it() -> None:
    table = settled()
    assert publish(table, "beta", 0, a=1) == []
    assert publish(table, "alpha", 1, a=9) == ["a: 'beta' reports it already and keeps it: 9"]
    assert table.readings() == {"a": 1}
    explained = table.explain("a", 3)
    assert explained
    assert [(rival.reporter, rival.ago_s, rival.text) for rival in explained.rivals] == [("alpha", 2, "9")]
    table.take_feeds(3)
    gone = {"a": Absent(Presence.UNKNOWN, cause="not in the last run")}
    table.publish("beta", {}, run=2, at=10, ttl=40, now=10, silent=gone)
    assert table.readings() == gone
    assert publish(table, "alpha", 11, a=9) == []
    assert table.readings() == {"a": 9}
    assert table.take_feeds(11) == [FeedTick("beta", 2, 1000, {"a": None}), FeedTick("alpha", 1, 0, {"a": 9})]
    assert publish(table, "beta", 12, run=3, a=1) == ["a: 'alpha' reports it already and keeps it: 1"]


def test_an_owner_that_says_null_keeps_its_name_while_it_is_alive() -> None:
    table = settled()
    publish(table, "beta", 0, a=NULL)
    assert publish(table, "alpha", 1, a=9)
    assert publish(table, "alpha", 41, a=9) == []
    assert table.readings() == {"a": 9}


def test_at_a_cold_start_the_alphabet_decides_and_not_the_order_of_arrival() -> None:
    table = Table(TYPES)
    publish(table, "beta", 0, a=1)
    assert publish(table, "alpha", 1, a=9) == []
    assert publish(table, "beta", 2, a=1) == ["a: 'alpha' reports it already and keeps it: 1"]
    table.settled_in()
    assert publish(table, "aaa", 3, a=5)
    assert table.readings() == {"a": 9}


def test_the_built_in_source_comes_before_all_others() -> None:
    table = settled()
    publish(table, "alpha", 0, a=1)
    assert publish(table, "builtin", 1, a=2) == []
    assert publish(table, "alpha", 2, a=1)
    assert table.readings() == {"a": 2}


def test_a_removed_reporter_takes_its_values_with_it_and_frees_their_names() -> None:
    table = settled()
    publish(table, "beta", 0, a=1, b=2)
    publish(table, "alpha", 0, c=3)
    table.take_feeds(0)
    table.remove("beta")
    assert table.readings() == {"c": 3}
    publish(table, "alpha", 1, run=2, a=7)
    assert table.take_feeds(1) == [
        FeedTick("beta", 1, 1000, {"a": None, "b": None}),
        FeedTick("alpha", 2, 0, {"a": 7}),
    ]
    assert table.ages_ms(1) == {"alpha": 0}
    table.remove("nobody")


def test_reporters_that_come_and_go_leave_nothing_behind() -> None:
    table = settled()
    publish(table, "owner", 0, b=1)
    for number in range(50):
        publish(table, f"guest{number}", 0, a=1, b=2)
        table.remove(f"guest{number}")
        table.take_feeds(0)
    assert list(table._feeds) == ["owner"]
    explained = table.explain("b", 0)
    assert explained
    assert explained.rivals == []


def test_a_good_run_ends_the_fault() -> None:
    table = settled()
    publish(table, "disk", 0, a=1)
    table.fault("disk", "exit status 3")
    publish(table, "disk", 1, run=2, a=1)
    explained = table.explain("a", 1)
    assert explained
    assert explained.fault == ""
    table.settle(42)
    reading = table.readings()["a"]
    assert isinstance(reading, Absent)
    assert reading.presence is Presence.STALE


def test_promised_names_are_never_seen_until_somebody_gives_them() -> None:
    table = settled()
    table.expect("disk", ["a", "b"], 0)
    assert table.names("disk") == set()
    reading = table.readings()["a"]
    assert isinstance(reading, Absent)
    assert reading.presence is Presence.NEVER_SEEN
    publish(table, "other", 1, b=2)
    publish(table, "disk", 1, a=1)
    assert table.readings() == {"a": 1, "b": 2}
    assert table.names("disk") == {"a"}
    assert table.names("other") == {"b"}


def test_new_types_withdraw_and_question_what_does_not_fit_them() -> None:
    table = settled()
    publish(table, "disk", 0, a=1, b=2, quick=3)
    table.take_feeds(0)
    quicker = ResourceType(name="a", kind=Kind.NUMERIC, ttl=2)
    table.set_types({"a": quicker, "quick": ResourceType(name="quick", kind=Kind.STRING)}, 1)
    assert table.soonest == 2
    cause = "its type has changed: expected a string, got a number"
    assert table.take_feeds(1) == [
        FeedTick("disk", 1, 1000, {"b": None, "quick": Absent(Presence.UNKNOWN, cause)})
    ]


def test_explain_tells_the_story_of_a_name() -> None:
    table = settled()
    for second in range(7):
        publish(table, "disk", second, run=second, a=second)
    table.fault("disk", "exit status 1")
    explained = table.explain("a", 10)
    assert explained
    assert (explained.reporter, explained.run, explained.since_s) == ("disk", 6, 4)
    assert (explained.age_s, explained.ttl_s, explained.fault) == (4, 40, "exit status 1")
    assert [change.reading for change in explained.history] == [6, 5, 4, 3, 2]
    assert table.explain("nothing", 0) is None


def test_the_same_value_of_another_reporter_is_another_table() -> None:
    """Else a broker that was away meanwhile would go on judging it by the first one's age and faults."""
    table = settled()
    publish(table, "disk", 0, a=1)
    before = table.digest()
    table.remove("disk")
    publish(table, "other", 1, a=1)
    assert table.readings() == {"a": 1}
    assert table.digest() != before


class Story(RuleBasedStateMachine):
    """Random histories against the rules written down in the plainest way."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.table = settled()
        self.told: dict[str, dict[str, Reading]] = {}
        """What a broker would hold, by reporter."""
        self.owner: dict[str, str] = {}
        self.value: dict[str, Value | None] = {}
        """None: absent."""
        self.given: dict[str, bool] = {}
        self.good_at: dict[str, float] = {}
        self.last: dict[str, tuple[dict[str, int | None], dict[str, Reading]]] = {}

    def _fresh(self, reporter: str, name: str) -> bool:
        ttl = 5 if name == "quick" else 40
        return self.now - self.good_at[reporter] <= ttl

    @rule(
        reporter=st.sampled_from(["alpha", "beta", "builtin"]),
        values=st.dictionaries(st.sampled_from(["a", "b", "c", "quick"]), st.none() | st.integers(0, 3)),
    )
    def publish(self, reporter: str, values: dict[str, int | None]) -> None:
        readings: dict[str, Reading] = {
            name: NULL if value is None else value for name, value in values.items()
        }
        self.last[reporter] = values, readings
        self._publish(reporter, values, readings)

    @rule(reporter=st.sampled_from(["alpha", "beta", "builtin"]))
    def say_the_same_again(self, reporter: str) -> None:
        if reporter in self.last:
            self._publish(reporter, *self.last[reporter])

    def _publish(self, reporter: str, values: dict[str, int | None], readings: dict[str, Reading]) -> None:
        refused = {
            refusal.name
            for refusal in self.table.publish(reporter, readings, run=1, at=self.now, ttl=40, now=self.now)
        }
        for name, value in values.items():
            owner = self.owner.get(name)
            free = owner in {None, reporter} or not self.given[name] or not self._fresh(owner or "", name)
            assert (name in refused) == (not free and reporter != "builtin")
            if name not in refused:
                self.owner[name], self.value[name], self.given[name] = reporter, value, True
        self.good_at[reporter] = self.now

    @rule(seconds=st.sampled_from([1.0, 4.0, 6.0, 39.0, 50.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.table.soonest < self.now:
            self.table.settle(self.now)
        for name, owner in self.owner.items():
            if self.value[name] is not None and not self._fresh(owner, name):
                self.value[name], self.given[name] = None, False

    @rule(reporter=st.sampled_from(["alpha", "beta", "builtin"]))
    def remove(self, reporter: str) -> None:
        self.table.remove(reporter)
        for name in [name for name, owner in self.owner.items() if owner == reporter]:
            del self.owner[name], self.value[name], self.given[name]

    @rule()
    def tell(self) -> None:
        for tick in self.table.take_feeds(self.now):
            for name, reading in tick.values.items():
                if reading is None:  # one that came and went between two ticks is told too
                    self.told.get(tick.reporter, {}).pop(name, None)
                    continue
                for names in self.told.values():
                    names.pop(name, None)
                self.told.setdefault(tick.reporter, {})[name] = reading
        assert digest(self.told) == self.table.digest()
        held = {name: reading for names in self.told.values() for name, reading in names.items()}
        assert held == self.table.readings()
        assert not self.table.news

    @rule()
    def tell_everything(self) -> None:
        self.told = {
            tick.reporter: {name: v for name, v in tick.values.items() if v is not None}
            for tick in self.table.all_feeds(self.now)
        }
        self.table.forget_told()
        assert digest(self.told) == self.table.digest()

    @invariant()
    def the_table_says_what_the_rules_say(self) -> None:
        plain = {
            name: None if isinstance(reading, Absent) else reading
            for name, reading in self.table.readings().items()
        }
        assert plain == self.value
        assert {name: self.table.explain(name, 0).reporter for name in plain} == self.owner  # type: ignore[union-attr]


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
