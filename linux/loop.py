"""The agent's event loop: descriptors, timers and signals on one thread, over epoll.

Callbacks must not block and must not assume that a descriptor still has data (another callback of the same
turn may have read it). An exception in a callback goes to `on_error` and never ends the loop. Nothing here
starts processes or knows what the descriptors are. Timers that are due in the same turn run in the order of
their times.
"""

import heapq
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

Callback = Callable[..., Any]

_COMPACT_ABOVE = 64
"""Cancelled timers are left in the heap until they are more than this and more than half of it."""


class Timer:
    """A callback with a time; `cancel` may be called at any moment, also after it ran."""

    __slots__ = ("_args", "_callback", "_loop", "when")

    def __init__(self, loop: "Loop", when: float, callback: Callback, args: tuple[Any, ...]) -> None:
        self._loop: Loop | None = loop
        self.when = when
        self._callback: Callback | None = callback
        self._args = args

    @property
    def active(self) -> bool:
        """Whether the callback is still to come."""
        return self._callback is not None

    def cancel(self) -> None:
        """Forget the callback."""
        if self._callback is not None and self._loop is not None:
            self._loop._cancelled()  # noqa: SLF001 - the two are one
        self._drop()

    def _drop(self) -> None:
        self._callback, self._args, self._loop = None, (), None

    def _take(self) -> tuple[Callback, tuple[Any, ...]]:
        callback, args = self._callback, self._args
        assert callback is not None, "internal error: a timer without a callback was due"
        self._drop()
        return callback, args


class _Watch:
    """What is wanted of one descriptor."""

    __slots__ = ("born", "reader", "writer")

    def __init__(self, born: int) -> None:
        self.reader: Callback | None = None
        self.writer: Callback | None = None
        self.born = born
        """The turn in which it was made."""

    def mask(self) -> int:
        return (select.EPOLLIN if self.reader else 0) | (select.EPOLLOUT if self.writer else 0)


def print_error(error: Exception, _callback: Callback) -> None:
    """The default `on_error`: a traceback on stderr."""
    traceback.print_exception(error)


