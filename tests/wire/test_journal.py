"""The journal as a place to write to: whoever does not read keeps nobody."""

import contextlib
import socket
from pathlib import Path

from xce.wire.journal import Sender


def test_lines_that_the_journal_does_not_take_are_lost_and_counted_and_nobody_waits(tmp_path: Path) -> None:
    path, written = str(tmp_path / "socket"), list[tuple[str, dict[str, str]]]()
    send = Sender(lambda text, **fields: written.append((text, fields)), "xce-agent", path)
    assert send("nobody is there", 5, {})
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others,
    ):
        journald.bind(path)
        assert send("one", 4, {"XCE_HOST": "node1", "XCE_BINDING": ""})
        others.connect(path)
        others.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while others.send(b"x"):
                pass
        for _ in range(3):
            assert send("lost", 4, {})
        journald.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while journald.recv(16):
                pass
        assert send("two", 4, {})
        assert send("three", 4, {})
    assert [text for text, _ in written] == [
        "nobody is there",
        "one",
        "two (3 lines before this one were lost: the journal took none)",
        "three",
    ]
    assert written[1][1] == {"PRIORITY": "4", "SYSLOG_IDENTIFIER": "xce-agent", "XCE_HOST": "node1"}
    assert send("it is gone", 4, {})
    assert written[-1][0] == "it is gone"
