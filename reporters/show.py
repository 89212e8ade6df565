"""A reporter as others see it: the message for the broker, and the whole story for `status` and `explain`."""

from typing import TYPE_CHECKING

from xce.model import message
from xce.model.reporter import ReporterState
from xce.reporters import cage
from xce.reporters.frame import escape
from xce.reporters.result import View

if TYPE_CHECKING:
    from xce.reporters.reporter import Reporter

SLOWED = "prints more than a reporter may and has to wait: its values are late"
PATH = 1024
"""Characters of a path; the name of a file need not be UTF-8, but what is sent must."""


def state(reporter: "Reporter") -> ReporterState:
    """While a one-shot run goes on, that of the run before."""
    passing = reporter.state in (ReporterState.RUNNING, ReporterState.STOPPING)
    within = passing and reporter.run is not None and not reporter.streaming
    return reporter.resting if within else reporter.state


def note(reporter: "Reporter") -> str:
    """What people should know about it although it may be good; '' if nothing."""
    expected = reporter.expected
    left_out = len(expected) - len(cage.fitting(expected))
    words = f"{left_out} of {len(expected)} expected names do not fit into XCE_EXPECT" if left_out else ""
    late = SLOWED if reporter.run is not None and reporter.run.slowed else ""
    return "; ".join(part for part in (reporter.candidate.warning, reporter.person.note, words, late) if part)


def seen(reporter: "Reporter") -> tuple[object, ...]:
    """By this `told` differs from before, but for counts of single runs."""
    return (
        state(reporter),
        reporter.held_back,
        reporter.cause,
        reporter.candidate.digest,
        reporter.candidate.warning,
        reporter.person,
        reporter.timing,
        reporter.failures,
        reporter.late,
        len(reporter.unkillable),
        reporter.run is not None and reporter.run.slowed,
    )


def overruns(reporter: "Reporter", now: float) -> int:
    """Turns that were missed because a run was still going on, the present one's included."""
    if reporter.run is None or reporter.streaming:
        return reporter.late
    return reporter.late + reporter.timing.missed(reporter.run.started_at, now)


def told(reporter: "Reporter", now: float) -> message.ReporterState:
    """What everybody may know. `refused` and `conditions` are not known here."""
    candidate, timing = reporter.candidate, reporter.timing
    return message.ReporterState(
        state=state(reporter).value,
        cause=reporter.held_back or reporter.cause,
        note=note(reporter),
        path=escape(candidate.path, PATH),
        script=candidate.digest[:16],
        mode=candidate.settings.mode.value,
        interval_ms=round(timing.interval * 1000),
        ttl_ms=round(timing.ttl * 1000),
        runs=reporter.runs,
        failures=reporter.failures,
        overruns=overruns(reporter, now),
        abandoned=len(reporter.unkillable),
    )


def view(reporter: "Reporter", now: float) -> View:
    """The rest, as it is at `now` of the loop's clock."""
    result, run = reporter.result, reporter.run
    return View(
        state=reporter.state.value,
        warning=reporter.candidate.warning,
        user="" if reporter.state is ReporterState.REFUSED else reporter.user,
        pid=run.child.pid if run and run.child.alive else None,
        running_for=now - run.started_at if run else None,
        next_run_in=max(0.0, reporter.due - now) if reporter.planned else None,
        last_run_ago=now - result.started_at if result else None,
        last_duration=result.duration if result else None,
        last_script=result.script if result and not (run and reporter.streaming) else "",
        last_exit=str(result.exit) if result and result.exit else "",
        stderr=result.stderr if result else "",
        unkillable=reporter.unkillable,
        unkillable_for=now - reporter.unkillable_since if reporter.unkillable else None,
    )
