"""One agent for a run directory and a state directory: each has a locked file with the pid of who holds it.

The kernel lets the lock go with the process, so a file that was left behind never blocks a start. The
descriptor is close-on-exec: children do not keep the lock.
"""

import contextlib
import errno
import fcntl
import os


class CannotStart(Exception):
    """The process ends before it began; the message is for whoever started it."""


class Lock:
    """Held from construction until `release` or the end of the process. Raises `CannotStart`, OSError."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = _opened(path)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            os.close(self._fd)
            who = f"pid {pid}" if pid else "another process"
            raise CannotStart(f"cannot start: {who} is already running with {path}") from None
        with contextlib.suppress(OSError):  # a full disk: the pid is for words alone, the lock is held
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another start; may be called twice. The file stays: removing it would race with that start."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


def _opened(path: str) -> int:
    """Where nothing can be written any more a file that is there is enough for a lock."""
    how = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | how, 0o600)
        # Whoever may read the file may lock it, and keep us from starting.
        os.fchmod(fd, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return os.open(path, os.O_RDONLY | how)
    return fd


def take(run_directory: str, state_directory: str) -> list[Lock]:
    """Make the directories, and hold the lock of each. `state_directory`: '' if nothing may be kept there.

    Raises `CannotStart`.
    """
    state = state_directory or f"{run_directory}/state"
    try:
        os.makedirs(run_directory, mode=0o755, exist_ok=True)
        os.makedirs(state, mode=0o755, exist_ok=True)
        return [Lock(f"{directory}/agent.pid") for directory in (run_directory, state)]
    except OSError as error:
        hint = "it needs root, or directories of its own (run_directory, state_directory)"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            hint = "make room there, then start it again"
        elif error.errno in {errno.EROFS, errno.EIO}:
            hint = "the kernel's log says why; mend its disk, then start it again"
        raise CannotStart(f"cannot use {error.filename}: {error.strerror}; {hint}") from error
