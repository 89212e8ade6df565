"""What follows a run: the state, the failures in a row, the words."""

from xce.model.reporter import ReporterEvent
from xce.reporters.verdict import GOOD, Outcome, Verdict, follows

HUNG = Verdict(Outcome.MISBEHAVED, "it hung")


def test_a_run_that_misbehaves_is_tried_again_until_it_was_too_often() -> None:
    assert follows(HUNG, 0, lived=False, most=3) == (ReporterEvent.FAILED, 1, "it hung")
    assert follows(HUNG, 1, lived=False, most=3) == (ReporterEvent.FAILED, 2, "it hung")
    told = (ReporterEvent.GAVE_UP, 3, "failed 3 times in a row: it hung")
    assert follows(HUNG, 2, lived=False, most=3) == told


def test_failures_before_a_run_that_went_on_for_long_do_not_count() -> None:
    assert follows(HUNG, 2, lived=True, most=3) == (ReporterEvent.FAILED, 1, "it hung")
    assert follows(HUNG, 2, lived=True, most=1)[0] is ReporterEvent.GAVE_UP


def test_an_answer_and_an_orderly_no_end_a_row_of_failures_and_a_reporter_that_declines_does_not() -> None:
    assert follows(GOOD, 2, lived=False, most=3) == (ReporterEvent.SUCCEEDED, 0, "")
    assert follows(Verdict(Outcome.STOPPED), 2, lived=False, most=3) == (ReporterEvent.SUCCEEDED, 0, "")
    no = Verdict(Outcome.NO_ANSWER, "exit status 1")
    assert follows(no, 2, lived=False, most=3) == (ReporterEvent.FAILED, 0, "exit status 1")
    assert follows(Verdict(Outcome.DECLINED), 2, lived=False, most=3) == (ReporterEvent.DECLINED, 2, "")
