"""One reporter through its life: `model.reporter.REPORTER` driven by files, timers and runs.

There is never more than one run of a reporter, whatever happens to it: a run that cannot be killed keeps it
from starting until it is gone. Nothing here knows what the lines mean; they go to the `Sink`. Whether there
is room for a start is the supervisor's to say (`Shared.ready`); what a run counts and what follows it is
`verdict.py`'s, what others see of all this `show.py`'s.
"""

from collections.abc import Sequence

from xce.linux.loop import Timer
from xce.linux.reaper import WELL, Exit
from xce.model.configuration import Mode
from xce.model.reporter import REPORTER, ReporterEvent, ReporterState
from xce.reporters import cage, schedule, show
from xce.reporters.common import Shared
from xce.reporters.directory import Candidate
from xce.reporters.ending import Ending, Group, Stuck
from xce.reporters.frame import TooLong
from xce.reporters.launch import ChangedError, Launcher, Wanted
from xce.reporters.newest import Newest
from xce.reporters.oneshot import OneShot
from xce.reporters.result import RunResult
from xce.reporters.stream import Silence, Stream
from xce.reporters.timing import Timing, timing_of
from xce.reporters.verdict import FAILURES, GOOD, Outcome, Verdict, follows

_STOPPED = Verdict(Outcome.STOPPED)
_WELL = ReporterState.RUNNING, ReporterState.WAITING
"""What it does, and what others see, while nothing is wrong."""
RETRY = 1.0
"""Seconds until the next try after a file was found changed at the moment of the start."""


