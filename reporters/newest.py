"""The newest run of a reporter: judged when it ends, told to the sink, and kept until the next one ends.

Most runs are byte for byte as the good one before them; of such a run only number and times are kept. What a
verdict means for the reporter's state is not known here.
"""

from collections.abc import Callable

import msgspec

from xce.linux.reaper import Exit
from xce.reporters.directory import Candidate
from xce.reporters.ending import Stuck
from xce.reporters.oneshot import OneShot
from xce.reporters.result import RunResult, Sink
from xce.reporters.stream import Stream
from xce.reporters.verdict import GOOD, Outcome, Verdict, judge


class Newest:
    """See the module. `name` is the reporter's."""

    def __init__(self, name: str, sink: Sink, now: Callable[[], float]) -> None:
        self._name, self._sink, self._now = name, sink, now
        self._result: RunResult | None = None
        self._usual: bytes | None = None
        """What it has printed, if that was good and there is no more to say of it."""
        self._again: tuple[int, float, float] | None = None
        """Number, start and duration of the newest run, if it was otherwise as the one of `_result`."""

    @property
    def result(self) -> RunResult | None:
        """How it came out; None before the first."""
        if self._result is not None and self._again is not None:
            (run, at, lasted), self._again = self._again, None
            self._result = msgspec.structs.replace(self._result, run=run, started_at=at, duration=lasted)
        return self._result

    def forget(self) -> None:
        """The files are others: no run is as the one before."""
        self._usual = None

    def repeated(self, run: OneShot | Stream, number: int) -> bool:
        """Whether a run that ended well was in all respects as the one before it, and so is only counted."""
        if self._usual is None or not isinstance(run, OneShot) or run.said != self._usual or run.stderr.ring:
            return False
        if not self._sink.again(self._name, number, run.started_at):
            return False
        self._again = number, run.started_at, self._now() - run.started_at
        return True

    def ended(
        self,
        run: OneShot | Stream,
        number: int,
        candidate: Candidate,
        *,
        how: Exit | None,
        left: list[Stuck],
        ended_for: str | None,
        wanted: bool,
    ) -> Verdict:
        """The verdict on a run (see `verdict.judge`), which the sink is told if it is `wanted` at all."""
        verdict = judge(candidate, how, ended_for=ended_for, stderr=run.stderr, unkillable=left)
        one_shot = isinstance(run, OneShot)
        result = RunResult(
            run=number,
            script=candidate.digest,
            lines=run.kept if isinstance(run, OneShot) else [],
            exit=how,
            fault=verdict.fault,
            not_applicable=verdict.outcome is Outcome.DECLINED,
            started_at=run.started_at,
            duration=self._now() - run.started_at,
            stderr=run.stderr.text,
            notes=run.notes(left if how is not None else []) if left or not one_shot else [],
        )
        self._result, self._again = result, None
        if wanted and verdict.outcome is not Outcome.STOPPED:
            complaint = self._sink.run_finished(self._name, result)
            if complaint and verdict.outcome is Outcome.GOOD:
                verdict = Verdict(Outcome.NO_ANSWER, complaint)
        plain = verdict is GOOD and not run.stderr.ring and not result.notes
        self._usual = run.said if plain and isinstance(run, OneShot) else None
        return verdict

    def not_started(self, number: int, candidate: Candidate, fault: str) -> Verdict:
        """The verdict on a run that could not begin."""
        self._result = RunResult(run=number, script=candidate.digest, fault=fault, started_at=self._now())
        self._again = None
        self._sink.run_finished(self._name, self._result)
        return Verdict(Outcome.MISBEHAVED, fault)
