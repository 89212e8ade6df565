"""The probe through its life: `model.reporter.REPORTER` driven by readings, silence, ends and events.

It leaves by itself where nothing has to stay resident, and where a new process must take over; it is made to
where it is silent, old or large. There is never more than one, and one that fails is started later each time.
Nothing here knows what was found; that goes to the `Listener`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from xce.agent.discovery.child import Child, Done
from xce.agent.discovery.unread import SOURCES, Unread
from xce.agent.probe.frame import AGAIN, FRAME_BYTES, Launch, Line
from xce.linux.cgroup import Cgroup
from xce.linux.loop import Loop, Timer
from xce.linux.reaper import Exit, Reaper
from xce.model.configuration import Discovery
from xce.model.reporter import REPORTER, ReporterEvent, ReporterState
from xce.reporters import schedule
from xce.reporters.ending import PATIENCE, Ending, Stuck
from xce.reporters.frame import TooLong, escape

HEALTHY_S = 60.0
"""A probe that ends after so many seconds (or interval + timeout) was no failed start."""
STEADY, LONGEST_AGAIN_S = 10, 600.0
"""A probe that asks for a new process gets it at each interval so many times; then later and later."""
LEAVE_S = 2.0
"""How long the end of the agent waits for the probe; one that stays longer leaves by itself."""

_decode = msgspec.json.Decoder(Line).decode


class Listener(Protocol):
    """Whom the prober tells."""

    def heard(self, line: Line) -> None:
        """A reading."""

    def alive(self) -> None:
        """All is as the last reading said."""

    def unheard(self, blind: Mapping[str, str]) -> None:
        """Sources have not been read for too long, each with the reason."""

    def changed(self) -> None:
        """The prober's own state may be new."""


