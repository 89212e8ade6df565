"""What an agent says and when, event by event, without a socket and without waiting."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.agent.pad import Pad
from xce.agent import core
from xce.agent.core import Core, Identity
from xce.agent.effect import Close, Deliver, Learn, Open, Send, Shown
from xce.agent.ticks import in_ticks
from xce.model.claim import BindingState
from xce.model.instance import Instance, Inventory
from xce.model.link import Phase
from xce.model.message import (
    TICK_BYTES,
    BindingNews,
    BindingReport,
    Declare,
    FeedTick,
    FromBroker,
    Goodbye,
    Heartbeat,
    Hello,
    InventoryNews,
    Mine,
    MineRequest,
    Pulse,
    Refused,
    Report,
    ReporterNews,
    ReporterState,
    Resync,
    Standing,
    TypesNews,
    Welcome,
)
from xce.model.resource import Kind, ResourceType
from xce.model.value import Absent, Presence
from xce.wire import codec

HEARTBEAT_S, SILENT_S = 7.0, 21.0


class Bench:
    """A core, its book, and a clock that only the test moves. `random` always gives the upper bound."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pad = Pad()
        self.drawn: list[tuple[float, float]] = []
        self.core = Core(Identity(role="agent", name="n1"), self.pad, now=self.now, random=self.random)

    def random(self, low: float, high: float) -> float:
        self.drawn.append((low, high))
        return high

    def step(self) -> list[Any]:
        """All effects of now; messages without their `Send`."""
        done: list[Any] = []
        while effects := self.core.step(self.now):
            done += [effect.message if isinstance(effect, Send) else effect for effect in effects]
        return done

    def after(self, seconds: float) -> list[Any]:
        """Let the time pass, stepping when the core wants it; all effects."""
        done, end = [], self.now + seconds
        while (due := self.core.due(self.now)) <= end:
            self.now = max(self.now, due)
            effects = self.step()
            assert effects or self.core.due(self.now) > self.now, "asks to be called for nothing"
            done += effects
        self.now = end
        return done

    def hear(self, *messages: FromBroker) -> list[Any]:
        for message in messages:
            self.core.receive(message, self.now)
        return self.step()

    def greet(self) -> Hello:
        assert self.step() == [Open(core.MANY_SPREAD_S)]
        self.core.link_up(self.now)
        (hello,) = self.step()
        assert isinstance(hello, Hello)
        return hello

    def sync(self, **welcome: Any) -> list[Any]:
        self.greet()
        return self.hear(self.welcome(**welcome))

    @staticmethod
    def welcome(*, resync: bool = True, **more: Any) -> Welcome:
        return Welcome(
            epoch=3,
            incarnation="i",
            heartbeat_ms=int(HEARTBEAT_S * 1000),
            silent_after_ms=int(SILENT_S * 1000),
            resync=resync,
            **more,
        )


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    for effect in bench.step():
        if isinstance(effect, msgspec.Struct) and not isinstance(effect, Open | Close | Learn | Shown):
            codec.encode(effect)  # everything that is said has a form on the wire