class Reporter:
    """A reporter and its run, if any. Implements `launch.Owner`."""

    def __init__(self, shared: Shared, candidate: Candidate, leftover: Group | None = None) -> None:
        self._shared, self._loop = shared, shared.loop
        self.name = candidate.name
        self.candidate = candidate
        self.streaming = candidate.settings.mode is not Mode.ONE_SHOT
        """Whether it runs all the time."""
        self.state = self.resting = REPORTER.start
        """What it does; and what it did when no run was going on."""
        self.cause, self.person = "", cage.Person(user=None)
        self.held_back = ""
        """Why it is not started although its time has come."""
        self._assigned: tuple[float | None, Sequence[str]] = (None, ())
        self._wanted: Wanted | None = None
        self.timing = self._timing()
        self.runs = self.failures = self.in_a_row = 0
        self.late = 0
        """Turns that were missed because of runs that are over."""
        self.due = 0.0
        self.run: OneShot | Stream | None = None
        self._newest = Newest(self.name, shared.sink, shared.loop.now)
        self.unkillable: list[Stuck] = []
        self.unkillable_since = 0.0
        self._pending: Candidate | None = None
        self._verdict: Verdict | None = None
        self._ended_for: str | None = None
        self._timer: Timer | None = None
        self._silence: Silence | None = None
        """Of a run that goes on."""
        self._published: tuple[object, ...] = ()
        self._launcher = Launcher(shared, self.name)
        self._leftover = self._end_leftover(leftover)
        if self._leftover is None:
            self._take(candidate)
        else:
            self._pending = candidate
            self.publish()

    # ------------------------------------------------------------------------------- what it goes by

    def _timing(self) -> Timing:
        settings, host = self.candidate.settings, self._shared.node.name
        return timing_of(settings, self._shared.settings, self._assigned[0], host=host, name=self.name)

    @property
    def weight(self) -> int:
        """Share of the node's budget while it runs; who runs all the time takes none."""
        return 0 if self.streaming else self.candidate.settings.weight

    @property
    def alive(self) -> bool:
        """Whether something of a run, or of a leftover, is there."""
        return self.run is not None or self._leftover is not None

    @property
    def ending(self) -> bool:
        """Whether its run, or a leftover, has been told to end."""
        return self._leftover is not None or (self.run is not None and self.run.ending)

    @property
    def planned(self) -> bool:
        """Whether there is a next run, and when: `due`."""
        return self._timer is not None and self._timer.active

    @property
    def result(self) -> RunResult | None:
        """How its newest run came out."""
        return self._newest.result

    @property
    def user(self) -> str:
        """As whom it runs, for showing."""
        return self.person.user.name if self.person.user else f"uid {self._shared.policy.uid}"

    @property
    def expected(self) -> Sequence[str]:
        """Names that it should give."""
        return cage.expected(self.candidate.settings, self._assigned[1])

    def _turn(self) -> float:
        """When it is its turn next: on its grid, or, if it runs all the time, at once."""
        now = self._loop.now()
        return now if self.streaming else schedule.next_run(now, self.timing.interval, self.timing.offset)

    # ---------------------------------------------------------------------------------------- orders

    def offer(self, candidate: Candidate) -> None:
        """Its files as they are now. A one-shot run in progress ends normally first."""
        if candidate == self.candidate and self._pending is None:
            if self.state is ReporterState.REFUSED and not self._refusal():
                self._take(candidate)  # its user is there now
            return
        if candidate.same_as(self._pending or self.candidate):
            if self._pending is None:
                self.candidate, self._wanted = candidate, None  # the same in another inode, perhaps
        elif self.alive:
            self._pending = candidate
            if self.streaming:
                self._end("")
        else:
            self._take(candidate)

    def assign(self, interval: float | None, names: Sequence[str]) -> None:
        """The shortest interval that a type of its names asks for, and the names it is expected to give."""
        if (interval, names) == self._assigned:
            return
        before, self._assigned = self.timing, (interval, names)
        self.timing, self._wanted = self._timing(), None
        resting = self.state is ReporterState.WAITING and self.planned and self.runs > 0
        if resting and self.timing != before and not self.streaming:
            self._plan(self._turn())
        self.publish()

    def reset(self) -> None:
        """Forget its failures and try again at once."""
        self.in_a_row = 0
        if not self.alive:
            self._step(ReporterEvent.RESET)
            self._admit()

    def withdraw(self) -> None:
        """Its file is gone: no further run, the present one is ended."""
        self._cancel()
        self._end("")
        self._step(ReporterEvent.REMOVE)

    def close(self) -> None:
        """Let go of what is held between runs; nothing of it may be alive."""
        self._cancel()
        self._launcher.close()

    def stop(self, longest_grace: float) -> None:
        """The agent stops: end what runs; nothing more is started by the supervisor."""
        self._cancel()
        self._end("", min(longest_grace, self.candidate.settings.grace))

    # ------------------------------------------------------------------------------------------ files

    def _take(self, candidate: Candidate) -> None:
        """Go by new files."""
        self.candidate, self._wanted, self.in_a_row = candidate, None, 0
        self._newest.forget()
        self.streaming = candidate.settings.mode is not Mode.ONE_SHOT
        self.timing = self._timing()
        self._step(ReporterEvent.CHANGED)
        self._admit()

    def _admit(self) -> None:
        """Plan the first run of these files, or refuse them."""
        self.cause, self.resting = "", self.state
        if why := self._refusal():
            self._refuse(why)
            return
        now, timing = self._loop.now(), self.timing
        self._plan(now if self.streaming else schedule.first_run(now, timing.interval, timing.offset))
        self.publish()

    def _refusal(self) -> str:
        """Why these files are not run; ''."""
        try:
            self.person = cage.admit(self.candidate, self._shared.policy, self._shared.find_user)
        except cage.NotAdmittedError as error:
            return str(error)
        return ""

    def _refuse(self, why: str) -> None:
        self.failures += 1
        self._cancel()
        self._step(ReporterEvent.REFUSE)
        self.cause, self.resting = why, self.state
        self.publish()

    # ------------------------------------------------------------------------------------------ start

    def _plan(self, when: float) -> None:
        if self._timer is not None and self._timer.callback is not None:
            self._timer.cancel()
        self.due = when
        self._timer = self._loop.call_at(when, self._shared.ready, self)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def hold_back(self, why: str) -> None:
        """Its time has come, and it is not started for this reason; '' when there is none any more."""
        if why != self.held_back:
            self.held_back = why
            self.publish()

    def start(self) -> None:
        """Start a run, or go where a failed start leads."""
        started = REPORTER.table.get((self.state, ReporterEvent.STARTED))
        if started is None or self.run is not None or self._leftover is not None:
            return
        now = self._loop.now()
        if not self.streaming and (late := int((now - self.due) // self.timing.interval)):
            self.late += late
            self.publish()
        if self.held_back:
            self.hold_back("")
        self._verdict = self._ended_for = None
        try:
            if self._wanted is None or self.candidate.settings.user:
                self._wanted = self._want()
            self.run = self._launcher.launch(self, self._wanted)
        except ChangedError:
            self._plan(now + RETRY)
            self._shared.look_again()
        except (OSError, ValueError) as error:
            self._not_started(error)
        else:
            self.runs += 1
            self.state = started
            self._shared.living.add(self)
            if self.streaming:
                self._silence = Silence(self._loop, lambda: self.timing.ttl, self._end)
                self.publish()

    def _want(self) -> Wanted:
        """What the launcher needs; the same object while nothing changes, other reporters' users included."""
        own_user = self._shared.has_own_user(self.candidate)
        if self._wanted is not None and self._wanted.own_user == own_user:
            return self._wanted
        return Wanted(
            candidate=self.candidate,
            person=self.person,
            interval=self.timing.interval,
            timeout=self.timing.timeout,
            expected=self.expected,
            own_user=own_user,
        )

    def _not_started(self, error: OSError | ValueError) -> None:
        verdict = self._newest.not_started(self.runs, self.candidate, cage.not_started(error, self.candidate))
        self._shared.look_again()
        self._settle(verdict)

    # --------------------------------------------------------------------------------------------- end

    def _end(self, why: str, grace: float | None = None) -> None:
        """End its run, if there is one. `why`: its fault, or '' if it has none."""
        if self.run is None:
            return
        if self._ended_for is None:
            self._ended_for = why
        if REPORTER.allows(self.state, ReporterEvent.OVERDUE):
            self._step(ReporterEvent.OVERDUE)
        self.run.end(self.candidate.settings.grace if grace is None else grace)

    # --------------------------------------------------------------------------- what its run says

    def line(self, line: bytes | TooLong, number: int) -> None:
        """Of `launch.Owner`."""
        now = self._loop.now()
        if self._silence is not None and (isinstance(line, TooLong) or line.strip()):
            self._silence.heard = now
        if self.state is not ReporterState.REMOVED:
            self._shared.sink.frame(self.name, line, number, now)
        if self.run is not None and self.run.slowed:
            self.publish()

    def exceeded(self, reason: str) -> None:
        """Of `launch.Owner`."""
        self._end(reason)

    def exited(self, how: Exit, left: list[Stuck]) -> None:
        """Of `launch.Owner`: the values of a run are there with the exit of its main process."""
        if self._verdict is None:
            assert self.run is not None
            as_ever = how is WELL and not left and self._ended_for is None
            if as_ever and self._newest.repeated(self.run, self.runs):
                self._verdict = GOOD
            else:
                self._judge(how, left)
        if left and REPORTER.allows(self.state, ReporterEvent.OVERDUE):
            self._step(ReporterEvent.OVERDUE)

    def stuck(self, processes: list[Stuck]) -> None:
        """Of `launch.Owner`: what cannot be killed is told at once, and kept until it is gone."""
        if self._verdict is None:
            self._judge(None, processes)
        self._abandon(processes)

    def over(self) -> None:
        """Of `launch.Owner`."""
        run, self.run = self.run, None
        now, timing = self._loop.now(), self.timing
        well = self._verdict is GOOD and (self.state, self.resting) == _WELL
        if isinstance(run, OneShot) and now - run.started_at > timing.interval / 2:
            self.late += timing.missed(run.started_at, now)
        elif well and self._pending is None:  # mostly; nothing that others see is new
            self._verdict, self.state = None, self.resting
            self._plan(schedule.next_run(now, timing.interval, timing.offset))
            self._shared.finished(self)
            return
        self._nothing_left()

    def _judge(self, how: Exit | None, left: list[Stuck]) -> None:
        """How its run came out; `how` is None for one that cannot be killed."""
        run = self.run
        assert run is not None
        if self._silence is not None:
            self._silence.end()
        self._verdict = self._newest.ended(
            run,
            self.runs,
            self.candidate,
            how=how,
            left=left,
            ended_for=self._ended_for,
            wanted=self.state is not ReporterState.REMOVED,
        )

    def _abandon(self, processes: list[Stuck]) -> None:
        self.unkillable, self.unkillable_since = processes, self._loop.now()
        if REPORTER.allows(self.state, ReporterEvent.UNKILLABLE):
            self._step(ReporterEvent.UNKILLABLE)
            named = ", ".join(str(process) for process in processes[:3]) or "a process"
            self.cause = f"cannot be killed: {named}"
        self.publish()
        self._shared.finished(self)

    # ------------------------------------------------------------------------------------- afterwards

    def _nothing_left(self) -> None:
        """Go where the verdict leads, and then by the files that came meanwhile."""
        self.unkillable = []
        verdict, self._verdict = self._verdict or _STOPPED, None
        pending, self._pending = self._pending, None
        if self.state is not ReporterState.REMOVED:
            if pending is None:
                self._settle(verdict)
            else:
                self._step(ReporterEvent.SUCCEEDED)
                self._take(pending)
        self._shared.finished(self)

    def _settle(self, verdict: Verdict) -> None:
        """The state after a run, and the time of the next."""
        lived = self.streaming and self.result is not None and self.result.duration > self.timing.healthy
        most = self._shared.settings.failures_to_quarantine
        event, self.in_a_row, self.cause = follows(verdict, self.in_a_row, lived=lived, most=most)
        self._step(event)
        self.failures += verdict.outcome in FAILURES
        if event is ReporterEvent.DECLINED:
            self._cancel()
        elif verdict.outcome is Outcome.MISBEHAVED:
            self._launcher.forget()
            self._plan(self._loop.now() + self.timing.pause(event, self.in_a_row, self._shared.chance))
        else:
            self._plan(self._turn())
        self.resting = self.state
        self.publish()

    def _end_leftover(self, leftover: Group | None) -> Ending | None:
        """End what an agent before this one, or this one before the file came back, left running."""
        group = self._launcher.group
        if leftover is None and group is not None and group.populated():
            leftover = group
        if leftover is None:
            return None
        self._step(ReporterEvent.OVERDUE)
        self._shared.living.add(self)
        self.cause = "a run from before is being ended"

        def ended() -> None:
            self._leftover = None
            self._nothing_left()

        return Ending(
            self._loop,
            leftover,
            grace=0,
            on_end=ended,
            on_stuck=self._abandon,
            patience=self._shared.patience,
        )

    def _step(self, event: ReporterEvent) -> None:
        self.state = REPORTER.step(self.state, event)

    # ------------------------------------------------------------------------------------------- show

    def publish(self) -> None:
        """Tell the sink, if what others see has changed. Single runs are not news."""
        if self.state is ReporterState.REMOVED:
            return
        # Compared before the message is made: mostly nothing is new.
        if (seen := show.seen(self)) != self._published:
            self._published = seen
            self._shared.sink.state(self.name, show.told(self, self._loop.now()))
