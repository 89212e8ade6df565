"""The audit log: one line for each call, whole, in order, and it says itself when lines are missing."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce.broker.audit import AuditLog
from xce.broker.background import Background
from xce.broker.core.effect import Audit
from xce.model.fact import Fact, HostAdmitted

WALL = 1_714_564_800.25


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background(say=lambda _: None)
    yield made
    assert made.close(10)


def settle(background: Background) -> None:
    done = threading.Event()
    assert background.submit("mark", done.set)
    assert done.wait(10)


def lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_bytes()
    assert text.endswith(b"\n")
    return [msgspec.json.decode(line) for line in text.splitlines()]


def log(path: Path, background: Background, **more: Any) -> AuditLog:
    return AuditLog(str(path), background, wall=lambda: WALL, **more)


def drain(audit: AuditLog, number: int) -> None:
    audit.record(
        Audit(who="alice", role="admin", operation="drain", target=f"host:n{number}", revision=number)
    )


def test_a_line_says_who_did_what_to_what_from_where_and_with_which_result(
    tmp_path: Path, background: Background
) -> None:
    audit = log(tmp_path / "audit", background)
    audit.record(
        Audit(
            who="alice",
            role="admin",
            operation="drain",
            target="host:node17",
            op_id="op-9",
            result="not-durable",
            revision=41,
            address="tcp://192.0.2.7",
        )
    )
    settle(background)
    assert lines(tmp_path / "audit") == [
        {
            "at": "2024-05-01T12:00:00.250Z",
            "who": "alice",
            "role": "admin",
            "operation": "drain",
            "target": "host:node17",
            "op_id": "op-9",
            "result": "not-durable",
            "revision": 41,
            "address": "tcp://192.0.2.7",
        }
    ]
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o640


@given(st.lists(st.text(max_size=40), max_size=5))
def test_no_text_can_forge_a_line(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("audit") / "log"
    background = Background(say=lambda _: None)
    audit = log(path, background)
    for text in ["first", *texts]:
        audit.record(Audit(who=text, role="admin", operation=text, target=text))
    assert background.close(10)
    assert path.read_bytes().count(b"\n") == len(texts) + 1
    assert [line["who"] for line in map(msgspec.json.decode, path.read_bytes().split(b"\n")[:-1])] == [
        "first",
        *texts,
    ]


def test_lines_keep_their_order_and_are_appended(tmp_path: Path, background: Background) -> None:
    for start in (0, 500):
        audit = log(tmp_path / "audit", background)
        for number in range(start, start + 500):
            drain(audit, number)
        settle(background)
    assert [line["revision"] for line in lines(tmp_path / "audit")] == list(range(1000))


def test_the_file_can_be_rotated_by_renaming_at_any_time(tmp_path: Path, background: Background) -> None:
    audit = log(tmp_path / "audit", background)
    drain(audit, 1)
    settle(background)
    (tmp_path / "audit").rename(tmp_path / "audit.1")
    drain(audit, 2)
    settle(background)
    assert [line["revision"] for line in lines(tmp_path / "audit.1")] == [1]
    assert [line["revision"] for line in lines(tmp_path / "audit")] == [2]


def test_lines_without_room_are_counted_and_the_log_says_so(tmp_path: Path, background: Background) -> None:
    hold = threading.Event()
    background.submit("slow disk", lambda: hold.wait(10))
    audit = log(tmp_path / "audit", background, room=5)
    for number in range(8):
        drain(audit, number)
    assert audit.dropped == 3
    hold.set()
    settle(background)
    drain(audit, 8)
    settle(background)
    written = lines(tmp_path / "audit")
    assert [line["revision"] for line in written] == [0, 1, 2, 3, 4, 0, 8]
    assert (written[5]["operation"], written[5]["result"]) == ("audit", "3 lines are missing before this one")


def test_what_could_not_be_written_is_written_later(tmp_path: Path, background: Background) -> None:
    path = tmp_path / "missing" / "audit"
    audit = log(path, background)
    for number in range(3):
        drain(audit, number)
        settle(background)
    assert background.faults().keys() == {"audit log"}
    path.parent.mkdir()
    audit.flush()
    settle(background)
    assert [line["revision"] for line in lines(path)] == [0, 1, 2]
    assert background.faults() == {}


def test_a_line_that_was_cut_short_is_finished_not_repeated(tmp_path: Path, background: Background) -> None:
    """A full disk takes a part of a write: here a pipe of one page that nobody reads, until somebody does."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    audit = log(path, background)
    blocking_open = os.open

    def open_nonblocking(name: Any, flags: int, *rest: Any) -> int:
        return blocking_open(name, flags | os.O_NONBLOCK, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", open_nonblocking)
        for number in range(900):
            drain(audit, number)
        got = b""
        for _ in range(100):
            settle(background)
            try:
                while piece := os.read(reader, 65536):
                    got += piece
            except BlockingIOError:
                pass
            audit.flush()
            if got.count(b"\n") >= 900:
                break
    os.close(reader)
    assert [msgspec.json.decode(line)["revision"] for line in got.splitlines()] == list(range(900))


def test_without_a_file_lines_go_to_standard_error() -> None:
    code = (
        "from xce.broker.audit import AuditLog; from xce.broker.background import Background\n"
        "from xce.broker.core.effect import Audit\n"
        "background = Background(say=print); audit = AuditLog('', background)\n"
        "audit.record(Audit(who='alice', role='admin', operation='undrain')); background.close(10)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=30)
    assert msgspec.json.decode(done.stderr)["operation"] == "undrain"


def test_what_a_refused_call_was_about_does_not_fill_the_disk(tmp_path: Path, background: Background) -> None:
    """Whoever has any key can send a megabyte and be refused, as often as he likes."""
    audit = log(tmp_path / "audit", background)
    audit.record(
        Audit(
            who="x", role="agent", operation="hold.add", target="host:n1: " + "x" * 1_000_000, result="role"
        )
    )
    audit.record(Audit(who="x", role="admin", operation="pool.set", op_id="y" * 1_000_000, result="invalid"))
    settle(background)
    first, second = lines(tmp_path / "audit")
    assert first["target"].startswith("host:n1: xxx")
    assert first["target"].endswith("x…")
    assert second["op_id"].endswith("y…")
    assert (tmp_path / "audit").stat().st_size < 10_000


def test_a_log_that_hangs_is_told_although_nothing_has_failed_and_is_whole_once_it_goes_on(
    tmp_path: Path,
) -> None:
    """Nobody was told for as long as its disk did not answer. A pipe that nobody reads stands for it."""
    path = tmp_path / "audit"
    os.mkfifo(path)
    background = Background(say=lambda _: None, stalled_s=0.1)
    audit = log(path, background)
    drain(audit, 1)
    time.sleep(0.2)
    assert background.faults() == {
        "audit log": "cannot write the audit log: its disk or file system does not answer (dmesg)"
    }
    drain(audit, 2)
    with path.open("rb") as reader:
        settle(background)
        assert background.faults() == {}
        audit.flush()
        settle(background)
        assert [b'"host:n1"' in line for line in reader.read1().splitlines()] == [True, False]
        assert background.close(10)


def fact(revision: int, op_id: str = "") -> Fact:
    by = "admin:alice" if op_id else ""
    change = HostAdmitted(host=f"n{revision}")
    return Fact(revision=revision, change=change, by=by, op_id=op_id, at="2024-05-01T11:59:59+00:00")


def made_up(path: Path) -> list[tuple[Any, ...]]:
    keys = ("at", "who", "role", "operation", "op_id", "revision")
    return [tuple(line[key] for key in keys) for line in lines(path) if line["result"] == "recovered"]


def test_lines_that_a_killed_broker_could_not_write_are_made_up_of_its_facts(
    tmp_path: Path, background: Background
) -> None:
    """They come a moment after the answer. One for each order, whatever else became durable meanwhile."""
    path, head = tmp_path / "audit", tmp_path / "audit.head"
    first = log(path, background, head=head)
    first.recover([fact(1, "old")])
    drain(first, 2)
    settle(background)
    facts = [fact(1, "old"), fact(2, "op-2"), fact(3), fact(4, "op-4"), fact(5, "op-4"), fact(6, "op-6")]
    log(path, background, head=head).recover(facts)
    settle(background)
    known = ("2024-05-01T11:59:59.000Z", "alice", "admin", "host.admitted")
    made = [(*known, "op-4", 5), (*known, "op-6", 6)]
    assert made_up(path) == made
    log(path, background, head=head).recover(facts)
    settle(background)
    assert made_up(path) == made


@pytest.mark.parametrize("head", [None, "", "rubbish"])
def test_where_it_is_not_known_which_lines_there_are_none_is_made_up(
    tmp_path: Path, background: Background, head: str | None
) -> None:
    """A new installation, or one of a version that did not write it down."""
    path = tmp_path / "audit.head"
    if head is not None:
        path.write_text(head)
    audit = log(tmp_path / "audit", background, head=path)
    audit.recover([fact(1, "op-1")])
    settle(background)
    log(tmp_path / "audit", background, head=path).recover([fact(1, "op-1"), fact(2, "op-2")])
    settle(background)
    assert [one[-1] for one in made_up(tmp_path / "audit")] == [2]


def test_an_older_store_that_was_put_back_does_not_hide_what_is_lost_later(
    tmp_path: Path, background: Background
) -> None:
    path, head = tmp_path / "audit", tmp_path / "audit.head"
    drain(log(path, background, head=head), 90)
    settle(background)
    log(path, background, head=head).recover([fact(1, "op-1")])
    settle(background)
    log(path, background, head=head).recover([fact(1, "op-1"), fact(2, "op-2")])
    settle(background)
    assert [one[-1] for one in made_up(path)] == [2]


def test_lines_that_are_made_up_are_no_more_than_there_is_room_for(
    tmp_path: Path, background: Background
) -> None:
    path, head = tmp_path / "audit", tmp_path / "audit.head"
    log(path, background, head=head).recover([fact(1, "op-1")])
    settle(background)
    facts = [fact(number, f"op-{number}") for number in range(1, 100)]
    log(path, background, head=head, room=10).recover(facts)
    settle(background)
    assert [one[-1] for one in made_up(path)] == list(range(2, 12))
    assert lines(path)[-1]["result"] == "88 lines are missing before this one"


def test_no_line_counts_as_written_while_the_disk_refuses_it(tmp_path: Path, background: Background) -> None:
    path, head = tmp_path / "audit", tmp_path / "audit.head"
    log(path, background, head=head).recover([fact(1, "op-1")])
    settle(background)
    drain(log(tmp_path, background, head=head), 2)  # a directory: nothing can be written there
    settle(background)
    log(path, background, head=head).recover([fact(1, "op-1"), fact(2, "op-2")])
    settle(background)
    assert [one[-1] for one in made_up(path)] == [2]