def kinds(effects: list[Any]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def test_it_says_hello_before_anything_else_and_with_the_digest_of_what_it_holds(bench: Bench) -> None:
    bench.pad.put("r", a=1)
    hello = bench.greet()
    assert (hello.name, hello.role, hello.digest) == ("n1", "agent", bench.pad.digest())
    assert bench.core.phase is Phase.GREETING
    bench.pad.put("r", a=2)
    assert bench.after(1) == []


def test_a_welcome_with_resync_is_followed_by_everything(bench: Bench) -> None:
    bench.pad.put("r", a=1)
    bench.pad.stock(
        Inventory(reporter="r", generation=4, complete=True, instances=[Instance(id="i", kind="k")])
    )
    said = bench.sync(inventories=["r"], state="joining")
    assert kinds(said) == ["Shown", "Report", "ReporterNews", "InventoryNews"]
    report, news = said[1], said[2]
    assert (report.sequence, report.full, report.feeds) == (1, True, [FeedTick("r", 1, 0, {"a": 1})])
    assert news == ReporterNews(reporters={"r": ReporterState(state="waiting")}, full=True)
    assert bench.core.standing.state == "joining"


def test_a_welcome_without_resync_is_followed_by_what_changed_since_the_hello(bench: Bench) -> None:
    bench.pad.put("r", a=1, b=1)
    bench.greet()
    bench.pad.put("r", b=2)
    said = bench.hear(bench.welcome(resync=False))
    assert kinds(said) == ["ReporterNews", "Report"]
    assert said[1] == Report(sequence=1, feeds=[FeedTick("r", 1, 0, {"b": 2})])


def test_changes_of_one_tick_go_in_one_report(bench: Bench) -> None:
    bench.sync()
    bench.after(1)
    bench.pad.put("r", a=1)
    (first,) = bench.step()
    bench.pad.put("r", a=2)
    bench.pad.put("s", b=1)
    assert bench.step() == []
    (second,) = bench.after(core.TICK_S)
    assert first.sequence + 1 == second.sequence
    assert second.feeds == [FeedTick("r", 1, 0, {"a": 2}), FeedTick("s", 1, 0, {"b": 1})]


def test_heartbeats_come_at_the_assigned_interval_and_now_and_then_carry_the_digest(bench: Bench) -> None:
    bench.sync()
    digests = []
    for _ in range(core.DIGEST_EVERY + 1):
        (beat,) = bench.after(HEARTBEAT_S)
        assert isinstance(beat, Heartbeat)
        digests.append(beat.digest)
        bench.hear(Pulse(sequence=beat.sequence))
    assert digests == [bench.pad.digest(), *[""] * (core.DIGEST_EVERY - 1), bench.pad.digest()]


def test_a_change_is_told_before_the_heartbeat_whose_digest_covers_it(bench: Bench) -> None:
    bench.sync()
    bench.after(HEARTBEAT_S - 0.01)
    bench.pad.put("r", a=1)
    bench.core._told_at = bench.now  # a report has just gone
    report, beat = bench.after(0.02)
    assert (report.sequence + 1, beat.digest) == (beat.sequence, bench.pad.digest())


def test_without_a_pulse_it_drops_the_socket_and_comes_back_after_a_random_while(bench: Bench) -> None:
    bench.sync()
    said = bench.after(SILENT_S)
    assert said[-1] == Close()
    assert bench.core.phase is Phase.SILENT
    assert "not answered for 21 s" in bench.core.trouble
    assert bench.after(core.FIRST_SPREAD_S) == [Open(core.MANY_SPREAD_S)]
    assert (0.0, core.FIRST_SPREAD_S) in bench.drawn


def test_a_node_that_slept_asks_before_it_counts_the_broker_as_gone(bench: Bench) -> None:
    bench.sync()
    (beat,) = bench.after(HEARTBEAT_S)
    bench.hear(Pulse(sequence=beat.sequence))
    bench.now += 3600
    (beat,) = bench.step()
    assert isinstance(beat, Heartbeat)
    bench.hear(Pulse(sequence=beat.sequence))
    assert bench.core.phase is Phase.SYNCED


def test_an_unanswered_hello_ends_the_attempt(bench: Bench) -> None:
    bench.greet()
    assert bench.after(core.GREETING_S) == [Close()]
    assert bench.core.phase is Phase.SILENT
    assert "did not answer our hello" in bench.core.trouble


def test_a_socket_that_was_given_up_and_came_up_all_the_same_is_not_greeted_on_its_successor(
    bench: Bench,
) -> None:
    """Both are news of one look, where the process was held up: the next hello would go nowhere."""
    bench.step()
    bench.core.link_failed("the broker's key does not match", bench.now)
    bench.core.link_up(bench.now)
    assert kinds(bench.step()) == ["Close"]
    assert kinds(bench.after(core.FIRST_SPREAD_S)) == ["Open"], "no hello before the new one is up"
    bench.core.link_up(bench.now)
    assert kinds(bench.step()) == ["Hello"]


def test_the_delay_between_attempts_doubles_up_to_a_limit_and_a_welcome_resets_it(bench: Bench) -> None:
    spans = []
    for _ in range(7):
        bench.step()
        bench.core.link_failed("rejected by broker", bench.now)
        assert bench.step() == [Close()]
        spans.append(bench.drawn[-1][1])
        bench.now += core.LONGEST_SPREAD_S
    assert spans == [2, 4, 8, 16, 30, 30, 30]
    assert bench.core.trouble == "rejected by broker"
    bench.sync()
    assert bench.core.trouble == ""
    bench.core.link_failed("again", bench.now)
    assert bench.drawn[-1] == (0.0, core.FIRST_SPREAD_S)


def test_a_refusal_is_shown_and_hello_said_again_when_the_broker_asked_for_it(bench: Bench) -> None:
    bench.greet()
    refused = Refused(code="duplicate", message="id already in use by 10.0.0.9", hint="stop one", retry_s=8)
    assert bench.hear(refused) == []
    assert bench.core.phase is Phase.REFUSED
    assert bench.core.trouble == "refused by broker: id already in use by 10.0.0.9 (stop one)"
    assert bench.after(7.9) == []
    (hello,) = bench.after(8 * 1.25 - 7.9)
    assert isinstance(hello, Hello)


def test_a_new_connection_does_not_shorten_what_a_refusal_asked_for(bench: Bench) -> None:
    bench.greet()
    bench.hear(Refused(code="busy", message="busy", retry_s=60))
    bench.core.link_down("down", bench.now)
    bench.core.link_up(bench.now + 1)
    assert bench.after(59) == []
    assert kinds(bench.after(20)) == ["Hello"]


def test_a_lost_connection_means_hello_again_with_sequences_from_one(bench: Bench) -> None:
    bench.pad.put("r", a=1)
    bench.sync()
    bench.core.link_down("link is down", bench.now)
    assert bench.core.phase is Phase.CONNECTING
    assert bench.core.trouble == "link is down"
    bench.pad.put("r", a=2)
    assert bench.after(30) == []
    bench.core.link_up(bench.now)
    (hello,) = bench.step()
    assert hello.digest == bench.pad.digest()
    said = bench.hear(bench.welcome())
    assert said[0].sequence == 1


def test_how_far_attempts_are_spread_follows_the_number_of_agents_that_the_broker_has(bench: Bench) -> None:
    """A single agent is back at once, however long the broker was away; thousands come one by one."""
    bench.sync(spread_ms=500)
    bench.core.link_down("link is down", bench.now)
    assert bench.drawn[-1] == (0.0, 0.5)
    assert bench.after(0.5) == [Close(), Open(0.5)]
    assert (bench.core.phase, bench.core.trouble) == (Phase.CONNECTING, "link is down")
    bench.core.link_down("nobody answers", bench.now)
    assert bench.after(60) == [], "the socket tries again by itself"
    bench.core.link_up(bench.now)
    bench.step()
    bench.hear(bench.welcome(spread_ms=500))
    bench.core.link_down("link is down", bench.now)
    assert bench.after(60) == [], "this socket knows already"
    bench.core.link_up(bench.now)
    bench.step()
    bench.hear(bench.welcome(spread_ms=500), Pulse(sequence=1, spread_ms=4000), Pulse(sequence=2))
    bench.core.link_down("link is down", bench.now)
    bench.core.link_up(bench.now)
    assert kinds(bench.after(3)) == ["Hello"], "a socket that comes up by itself is good enough"
    bench.hear(bench.welcome(spread_ms=4000))
    bench.core.link_down("link is down", bench.now)
    assert bench.after(3.9) == []
    assert bench.after(0.1) == [Close(), Open(4.0)]


@pytest.mark.parametrize("said", [0, -1, 10**9])
def test_a_spread_that_no_broker_should_say_is_bounded(bench: Bench, said: int) -> None:
    bench.sync(spread_ms=said)
    assert bench.core.spread_s == (core.LONGEST_SPREAD_S if said > 0 else core.MANY_SPREAD_S)


def test_why_the_broker_has_hung_up_stays_shown_when_the_connection_ends(bench: Bench) -> None:
    bench.sync()
    bench.hear(Refused(code="role", message="this key was revoked: sold", retry_s=60))
    bench.core.link_down("link is down, trying again", bench.now)
    assert bench.core.trouble == "refused by broker: this key was revoked: sold"
    bench.core.link_failed("rejected by broker", bench.now)
    assert bench.core.trouble == "rejected by broker"


def test_a_resync_sends_the_table_and_the_wanted_inventories_again(bench: Bench) -> None:
    inventory = Inventory(reporter="r", generation=1, complete=True)
    bench.pad.put("r", a=1)
    bench.pad.stock(inventory)
    bench.sync()
    bench.after(1)
    said = bench.hear(Resync(reason="gap", inventories=["r", "unknown"]))
    assert kinds(said) == ["Report", "ReporterNews", "InventoryNews"]
    assert said[0].full


def test_types_are_learned_before_anything_is_told_by_them(bench: Bench) -> None:
    kind = ResourceType(name="a", kind=Kind.NUMERIC)
    bench.greet()
    said = bench.hear(bench.welcome(types=[kind]))
    assert said[0] == Learn([kind])
    assert kinds(said)[1:] == ["Report", "ReporterNews"]
    assert bench.hear(TypesNews(types=[])) == [Learn([])]


def test_declared_types_are_asked_before_the_values_and_anew_with_every_welcome(bench: Bench) -> None:
    bench.pad.declared = {"/etc/xce/reporters.d/r.yaml": [ResourceType(name="a", kind=Kind.NUMERIC)]}
    said = bench.sync()
    assert said[0] == Declare(types=bench.pad.declared)
    bench.pad.asked = True
    bench.core.link_down("down", bench.now)
    bench.core.link_up(bench.now)
    bench.step()
    said = bench.hear(bench.welcome())
    assert isinstance(said[0], Declare)


def test_what_could_not_be_sent_is_made_good_by_everything_anew(bench: Bench) -> None:
    inventory = Inventory(reporter="r", generation=1, complete=True)
    bench.sync()
    bench.after(1)
    bench.pad.put("r", a=1)
    bench.pad.stock(inventory)
    for message in bench.step():
        bench.core.unsent(message, bench.now)
    assert bench.step() == []
    said = bench.after(HEARTBEAT_S)
    full = next(message for message in said if isinstance(message, Report))
    assert full.full
    assert any(isinstance(message, InventoryNews) for message in said)


def test_that_all_bindings_were_said_is_not_believed_before_it_was_sent(bench: Bench) -> None:
    """The broker binds nothing on a host that has not said what it has, and does not ask again."""
    bench.core.holdings.report("b1", BindingReport(state=BindingState.READY))
    bench.core.holdings.report("b2", BindingReport(state=BindingState.PENDING))
    said = bench.sync(bindings=True)
    (news,) = [message for message in said if isinstance(message, BindingNews)]
    assert (list(news.reports), news.full) == (["b1"], True)
    bench.core.unsent(news, bench.now)
    again = [message for message in bench.after(HEARTBEAT_S) if isinstance(message, BindingNews)]
    assert again[0] == news


def test_a_gone_reporter_is_told(bench: Bench) -> None:
    bench.pad.put("r", a=1)
    bench.sync()
    bench.after(1)
    bench.pad.state("r", None)
    assert bench.step() == [ReporterNews(reporters={"r": None})]


def test_a_question_is_put_only_when_there_is_somebody_to_answer(bench: Bench) -> None:
    assert not bench.core.ask("q1")
    bench.sync()
    assert bench.core.ask("q2")
    assert bench.step() == [MineRequest(id="q2")]
    answer = msgspec.convert(
        {"id": "q2", "revision": 1, "location": {"source": "config", "state": "x"}}, Mine
    )
    assert bench.hear(answer) == [Deliver(answer)]


def test_a_changed_standing_is_shown_once(bench: Bench) -> None:
    bench.sync(state="available")
    assert bench.hear(Standing(state="draining")) == [Shown()]
    assert bench.hear(Standing(state="draining")) == []
    assert bench.core.standing.state == "draining"


def test_after_goodbye_nothing_is_said(bench: Bench) -> None:
    bench.sync()
    bench.core.goodbye(5.0, bench.now)
    assert bench.step() == [Goodbye(expected_s=5.0)]
    bench.pad.put("r", a=1)
    assert bench.after(3600) == []


def test_another_broker_is_tried_at_once(bench: Bench) -> None:
    bench.sync()
    bench.core.reopen(bench.now)
    assert bench.step() == [Close(), Open(core.MANY_SPREAD_S)]
    assert bench.core.phase is Phase.CONNECTING


def test_answers_that_nobody_asked_for_change_nothing(bench: Bench) -> None:
    bench.step()
    bench.core.link_up(bench.now)
    assert kinds(bench.hear(bench.welcome())) == ["Hello"]
    assert bench.core.phase is Phase.GREETING


def test_a_table_larger_than_a_message_is_spread_over_several() -> None:
    long = {f"n{number}": "x" * 1000 for number in range(900)}
    feeds = [FeedTick("small", 1, 0, {"a": 1}), FeedTick("long", 2, 3, dict(long)), FeedTick("empty", 1, 0)]
    parts = in_ticks(feeds)
    assert len(parts) > 1
    assert all(len(codec.encode(Report(1, part))) <= TICK_BYTES for part in parts)
    seen: dict[str, dict[str, Any]] = {}
    for feed in (feed for part in parts for feed in part):
        assert not seen.setdefault(feed.reporter, {}).keys() & feed.values.keys()
        seen[feed.reporter].update(feed.values)
    assert seen == {"small": {"a": 1}, "long": long, "empty": {}}


def test_a_small_table_is_one_message_of_the_very_same_feeds() -> None:
    feeds = [FeedTick("r", 1, 0, {"a": Absent(Presence.UNKNOWN, "why"), "b": None, "c": ["x"]})]
    assert in_ticks(feeds) == [feeds]
    assert in_ticks(feeds)[0][0] is feeds[0]
    assert in_ticks([]) == [[]]