class Prober:
    """One probe and no more. Implements `StreamOwner`. `command`: what is started instead of ours."""

    def __init__(
        self,
        loop: Loop,
        reaper: Reaper,
        listener: Listener,
        settings: Discovery,
        *,
        group: Cgroup | None,
        chance: Callable[[], float],
        command: Sequence[str] = (),
        patience: float = PATIENCE,
    ) -> None:
        self._loop, self._reaper, self._listener, self._chance = loop, reaper, listener, chance
        self.settings, self.group, self._command, self._patience = settings, group, command, patience
        self.state = REPORTER.start
        self.cause = self.note = self.stderr = self.last_exit = ""
        self.runs = self.failures = self.in_a_row = 0
        self.interval = settings.interval
        """Between two readings, as the probe last said."""
        self.resting = self.released = False
        self.child: Child | None = None
        self.due: float | None = None
        self.unkillable: list[Stuck] = []
        self._heard, self._again = 0.0, 0
        self._ended_for: str | None = None
        """Why it is made to end; '': for no fault of its own. None: it is not."""
        self._exit: Exit | None = None
        self._spoke = self._leaves = False
        """It has said something; it has said that it leaves."""
        self._pending: list[str] = list(SOURCES)
        self._unread = Unread(settings.unknown_after)
        self._timers: dict[Callable[[], None], Timer] = {}
        self._leftover: Ending | None = None
        self._stopped: Callable[[], object] | None = None

    # ---------------------------------------------------------------------------------------- orders

    def begin(self) -> None:
        """Start it, once nothing of one before is left."""
        if self.group is None or not self.group.populated():
            self._start()
            return
        self._step(ReporterEvent.OVERDUE)
        self.cause = "a probe from before is being ended"
        self._leftover = Ending(
            self._loop,
            self.group,
            grace=self.settings.grace,
            on_end=self._leftover_gone,
            on_stuck=self.stuck,
            patience=self._patience,
        )
        self._listener.changed()

    def wake(self) -> None:
        """Something happened: read now, or start one that does. One that failed keeps its pause."""
        if self.child is not None:
            self.child.tell("read")
        elif self.state is ReporterState.WAITING:
            self._start()

    def reset(self) -> None:
        """Forget its failures, and read now."""
        self.in_a_row = self._again = 0
        if self.child is not None:
            self.child.tell("read")
        elif REPORTER.allows(self.state, ReporterEvent.RESET):
            self._step(ReporterEvent.RESET)
            self._start()

    def release(self, done: Done) -> None:
        """Have it give up the vendor's library until `resume`: `done('')` when no handle is left."""
        self.released = True
        if self.child is None:
            done("")
        else:
            self.child.tell("release", done)

    def resume(self) -> None:
        """It may use the library again."""
        self.released = False
        if self.child is not None:
            self.child.tell("resume")

    @property
    def stopping(self) -> bool:
        """Whether it was told to end for good."""
        return self._stopped is not None

    def stop(self, done: Callable[[], object]) -> None:
        """Let it leave; `done()` when it has, or soon in any case."""
        self._stopped = done
        for timer in self._timers.values():
            timer.cancel()
        if self.child is None:
            self._gone()
        else:
            self._finish("")
            self._loop.call_later(LEAVE_S, self._gone)

    # ------------------------------------------------------------------------------------------ start

    def _leftover_gone(self) -> None:
        self._leftover, self.unkillable, self.cause = None, [], ""
        self._step(ReporterEvent.SUCCEEDED)
        if self._stopped is None:
            self._start()

    def _start(self) -> None:
        self.due = None
        if self.child is not None or self._stopped or not REPORTER.allows(self.state, ReporterEvent.STARTED):
            return
        self._cancel(self._start)
        self._unread.wanted(self._loop.now())
        self._watch_unread()
        launch = Launch(
            settings=self.settings, group=self.group.path if self.group else "", released=self.released
        )
        try:
            self.child = Child(
                self._loop,
                self._reaper,
                self,
                launch,
                command=self._command,
                group=self.group,
                patience=self._patience,
            )
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            self._failed(f"cannot start it: {why}", lived=0)
        else:
            self.runs += 1
            self._heard, self._ended_for, self._exit = self._loop.now(), None, None
            self._spoke = self._leaves = False
            self._pending = list(SOURCES)
            self._step(ReporterEvent.STARTED)
            self._at(self._heard + self._patience_s, self._look_for_silence)
        self._listener.changed()

    # -------------------------------------------------------------------------------------- it speaks

    def line(self, line: bytes | TooLong, number: int) -> None:  # noqa: ARG002
        """StreamOwner."""
        self._heard = self._loop.now()
        if self.stopping:
            return  # nobody goes by it any more
        try:
            told = _decode(line) if isinstance(line, bytes) else None
        except (msgspec.MsgspecError, ValueError) as error:
            self._finish(f"printed what is no frame: {escape(str(error), 200)}")
            return
        if told is None:
            self._finish(f"printed a line of more than {FRAME_BYTES} bytes")
        elif told.answer:
            if self.child is not None:
                self.child.answered(told)
        else:
            self._take(told)

    def _take(self, told: Line) -> None:
        if told.instances is None:
            self._read()
            self._listener.alive()
        else:
            self._spoke, self._leaves = True, told.rest
            self._pending, self.resting = told.pending, told.rest
            self.interval, self.note = told.interval_s or self.settings.interval, told.note
            if not told.pending:
                self.cause = ""
                self._again = self._again if told.blind else 0
            self._read()
            if self._leaves:
                self._at(self._heard + self._patience_s, self._look_for_silence)
            self._listener.heard(told)
            self._listener.changed()
        if self._ended_for is None and (why := self._overgrown()):
            self.note = f"started anew: {why}"
            self._finish("")

    def _read(self) -> None:
        self._unread.read(self._heard, without=self._pending, rest=self.resting)
        self._watch_unread()

    def _overgrown(self) -> str:
        """Why a new process should take over; '' if none has to."""
        if self.child is None:
            return ""
        if self._loop.now() - self.child.run.started_at > self.settings.recycle_age:
            return f"older than {self.settings.recycle_age:g} s"
        if (held := self.child.memory >> 20) > self.settings.recycle_memory_mb:
            return f"{held} MB of memory, more than {self.settings.recycle_memory_mb}"
        return ""

    # -------------------------------------------------------------------------------- it falls silent

    @property
    def shown(self) -> ReporterState:
        """Its state as others see it: that one which leaves again was started is no news."""
        passing = self.resting and self.state is ReporterState.RUNNING
        return ReporterState.WAITING if passing else self.state

    @property
    def ttl(self) -> float:
        """Seconds of silence after which it counts as hanging."""
        return schedule.time_to_live(self.interval, self.settings.timeout)

    @property
    def _patience_s(self) -> float:
        """How long it may be silent now: longer between two readings than before the first or its end."""
        if self._leaves:
            return self.settings.timeout
        return self.ttl if self._spoke else self.settings.interval + self.settings.timeout

    def _look_for_silence(self) -> None:
        if self.child is None or self._ended_for is not None:
            return
        if self._loop.now() < self._heard + self._patience_s:
            self._at(self._heard + self._patience_s, self._look_for_silence)
        elif self._leaves:
            self._finish(f"did not leave within {self._patience_s:g} s", at_once=True)
        else:
            self._finish(f"said nothing for {self._patience_s:g} s", at_once=True)

    def _watch_unread(self) -> None:
        due = self._unread.due()
        if due is not None:
            self._at(due, self._look_at_unread)

    def _look_at_unread(self) -> None:
        if late := self._unread.late(self._loop.now()):
            why = self.cause or "no answer"
            self._listener.unheard(
                dict.fromkeys(late, f"not read for {self.settings.unknown_after:g} s: {why}")
            )
        self._watch_unread()

    # ---------------------------------------------------------------------------------------- it ends

    def _finish(self, why: str, *, at_once: bool = False) -> None:
        """Make it end, in peace unless it hangs. `why`: its fault, '' if it has none."""
        if self.child is None:
            return
        self._ended_for = self._ended_for or why
        self.cause = why or self.cause
        if REPORTER.allows(self.state, ReporterEvent.OVERDUE):
            self._step(ReporterEvent.OVERDUE)
        if at_once:
            self.child.end()
        else:
            self.child.leave()
        self._listener.changed()

    def exited(self, how: Exit, left: list[Stuck]) -> None:  # noqa: ARG002
        """StreamOwner."""
        self._exit, self.last_exit = how, str(how)

    def stuck(self, processes: list[Stuck]) -> None:
        """StreamOwner: it cannot be killed, and no other is started until it is gone."""
        self.unkillable = processes
        if REPORTER.allows(self.state, ReporterEvent.UNKILLABLE):
            self._step(ReporterEvent.UNKILLABLE)
        named = ", ".join(str(process) for process in processes[:3]) or "a process"
        self.cause = f"cannot be killed: {named}"
        if self.child is not None:
            self.child.gone(self.cause)
        if not self.stopping:
            self._listener.changed()

    def over(self) -> None:
        """StreamOwner: nothing of it is left."""
        child, self.child, self.unkillable = self.child, None, []
        assert child is not None
        self._cancel(self._look_for_silence)
        self.stderr = child.run.stderr.text
        child.gone()
        if self._stopped is not None:
            self._gone()
            return
        lived = self._loop.now() - child.run.started_at
        if self._ended_for:
            self._failed(self._ended_for, lived=lived)
        elif self._ended_for == "":
            self._step(ReporterEvent.SUCCEEDED)
            self._later(0)
        elif self._exit == Exit(status=0) and self._leaves:
            self.in_a_row, self.cause = 0, ""
            self._step(ReporterEvent.SUCCEEDED)
            self._later(self.interval)
        elif self._exit == Exit(status=AGAIN):
            self._start_again()
        else:
            said = escape(self.stderr.rstrip().rpartition("\n")[2], 200)
            self._failed(f"ended by itself: {self._exit}" + (f": {said}" if said else ""), lived=lived)
        self._listener.changed()

    def _start_again(self) -> None:
        """A new process must take over; if that does not help, gently."""
        self._again += 1
        self._step(ReporterEvent.SUCCEEDED)
        longest = max(LONGEST_AGAIN_S, self.settings.interval)
        pause = self.settings.interval * 2.0 ** min(max(0, self._again - 1 - STEADY), 30)
        self._later(min(pause, longest) if self._again > 1 else 0)

    def _failed(self, why: str, *, lived: float) -> None:
        self.cause = why
        self.failures += 1
        self.in_a_row = 1 if lived > max(HEALTHY_S, self.ttl) else self.in_a_row + 1
        self._step(ReporterEvent.FAILED)
        self._later(schedule.backoff(self.in_a_row, self.settings.interval, self._chance))

    def _gone(self) -> None:
        done, self._stopped = self._stopped, lambda: None
        if done is not None:
            done()

    # --------------------------------------------------------------------------------------- helpers

    def _later(self, delay: float) -> None:
        self.due = self._loop.now() + delay
        self._at(self.due, self._start)

    def _at(self, when: float, what: Callable[[], None]) -> None:
        """Call `what` then, instead of when it was to be called."""
        known = self._timers.get(what)
        if known is not None and known.active and known.when == when:
            return
        self._cancel(what)
        self._timers[what] = self._loop.call_at(when, what)

    def _cancel(self, what: Callable[[], None]) -> None:
        if (timer := self._timers.pop(what, None)) is not None:
            timer.cancel()

    def _step(self, event: ReporterEvent) -> None:
        self.state = REPORTER.step(self.state, event)
