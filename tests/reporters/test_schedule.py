"""When reporters run: on a grid, spread, without drift, and within the node's budget."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from xce.reporters.schedule import (
    LONGEST_BACKOFF,
    Waiting,
    admit,
    backoff,
    effective_interval,
    first_run,
    next_run,
    overruns,
    phase,
    time_to_live,
)

INTERVALS = st.floats(0.1, 86400)
TIMES = st.floats(0, 1e8)


def test_a_reporter_runs_at_the_same_phase_of_its_host_always() -> None:
    assert phase("node1", "disk", 30) == phase("node1", "disk", 30)
    assert phase("node1", "disk", 60) == 2 * phase("node1", "disk", 30)


def test_a_fleet_is_spread_evenly() -> None:
    tenths = [int(phase(f"node{number}", "disk", 10)) for number in range(5000)]
    assert all(400 < tenths.count(tenth) < 600 for tenth in range(10))


@given(TIMES, INTERVALS, st.floats(0, 0.999))
def test_the_next_run_is_the_next_point_of_the_grid(now: float, interval: float, part: float) -> None:
    offset = part * interval
    following = next_run(now, interval, offset)
    assert now < following <= now + interval * 1.0001 + 1e-7
    points = (following - offset) / interval
    assert abs(points - round(points)) < 1e-4


@given(INTERVALS, st.floats(0, 0.999), st.lists(st.floats(0.001, 0.4), min_size=50, max_size=50))
def test_runs_that_start_late_do_not_drift(interval: float, part: float, late: list[float]) -> None:
    offset, now = part * interval, 1000.0
    first = due = next_run(now, interval, offset)
    for delay in late:
        due = next_run(due + delay * interval, interval, offset)
    assert due == pytest.approx(first + len(late) * interval, rel=1e-9)


@given(TIMES, INTERVALS, st.floats(0, 0.999))
def test_a_new_reporter_runs_at_once(now: float, interval: float, part: float) -> None:
    first = first_run(now, interval, part * interval)
    assert now <= first <= now + min(1, interval)


@given(st.floats(0, 1e6), st.floats(0.5, 3600), st.floats(0, 0.999), st.floats(0, 10))
def test_points_that_pass_during_a_run_are_counted(
    started: float, interval: float, part: float, long: float
) -> None:
    offset = part * interval
    ended = started + long * interval
    point, passed = next_run(started + interval / 2, interval, offset), 0
    while point <= ended:
        passed += 1
        point += interval
    assume(1e-6 < (point - ended) / interval % 1 < 1 - 1e-6)  # within rounding either count is right
    assert overruns(started, ended, interval, offset) == passed


def test_backing_off_doubles_up_to_a_limit_and_never_runs_more_often_than_before() -> None:
    assert [backoff(failures, 10, lambda: 0.0) for failures in (1, 2, 3, 4)] == [10, 20, 40, 80]
    assert backoff(3, 10, lambda: 0.999) == pytest.approx(50, rel=0.01)
    assert backoff(100, 10, lambda: 0.0) == LONGEST_BACKOFF
    assert backoff(10_000, 10, lambda: 0.0) == LONGEST_BACKOFF
    assert backoff(5, 3600, lambda: 0.0) == 3600


def test_the_interval_is_the_types_before_the_settings_before_the_default() -> None:
    assert effective_interval(None, 30, []) == 30
    assert effective_interval(20, 30, [None]) == 20
    assert effective_interval(20, 30, [60, None, 15]) == 15
    assert time_to_live(30, 10) == 40


def test_the_longest_due_goes_first_and_a_heavy_one_is_not_overtaken() -> None:
    light, heavy, late = Waiting("light", 1, 5.0), Waiting("heavy", 4, 4.0), Waiting("late", 1, 6.0)
    assert admit([late, light, heavy], running=0, budget=6) == ["heavy", "light", "late"]
    assert admit([late, light, heavy], running=3, budget=6) == []
    assert admit([late, light, heavy], running=2, budget=6) == ["heavy"]
    assert admit([Waiting("huge", 99, 1.0), light], running=0, budget=6) == ["huge"]
    assert admit([Waiting("huge", 99, 1.0), light], running=1, budget=6) == []


@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(0, 100)), max_size=12),
    st.integers(0, 8),
    st.integers(1, 8),
)
def test_the_budget_holds_and_an_idle_node_always_starts_something(
    wanted: list[tuple[int, float]], running: int, budget: int
) -> None:
    waiting = [Waiting(str(number), weight, due) for number, (weight, due) in enumerate(wanted)]
    weights = {one.name: one.weight for one in waiting}
    admitted = admit(waiting, running=running, budget=budget)
    total = running + sum(weights[name] for name in admitted)
    assert total <= max(budget, running) or (running == 0 and len(admitted) == 1)
    assert admitted or running or not waiting
