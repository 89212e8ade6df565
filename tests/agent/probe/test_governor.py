"""How often a library is asked, from what its calls cost."""

import hypothesis
import hypothesis.strategies as st

from xce.agent.probe import governor
from xce.agent.probe.governor import Budget, Cost, Meter

BUDGET = Budget(share=0.05, fast_s=7.0, slow_s=40.0, longest_s=1e9)

METERS = st.lists(
    st.builds(
        Meter,
        name=st.uuids().map(str),
        cost=st.sampled_from([Cost.FAST, Cost.SLOW, Cost.STATIC]),
        asked=st.just(1),
        mean_s=st.floats(0, 300),
    ),
    max_size=20,
)


def load(meters: tuple[Meter, ...]) -> float:
    return sum(meter.mean_s / meter.interval_s for meter in meters if meter.interval_s)


@hypothesis.given(METERS)
def test_all_calls_together_stay_within_their_share(meters: list[Meter]) -> None:
    assert load(governor.governed(meters, BUDGET)) <= BUDGET.share * 1.000001


@hypothesis.given(METERS)
def test_no_call_is_asked_more_often_than_it_should_and_none_rarer_than_need_be(meters: list[Meter]) -> None:
    found = governor.governed(meters, BUDGET)
    for meter in found:
        every = governor.nominal(meter.cost, BUDGET)
        assert (meter.interval_s is None) == (every is None)
        if every is not None and meter.interval_s is not None:
            assert meter.interval_s >= every
    if any(meter.interval_s != governor.nominal(meter.cost, BUDGET) for meter in found):
        assert load(found) >= BUDGET.share * 0.999999, "what was made rarer uses the whole share"


def test_the_expensive_call_becomes_rare_and_the_cheap_ones_do_not_notice() -> None:
    cheap = Meter(name="cheap", cost=Cost.FAST, asked=9, mean_s=0.001)
    dear = Meter(name="dear", cost=Cost.FAST, asked=9, mean_s=2.0)
    first, second = governor.governed([cheap, dear], BUDGET)
    assert first.interval_s == 7.0
    assert second.interval_s is not None
    assert 40 < second.interval_s < 41


def test_a_call_is_never_so_rare_that_nothing_is_known_of_it() -> None:
    budget = Budget(longest_s=600.0)
    (meter,) = governor.governed([Meter(name="x", cost=Cost.FAST, asked=2, mean_s=200.0)], budget)
    assert meter.interval_s == 600.0


def test_a_slow_first_answer_is_soon_forgotten_and_stays_visible() -> None:
    """The first call after a driver was loaded took 200 s."""
    meter = Meter(name="x", cost=Cost.FAST)
    meter = governor.measured(meter, 200.0, 0)
    meter = governor.measured(meter, 0.01, 1)
    assert meter.mean_s == 0.01
    assert (meter.worst_s, meter.asked, meter.failed) == (200.0, 2, 1)
