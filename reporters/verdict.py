"""What a finished run means for its reporter. Pure.

What counts against a reporter is misbehaviour: it hung, flooded, crashed, left nothing to start, or
(persistent) ended at all. That is backed off and in the end quarantined. A one-shot run that ends in time
with a bad status has only said that it has no answer: it is asked again at its next turn, so that a value is
back as soon as it can be.
"""

from enum import StrEnum

import msgspec

from xce.linux.reaper import WELL, Exit
from xce.model.configuration import Mode
from xce.model.reporter import ReporterEvent
from xce.reporters import cage, contract
from xce.reporters.directory import Candidate
from xce.reporters.ending import Stuck
from xce.reporters.output import Tail


class Outcome(StrEnum):
    """How a run counts."""

    GOOD = "good"
    NO_ANSWER = "no-answer"
    """Failed in an orderly way."""
    MISBEHAVED = "misbehaved"
    DECLINED = "declined"
    """Exit status 78."""
    STOPPED = "stopped"
    """Ended by us through no fault of its own: reload, removal, the agent's stop."""


class Verdict(msgspec.Struct, frozen=True):
    """An outcome and, for the bad ones, the fault in words."""

    outcome: Outcome
    fault: str = ""


GOOD = Verdict(Outcome.GOOD)
FAILURES = {Outcome.NO_ANSWER, Outcome.MISBEHAVED}


def judge(
    candidate: Candidate,
    how: Exit | None,
    *,
    ended_for: str | None,
    stderr: Tail,
    unkillable: list[Stuck],
) -> Verdict:
    """The verdict on a run.

    `how` is None for one that cannot be killed (`unkillable`); `ended_for` why we ended it: None if we did
    not, '' if through no fault of its own.
    """
    if how == WELL and ended_for is None and candidate.settings.mode is Mode.ONE_SHOT:
        return GOOD  # mostly
    if ended_for == "" and how is not None:
        return Verdict(Outcome.STOPPED)
    if how is None:
        named = str(unkillable[0]) if unkillable else "a process"
        return Verdict(Outcome.MISBEHAVED, f"{ended_for or 'was to end'}, and {named} cannot be killed")
    if ended_for:
        return Verdict(Outcome.MISBEHAVED, ended_for)
    if how.status in _declining(candidate.settings.mode):
        return Verdict(Outcome.DECLINED)
    said = stderr.gist
    if problem := cage.start_problem(how.status, said, candidate):
        return Verdict(Outcome.MISBEHAVED, problem)
    fault = contract.fault_of(status=how.status, killed_by=how.signal, stderr=said)
    if candidate.settings.mode is not Mode.ONE_SHOT:
        mode = candidate.settings.mode.value
        ended = fault or f"ended ({how}); with 'mode: {mode}' it goes on until it is told to end"
        return Verdict(Outcome.MISBEHAVED, ended)
    if how.signal:
        return Verdict(Outcome.MISBEHAVED, fault)
    return Verdict(Outcome.NO_ANSWER if fault else Outcome.GOOD, fault)


def follows(verdict: Verdict, in_a_row: int, *, lived: bool, most: int) -> tuple[ReporterEvent, int, str]:
    """What a verdict does to its reporter, how many failures in a row it has then, and what it says.

    `lived`: the run went on for so long that the failures before it do not count. `most` are too many.
    """
    outcome, fault = verdict.outcome, verdict.fault
    if outcome is Outcome.DECLINED:
        return ReporterEvent.DECLINED, in_a_row, fault
    if outcome is Outcome.NO_ANSWER:
        return ReporterEvent.FAILED, 0, fault
    if outcome is not Outcome.MISBEHAVED:
        return ReporterEvent.SUCCEEDED, 0, fault
    in_a_row = 1 if lived else in_a_row + 1
    if in_a_row < most:
        return ReporterEvent.FAILED, in_a_row, fault
    return ReporterEvent.GAVE_UP, in_a_row, f"failed {in_a_row} times in a row: {fault}"


def _declining(mode: Mode) -> tuple[int, ...]:
    return (contract.NOT_APPLICABLE, cage.ELIM_ABORT) if mode is Mode.ELIM else (contract.NOT_APPLICABLE,)
