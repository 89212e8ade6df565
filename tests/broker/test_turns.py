"""The loop is with one of two threads at any time, and neither can lose it."""

import threading
import time
from collections.abc import Callable

from xce.broker.turns import PATIENCE_S, Turns


def lent(turns: Turns, work: Callable[[], None]) -> float:
    """Lend the loop to a thread that does this; how long it was away."""
    thread = threading.Thread(target=work)
    began = time.monotonic()
    turns.lend(thread.start)
    away = time.monotonic() - began
    thread.join(10)
    assert not thread.is_alive()
    return away


def test_nobody_takes_up_what_is_not_lent() -> None:
    assert not Turns().take_up()


def test_who_is_done_at_once_has_it_all_the_same() -> None:
    """What was handed over may be on the disk before the other thread has put the loop down."""
    turns, had = Turns(), list[bool]()

    def work() -> None:
        had.append(turns.take_up())
        turns.give_back()

    def begin() -> None:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        time.sleep(0.02)

    turns.lend(begin)
    assert had == [True]
    assert not turns.take_up(), "it is back for good"


def slow(turns: Turns) -> Callable[[], None]:
    def work() -> None:
        if turns.take_up():
            time.sleep(PATIENCE_S * 5)
            turns.give_back()

    return work


def test_who_has_it_is_not_hurried() -> None:
    turns = Turns()
    assert lent(turns, slow(turns)) >= PATIENCE_S * 5


def test_who_waits_for_the_disk_too_long_loses_it_and_is_told_so() -> None:
    turns, had = Turns(), list[bool]()
    hung = threading.Event()

    def work() -> None:
        had.append(turns.take_up())
        turns.put_down()
        hung.wait(10)
        had.append(turns.take_up())

    thread = threading.Thread(target=work)
    began = time.monotonic()
    turns.lend(thread.start)
    assert PATIENCE_S <= time.monotonic() - began < 5
    hung.set()
    thread.join(10)
    assert had == [True, False]
    assert lent(turns, slow(turns)) >= PATIENCE_S * 5, "and it can be lent again"


def test_who_puts_it_down_often_and_shortly_keeps_it() -> None:
    kept = False

    def work() -> None:
        nonlocal kept
        until = time.monotonic() + PATIENCE_S * 3
        had = turns.take_up()
        while had and time.monotonic() < until:
            turns.put_down()
            had = turns.take_up()
        if had:
            kept = True
            turns.give_back()

    for _ in range(50):  # on a busy machine it may be put down for long without anybody's will
        turns = Turns()
        lent(turns, work)
        if kept:
            return
    raise AssertionError("it was taken from somebody who did not keep it waiting")
