"""What the service manager hears, without any library of its own."""

import contextlib
import socket
import sys
import time
from pathlib import Path

import pytest

from xce.wire.notify import notifier


@pytest.fixture
def manager() -> socket.socket:
    """A manager's socket that nobody has bound yet."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    found.settimeout(20)
    return found


@pytest.mark.parametrize("abstract", [False, True])
def test_a_manager_is_told_where_systemds_library_is_missing(
    manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, abstract: bool
) -> None:
    """A unit that never heard READY=1 could not be started at all."""
    monkeypatch.setitem(sys.modules, "systemd", None)
    name = f"{tmp_path}/notify"
    with manager:
        manager.bind("\0" + name if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name if abstract else name)
        tell = notifier()
        assert tell is not None
        tell("READY=1\nSTATUS=füllt sich")
        assert manager.recv(100).decode() == "READY=1\nSTATUS=füllt sich"


def test_without_a_manager_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert notifier() is None


def test_a_manager_that_is_gone_or_does_not_read_costs_nothing_but_a_moment(
    manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    tell = notifier()
    assert tell is not None
    tell("READY=1")
    with manager:
        manager.bind(str(tmp_path / "notify"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    other.sendto(b"x", str(tmp_path / "notify"))
        began = time.monotonic()
        tell("WATCHDOG=1")
        assert time.monotonic() - began < 20
