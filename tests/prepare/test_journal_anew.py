"""C-STA-03: whoever is killed while a journal is replaced, at any step on disk, loses and revives nothing.

The points are those that a run passes in which nobody is killed: each file that it opens, links, renames or
removes.
"""

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.prepare.test_journal import file_of, stone
from xce.prepare import journalfile
from xce.prepare.journal import Journal, live
from xce.prepare.journalfile import STEPS, Key, salvage

POINTS = {"open", "os.link", "os.rename", "os.remove", "sqlite3.connect"}
OF_FILE: dict[Key, bytes] = {("order", "b1", 0): b"{}"}
OF_LOG: dict[Key, bytes] = {("tombstone", "b1", 0): b"{}"}
OF_NEW: dict[Key, bytes] = {("standing", "", 0): b"{}"}


def killed(act: Callable[[], object], point: int) -> bool:
    """Whether this was killed right before its `point`th step, in a process of its own; or ended before."""
    pid = os.fork()  # noqa: TID251 - starting an interpreter for each point would take minutes
    if pid == 0:
        passed = itertools.count()

        def die(event: str, _arguments: object) -> None:
            if event in POINTS and next(passed) == point:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(die)
            act()
            os._exit(0)
        finally:
            os._exit(3)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or status == 0, "it ends well, or where it was to die"
    return os.WIFSIGNALED(status)


def with_a_log(place: Path) -> str:
    """A file that says one thing, and a log that says another later, as a killed one leaves them."""
    place.mkdir()
    path = file_of(place)
    for rows in (dict.fromkeys(OF_FILE), OF_FILE, dict.fromkeys(OF_FILE) | OF_LOG):
        with contextlib.closing(journalfile.opened(str(path), STEPS)) as connection:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                for key, body in rows.items():
                    journalfile.write(connection, key, body)
            files = {name: name.read_bytes() for name in place.iterdir()}
    for name, data in files.items():
        name.write_bytes(data)
    assert salvage(str(path)) == OF_LOG
    return str(path)


def test_a_file_that_is_replaced_counts_with_its_log_until_the_new_one_does(tmp_path: Path) -> None:
    points: set[str] = set()
    for point in itertools.count():
        path = with_a_log(tmp_path / str(point))
        before = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in ("", "-wal")}

        def anew(path: str = path) -> None:
            journalfile.begin_anew(path, STEPS, OF_NEW, f"{path}.damaged-1")

        def again(path: str = path) -> None:
            journalfile.finish(path)

        if not killed(anew, point):
            assert point > 10
            assert points == {"old", "new"}
            return
        for later in itertools.count():
            if not killed(again, later):  # nor is anything lost if that is killed as well
                break
        found = salvage(path)
        assert found in (OF_LOG, OF_NEW), f"killed at {point}"
        points.add("old" if found == OF_LOG else "new")
        if found == OF_NEW:
            kept = {suffix: Path(f"{path}.damaged-1{suffix}").read_bytes() for suffix in before}
            assert kept == before


def test_who_looks_on_while_a_journal_is_replaced_sees_no_file_without_its_log(tmp_path: Path) -> None:
    for point in itertools.count():
        path = with_a_log(tmp_path / str(point))

        def anew(path: str = path) -> None:
            journalfile.begin_anew(path, STEPS, OF_NEW, f"{path}.damaged-1")

        died = killed(anew, point)
        assert live(os.path.dirname(path)) == [], "the one that the file alone would show has ended"
        if not died:
            return


@pytest.mark.parametrize("damage", ["a record", "all of it"])
def test_whoever_is_killed_while_a_damaged_journal_is_replaced_loses_nothing_of_it(
    tmp_path: Path, damage: str
) -> None:
    for point in itertools.count():
        place = tmp_path / str(point)
        journal = Journal(str(place))
        for number in range(40):
            journal.end(f"b{number}", stone(number))
        journal.close()
        data = file_of(place).read_bytes()
        file_of(place).write_bytes(data.replace(b"op-39", b"op-xx") if damage == "a record" else b"")
        died = killed(lambda place=place: Journal(str(place)), point)  # type: ignore[misc]
        again = Journal(str(place))
        assert again.standing.recovering, f"killed at {point}"
        assert (again.tombstone("b7") is not None) is (damage == "a record"), f"killed at {point}"
        again.close()
        if not died:
            assert point > 10
            return
