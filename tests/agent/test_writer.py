"""What the agent keeps is written by a thread: the loop waits for a disk only for a moment, and only once."""

import threading
import time
from pathlib import Path

from xce.agent import writer
from xce.agent.memory import Generation, Memory
from xce.agent.writer import Writer


def test_where_the_disk_is_well_what_was_given_is_written_when_the_call_returns(tmp_path: Path) -> None:
    one = Memory(str(tmp_path))
    for number in range(20):
        one.keep_generations({"r": Generation(number, "d")})
        assert Memory(str(tmp_path)).generations() == {"r": Generation(number, "d")}
    assert one.writer.close(5)


def test_a_disk_that_does_not_answer_keeps_the_loop_for_a_moment_once_and_gets_the_newest_later() -> None:
    answers, done, one = threading.Event(), list[str](), Writer()
    began = time.monotonic()
    one.do("a", lambda: answers.wait(20))
    for number in range(50):
        one.do("b", lambda number=number: done.append(f"b{number}"))  # type: ignore[misc]
        one.do("c", lambda number=number: done.append(f"c{number}"))  # type: ignore[misc]
    assert time.monotonic() - began < 10 * writer.WAIT_S
    assert done == []
    assert not one.close(0.01)
    answers.set()
    assert one.close(5)
    assert done == ["b49", "c49"]


def test_a_job_that_fails_by_a_bug_ends_no_other(tmp_path: Path) -> None:
    one = Writer()
    one.do("a", lambda: 1 / 0)
    one.do("b", lambda: (tmp_path / "b").write_text("b"))
    assert (tmp_path / "b").exists()
    assert "ZeroDivisionError" in one.trouble()
    assert one.close(5)
