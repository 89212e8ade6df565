"""Only one agent per run directory, and no file of a dead one is in the way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xce.agent.lock import CannotStart, Lock


def test_a_second_holder_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.pid")
    first = Lock(path)
    with pytest.raises(CannotStart, match=f"pid {os.getpid()} is already running"):
        Lock(path)
    first.release()
    first.release()
    Lock(path).release()


def test_the_file_of_a_killed_process_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "agent.pid"
    code = f"import os; from xce.agent.lock import Lock; Lock({str(path)!r}); os.kill(os.getpid(), 9)"
    ended = subprocess.run([sys.executable, "-c", code], check=False, timeout=20)
    assert ended.returncode == -9
    assert path.read_text().strip().isdigit()
    Lock(str(path)).release()


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "agent.pid").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match=r"agent\.pid"):
        Lock(str(tmp_path / "agent.pid"))
    assert (tmp_path / "victim").read_text() == "precious"


def test_nobody_else_can_lock_the_file_and_keep_the_agent_from_starting(tmp_path: Path) -> None:
    """flock(2) needs no more than the right to read."""
    path = tmp_path / "agent.pid"
    path.write_text("left by an older version\n")
    path.chmod(0o644)
    lock = Lock(str(path))
    try:
        assert path.stat().st_mode & 0o777 == 0o600
    finally:
        lock.release()
