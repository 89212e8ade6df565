"""When the loop rests, and what waits: followers for orders, and never for long."""

import pytest

from xce.broker.pace import AT_MOST_MS, BUSY_PER_S, CROWDED_PER_S, PACE_S, SLOW_S, Owed, Pace, Portion


@pytest.mark.parametrize(
    ("taken", "orders", "answered", "waits"),
    [
        (1, 1, False, True),
        (7, 7, True, True),
        (0, 0, True, True),  # nobody has said anything, and what was ordered is durable
        (0, 0, False, False),  # nothing has come for a moment
        (2, 1, False, False),  # one of them is no order, or was refused
        (1, 0, True, False),
    ],
)
def test_followers_wait_while_there_is_nothing_but_orders(
    taken: int, orders: int, answered: bool, waits: bool
) -> None:
    owed = Owed()
    assert owed.may_wait(taken=taken, orders=orders, answered=answered, now=5.0) is waits
    owed.durable(5.0)
    assert owed.may_wait(taken=taken, orders=orders, answered=answered, now=5.0) is waits


def test_followers_do_not_wait_for_longer_than_said_however_many_orders_come() -> None:
    owed, end = Owed(), 5.0 + AT_MOST_MS / 1000
    owed.durable(5.0)
    owed.durable(5.002)
    assert owed.due == end, "from the first that is durable"
    assert owed.may_wait(taken=1, orders=1, answered=True, now=end - 0.0001)
    assert not owed.may_wait(taken=1, orders=1, answered=True, now=end)
    owed.paid()
    assert owed.may_wait(taken=1, orders=1, answered=True, now=end)
    owed.at_once(6.0)
    assert not owed.may_wait(taken=1, orders=1, answered=True, now=6.0)


@pytest.mark.parametrize(
    ("rate", "rests"), [(BUSY_PER_S / 2, False), (BUSY_PER_S * 2, True), (CROWDED_PER_S * 2, False)]
)
def test_it_rests_between_turns_when_a_rest_pays(rate: float, rests: bool) -> None:
    pace, half = Pace(5.0), int(rate * PACE_S)
    assert not pace.fast(half, 5.0 + PACE_S / 2), "not known yet"
    assert pace.fast(half, 5.0 + 2 * PACE_S) is rests


def test_of_messages_that_take_long_fewer_are_taken_at_once_and_more_again_when_they_do_not() -> None:
    portion = Portion(320)
    portion.took(320, SLOW_S / 2)
    assert portion.size == 320
    portion.took(320, 320 * 0.01)
    assert portion.size == int(SLOW_S / 0.01)
    portion.took(portion.size, 10)
    assert portion.size == 1
    portion.took(0, 0)
    assert portion.size == 1, "nothing was taken: nothing is known"
    for _ in range(24):  # one stall is no reason to be slow for long
        portion.took(portion.size, 0.001)
    assert portion.size == 320
