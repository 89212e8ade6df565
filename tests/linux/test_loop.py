"""The event loop: order, cancelling, errors, reuse of descriptors, signals."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from xce.linux.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_due_timers_run_in_the_order_of_their_times_and_equal_ones_as_they_were_set() -> None:
    clock = Clock()
    ran: list[str] = []
    loop = Loop(clock)
    loop.call_at(103, ran.append, "c")
    loop.call_at(101, ran.append, "a")
    loop.call_at(102, ran.append, "b1")
    loop.call_at(102, ran.append, "b2")
    loop.call_at(999, ran.append, "later")
    clock.now = 103
    loop.turn(0)
    assert ran == ["a", "b1", "b2", "c"]
    loop.close()


def test_a_timer_that_sets_itself_again_does_not_keep_the_turn() -> None:
    loop = Loop(Clock())
    ran: list[int] = []

    def again() -> None:
        ran.append(1)
        loop.call_later(0, again)

    loop.call_later(0, again)
    loop.turn(0)
    assert ran == [1]
    loop.turn(0)
    assert ran == [1, 1]
    loop.close()


def test_cancelled_timers_do_not_run_and_do_not_pile_up(loop: Loop) -> None:
    ran: list[str] = []
    keep = loop.call_later(0, ran.append, "kept")
    for _ in range(10_000):
        loop.call_later(3600, ran.append, "cancelled").cancel()
    assert len(loop._timers) < 500
    loop.turn(0.1)
    assert ran == ["kept"]
    assert not keep.active
    keep.cancel()  # after it ran: nothing
    loop.call_later(0, ran.append, "next")
    loop.turn(0.1)
    assert ran == ["kept", "next"]


def test_an_exception_is_reported_and_the_loop_goes_on() -> None:
    told: list[tuple[str, Callable[..., object]]] = []
    ran: list[int] = []
    loop = Loop(on_error=lambda error, callback: told.append((str(error), callback)))

    def bad() -> None:
        raise ValueError("boom")

    def worse(_now: float) -> None:
        raise ValueError("bang")

    loop.call_later(0, bad)
    loop.call_later(0, ran.append, 1)
    loop.after_turn(worse)
    loop.turn(0.1)
    assert ran == [1]
    assert told == [("boom", bad), ("bang", worse)]
    loop.close()


def test_a_reader_and_a_writer_may_share_a_descriptor_and_be_removed_apart(loop: Loop) -> None:
    import socket

    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    seen: list[object] = []
    loop.add_reader(ours.fileno(), lambda: seen.append(ours.recv(10)))
    loop.add_writer(ours.fileno(), lambda: seen.append("writable"))
    loop.turn(0)
    assert seen == ["writable"]
    loop.remove_writer(ours.fileno())
    theirs.send(b"x")
    loop.turn(1)
    assert seen == ["writable", b"x"]
    loop.remove_reader(ours.fileno())
    theirs.send(b"y")
    loop.turn(0)
    assert seen == ["writable", b"x"]
    loop.remove_reader(ours.fileno())  # unknown now: ignored
    ours.close()
    theirs.close()


def test_a_descriptor_opened_under_a_number_that_was_closed_in_the_same_turn_is_not_taken_for_the_old_one(
    loop: Loop,
) -> None:
    pipes = [os.pipe() for _ in range(2)]
    called: list[str] = []

    def close_all_and_open_others() -> None:
        if called:
            return
        called.append("first")
        for read, write in pipes:
            loop.remove_reader(read)
            os.close(read)
            os.close(write)
        fresh = [os.pipe() for _ in range(2)]
        for read, _ in fresh:
            loop.add_reader(read, lambda: called.append("newcomer"))
        pipes[:] = fresh

    for read, write in pipes:
        os.write(write, b"x")
        loop.add_reader(read, close_all_and_open_others)
    loop.turn(0)
    loop.turn(0)
    assert called == ["first"]
    for read, write in pipes:
        loop.remove_reader(read)
        os.close(read)
        os.close(write)


def test_hooks_run_after_every_turn_and_before_the_first_wait(loop: Loop) -> None:
    order = []
    loop.after_turn(lambda _now: order.append("hook"))
    loop.call_later(0, order.append, "timer")
    loop.call_later(0.01, loop.stop)
    loop.run()
    assert order[:3] == ["hook", "timer", "hook"]


def test_signals_arrive_in_the_loop(loop: Loop) -> None:
    got = []
    loop.on_signal(signal.SIGUSR1, lambda: got.append("usr1"))
    loop.on_signal(signal.SIGUSR2, lambda: got.append("usr2"))
    # To this thread: another, left by some test before, would take it from the process and end the whole run.
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
    deadline = time.monotonic() + 20
    while not got and time.monotonic() < deadline:
        loop.turn(0.1)
    assert got == ["usr2"]


def test_signals_that_another_thread_takes_arrive_all_the_same(loop: Loop) -> None:
    """A thread of a library may be older than the loop, and the kernel gives it what it does not block."""
    got: list[str] = []
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    try:
        loop.on_signal(signal.SIGUSR1, lambda: got.append("usr1"))
        for count in range(1, 20):
            os.kill(os.getpid(), signal.SIGUSR1)
            deadline = time.monotonic() + 20
            while len(got) < count:
                assert time.monotonic() < deadline, f"signal {count} was lost"
                loop.turn(0.5)
    finally:
        end.set()
        other.join()


def test_waiting_ends_at_the_next_timer(loop: Loop) -> None:
    begin = time.monotonic()
    loop.call_later(0.05, loop.stop)
    loop.run()
    assert 0.04 < time.monotonic() - begin < 20


def test_a_stop_before_the_run_is_not_lost(loop: Loop) -> None:
    loop.call_later(0, loop.stop)
    loop.turn(1)
    loop.run()


def test_closing_gives_back_all_descriptors() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        loop = Loop()
        loop.on_signal(signal.SIGUSR1, lambda: None)
        loop.turn(0)
        loop.close()
        loop.close()
    assert len(os.listdir("/proc/self/fd")) == before