class Loop:
    """One turn: wait for descriptors until the next timer, run what is ready, run due timers, run the hooks.

    `clock` gives seconds of a clock that never goes back. `on_error(error, callback)` is told of each
    exception.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        on_error: Callable[[Exception, Callback], None] = print_error,
    ) -> None:
        self.now = clock
        self.on_error = on_error
        self._epoll = select.epoll()
        self._watches: dict[int, _Watch] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._sequence = 0
        self._cancelled_timers = 0
        self._hooks: list[Callback] = []
        self._turns = 0
        self._stopped = False
        self._signals: dict[int, Callback] = {}
        self._wakeup: tuple[int, int] | None = None

    # ------------------------------------------------------------------------------------- descriptors

    def add_reader(self, fd: int, callback: Callback) -> None:
        """Call `callback()` in each turn in which `fd` is readable, at its end, or in error."""
        self._set(fd, reader=callback)

    def add_writer(self, fd: int, callback: Callback) -> None:
        """Call `callback()` in each turn in which `fd` is writable or in error."""
        self._set(fd, writer=callback)

    def remove_reader(self, fd: int) -> None:
        """Stop watching; to be called before `fd` is closed. Unknown descriptors are ignored."""
        if watch := self._watches.get(fd):
            watch.reader = None
            self._less(fd, watch)

    def remove_writer(self, fd: int) -> None:
        """Stop watching; to be called before `fd` is closed. Unknown descriptors are ignored."""
        if watch := self._watches.get(fd):
            watch.writer = None
            self._less(fd, watch)

    def _set(self, fd: int, *, reader: Callback | None = None, writer: Callback | None = None) -> None:
        known = self._watches.get(fd)
        watch = known or _Watch(self._turns)
        watch.reader, watch.writer = reader or watch.reader, writer or watch.writer
        (self._epoll.modify if known else self._epoll.register)(fd, watch.mask())
        self._watches[fd] = watch

    def _less(self, fd: int, watch: _Watch) -> None:
        if mask := watch.mask():
            self._epoll.modify(fd, mask)
        else:
            del self._watches[fd]
            self._epoll.unregister(fd)

    # ------------------------------------------------------------------------------------------ timers

    def call_at(self, when: float, callback: Callback, *args: Any) -> Timer:
        """Call `callback(*args)` once, at `when` of this loop's clock or as soon as possible after it."""
        timer = Timer(self, when, callback, args)
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, timer))
        return timer

    def call_later(self, delay: float, callback: Callback, *args: Any) -> Timer:
        """Call `callback(*args)` once, `delay` seconds from now; 0 means in the next turn."""
        return self.call_at(self.now() + delay, callback, *args)

    def _cancelled(self) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > max(_COMPACT_ABOVE, len(self._timers) // 2):
            self._timers = [entry for entry in self._timers if entry[2].active]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def _next_timer(self) -> float | None:
        while self._timers and not self._timers[0][2].active:
            heapq.heappop(self._timers)
            self._cancelled_timers = max(0, self._cancelled_timers - 1)
        return self._timers[0][0] if self._timers else None

    def _due(self) -> list[Timer]:
        """Taken off the heap before any of them runs: a timer set meanwhile waits for the next turn."""
        timers, now, due = self._timers, self.now(), []
        while timers and timers[0][0] <= now:
            due.append(heapq.heappop(timers)[2])
        return due

    # ----------------------------------------------------------------------------------- signals, hooks

    def on_signal(self, number: int, callback: Callback) -> None:
        """Call `callback()` in the loop after signal `number`; several at once may become one call.

        Main thread only. Python's handler does nothing; the wake-up descriptor carries the number.
        """
        if self._wakeup is None:
            self._wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
            self.add_reader(self._wakeup[0], self._signalled)
        self._signals[number] = callback
        signal.signal(number, _nothing)
        signal.siginterrupt(number, False)

    def _signalled(self) -> None:
        assert self._wakeup is not None
        try:
            numbers = os.read(self._wakeup[0], 4096)
        except BlockingIOError:
            return
        # A full pipe drops bytes, but then it holds hundreds of others: everyone is asked.
        wanted = self._signals if len(numbers) == 4096 else dict.fromkeys(numbers)
        for number in list(wanted):
            if callback := self._signals.get(number):
                self._call(callback)

    def after_turn(self, callback: Callback) -> None:
        """Call `callback()` at the end of every turn, and before the first wait.

        For descriptors that are edge-triggered (ZeroMQ's), and for what is gathered over a turn and sent
        once.
        """
        self._hooks.append(callback)

    def remove_after_turn(self, callback: Callback) -> None:
        """Forget a hook; unknown ones are ignored."""
        if callback in self._hooks:
            self._hooks.remove(callback)

    # --------------------------------------------------------------------------------------------- run

    def run(self) -> None:
        """Take turns until `stop`; at once, if that came before."""
        self._run_hooks()
        while not self._stopped:
            self.turn()
        self._stopped = False

    def stop(self) -> None:
        """Let `run` return after this turn."""
        self._stopped = True

    def turn(self, at_most: float | None = None) -> None:
        """Take one turn; wait no longer than `at_most` seconds (None: until something happens)."""
        self._turns += 1
        for fd, events in self._epoll.poll(self._timeout(at_most)):
            self._ready(fd, events)
        for timer in self._due():
            if timer.active:
                callback, args = timer._take()  # noqa: SLF001 - the two are one
                self._call(callback, *args)
            else:
                self._cancelled_timers = max(0, self._cancelled_timers - 1)
        self._run_hooks()

    def _timeout(self, at_most: float | None) -> float:
        upcoming = self._next_timer()
        if upcoming is None:
            return -1 if at_most is None else at_most
        wait = max(0.0, upcoming - self.now())
        return wait if at_most is None else min(wait, at_most)

    def _ready(self, fd: int, events: int) -> None:
        # A callback of this turn may have closed the descriptor and another opened under its number: the
        # newcomer is not meant, and if it is ready the next turn says so.
        watch = self._watches.get(fd)
        if watch is None or watch.born == self._turns:
            return
        failed = select.EPOLLHUP | select.EPOLLERR
        if watch.reader and events & (select.EPOLLIN | failed):
            self._call(watch.reader)
        if watch.writer and events & (select.EPOLLOUT | failed):
            self._call(watch.writer)

    def _run_hooks(self) -> None:
        for hook in tuple(self._hooks):
            self._call(hook)

    def _call(self, callback: Callback, *args: Any) -> None:
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001 - one reporter's fault must not end the agent
            self.on_error(error, callback)

    def close(self) -> None:
        """Let go of the descriptors and signals; may be called twice."""
        for number in self._signals:
            signal.signal(number, signal.SIG_DFL)
        self._signals.clear()
        if self._wakeup is not None:
            signal.set_wakeup_fd(-1)
            for fd in self._wakeup:
                os.close(fd)
            self._wakeup = None
        self._watches.clear()
        self._epoll.close()


def _nothing(_number: int, _frame: object) -> None:
    """Python needs a handler, or the wake-up descriptor is not written to."""
