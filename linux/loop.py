"""The agent's event loop: descriptors, timers and signals on one thread, over epoll.

Callbacks must not block and must not assume that a descriptor still has data (another callback of the same
turn may have read it). An exception in a callback goes to `on_error` and never ends the loop. Nothing here
starts processes or knows what the descriptors are. Timers that are due in the same turn run in the order of
their times.
"""

import contextlib
import heapq
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from xce.linux import syscalls

Callback = Callable[..., Any]

_READABLE = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
_WRITABLE = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR
_SIGINFO, _NUMBER = 128, 0 if sys.byteorder == "little" else 3
"""Bytes of struct signalfd_siginfo, and where the signal's number is in it: signalfd(2)."""
_SIGNALS = 4
"""How many are read at once; what is left is told again."""
_STRAYS = 4096
"""Numbers of signals that are read at once where another thread has taken them."""
_COMPACT_ABOVE = 64
"""Cancelled timers are left in the heap until they are more than this and more than half of it."""


class Timer:
    """A callback with a time; `cancel` may be called at any moment, also after it ran."""

    __slots__ = ("args", "callback", "loop", "when")

    def __init__(self, loop: "Loop", when: float, callback: Callback, args: tuple[Any, ...]) -> None:
        self.loop = loop
        self.when = when
        self.callback: Callback | None = callback
        """None once it was called or cancelled."""
        self.args = args

    @property
    def active(self) -> bool:
        """Whether the callback is still to come."""
        return self.callback is not None

    def cancel(self) -> None:
        """Forget the callback."""
        if self.callback is not None:
            self.callback, self.args = None, ()
            self.loop.cancelled += 1


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


def _taken(_number: int, _frame: object) -> None:
    """A handler that does nothing: `Loop._strayed` is told."""


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
        self.cancelled = 0
        """Timers in the heap that will not be called."""
        self._hooks: tuple[Callback, ...] = ()
        self._turns = 0
        self._stopped = False
        self._signals: dict[int, Callback] = {}
        self._signal_fd = -1
        self._strays = (-1, -1)
        """Both ends of a pipe: what came to a thread that does not block it."""

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
        timers = self._timers
        if self.cancelled > _COMPACT_ABOVE and self.cancelled > len(timers) // 2:
            timers[:] = [entry for entry in timers if entry[2].callback is not None]
            heapq.heapify(timers)
            self.cancelled = 0
        heapq.heappush(timers, (when, self._sequence, timer))
        return timer

    def call_later(self, delay: float, callback: Callback, *args: Any) -> Timer:
        """Call `callback(*args)` once, `delay` seconds from now; 0 means in the next turn."""
        return self.call_at(self.now() + delay, callback, *args)

    # ----------------------------------------------------------------------------------- signals, hooks

    def on_signal(self, number: int, callback: Callback) -> None:
        """Call `callback()` in the loop after signal `number`; several at once may become one call.

        The signal is blocked and comes by a descriptor, so that it interrupts nothing and costs one wake-up.
        A thread that was started before does not block it and may take it: then its handler tells us.
        """
        self._signals[number] = callback
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})
        signal.signal(number, _taken)
        known, self._signal_fd = self._signal_fd, syscalls.signalfd(self._signal_fd, self._signals)
        if known < 0:
            self.add_reader(self._signal_fd, self._signalled)
            self._strays = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            signal.set_wakeup_fd(self._strays[1], warn_on_full_buffer=False)
            self.add_reader(self._strays[0], self._strayed)

    def _signalled(self) -> None:
        try:
            told = os.read(self._signal_fd, _SIGNALS * _SIGINFO)
        except BlockingIOError:
            return
        for number in told[_NUMBER::_SIGINFO]:
            callback = self._signals[number]
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - as in `turn`
                self.on_error(error, callback)

    def _strayed(self) -> None:
        """Signals that another thread has taken, by their numbers: signal.set_wakeup_fd."""
        try:
            told = os.read(self._strays[0], _STRAYS)
        except BlockingIOError:
            return
        # A full pipe drops bytes, but then it holds hundreds of others: everyone is asked.
        all_of_them = len(told) == _STRAYS
        for number in [one for one in self._signals if all_of_them or one in told]:
            self._call(self._signals[number])

    def after_turn(self, callback: Callback) -> None:
        """Call `callback(now)` at the end of every turn, and before the first wait.

        For descriptors that are edge-triggered (ZeroMQ's), and for what is gathered over a turn and sent
        once. `now` is read once for all hooks of a turn.
        """
        self._hooks = (*self._hooks, callback)

    def remove_after_turn(self, callback: Callback) -> None:
        """Forget a hook; unknown ones are ignored."""
        self._hooks = tuple(hook for hook in self._hooks if hook != callback)

    # --------------------------------------------------------------------------------------------- run

    def run(self) -> None:
        """Take turns until `stop`; at once, if that came before."""
        now = self.now()
        for hook in self._hooks:
            self._call(hook, now)
        while not self._stopped:
            self.turn()
        self._stopped = False

    def stop(self) -> None:
        """Let `run` return after this turn."""
        self._stopped = True

    def turn(self, at_most: float | None = None) -> None:  # noqa: C901 - see below
        """Take one turn; wait no longer than `at_most` seconds (None: until something happens).

        Mostly a turn finds cold caches, and then each function costs: this one does by itself what it can.
        """
        self._turns += 1
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
            self.cancelled -= 1
        wait = -1.0 if at_most is None else at_most
        if timers:
            until = timers[0][0] - self.now()
            if at_most is None or until < at_most:
                wait = until if until > 0.0 else 0.0
        for fd, events in self._epoll.poll(wait):
            # A callback of this turn may have closed the descriptor and another opened under its number: the
            # newcomer is not meant, and if it is ready the next turn says so.
            watch = self._watches.get(fd)
            if watch is None or watch.born == self._turns:
                continue
            reader = watch.reader
            if reader is not None and events & _READABLE:
                try:
                    reader()
                except Exception as error:  # noqa: BLE001 - one reporter's fault must not end the agent
                    self.on_error(error, reader)
            if watch.writer is not None and events & _WRITABLE:
                self._call(watch.writer)
        if timers and timers[0][0] <= (now := self.now()):
            self._run_due(now)
        now = self.now()
        for hook in self._hooks:
            try:
                hook(now)
            except Exception as error:  # noqa: BLE001 - as above
                self.on_error(error, hook)

    def _run_due(self, now: float) -> None:
        """All are taken off the heap before any of them runs: one set meanwhile waits for the next turn."""
        timers, due = self._timers, []
        while timers and timers[0][0] <= now:
            due.append(heapq.heappop(timers)[2])
        for timer in due:
            callback = timer.callback
            if callback is None:
                self.cancelled -= 1
                continue
            args, timer.callback, timer.args = timer.args, None, ()
            try:
                callback(*args)
            except Exception as error:  # noqa: BLE001 - as in `turn`
                self.on_error(error, callback)

    def _call(self, callback: Callback, *args: Any) -> None:
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001 - as in `turn`
            self.on_error(error, callback)

    def close(self) -> None:
        """Let go of the descriptors and signals; may be called twice."""
        if self._signal_fd >= 0:
            with contextlib.suppress(BlockingIOError):
                # What came too late to be told must not end us, either.
                os.read(self._signal_fd, 64 * _SIGINFO)
            os.close(self._signal_fd)
            self._signal_fd = -1
            signal.set_wakeup_fd(-1)
            for number in self._signals:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)
            self._signals.clear()
            for fd in self._strays:
                os.close(fd)
        self._watches.clear()
        self._epoll.close()
