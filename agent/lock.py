"""One agent per run directory: a locked file with the pid of who holds it.

The kernel lets the lock go with the process, so a file that was left behind never blocks a start. The
descriptor is close-on-exec: children do not keep the lock.
"""

import contextlib
import fcntl
import os


class AlreadyRunning(Exception):
    """Another process holds the lock; the message names its pid."""

    def __init__(self, path: str, pid: str) -> None:
        who = f"pid {pid}" if pid else "another process"
        super().__init__(f"cannot start: {who} is already running with {path}")
        self.path, self.pid = path, pid


class Lock:
    """Held from construction until `release` or the end of the process. Raises `AlreadyRunning`, OSError."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        # Whoever may read the file may lock it, and keep us from starting.
        os.fchmod(self._fd, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise AlreadyRunning(path, pid) from None
        os.ftruncate(self._fd, 0)
        with contextlib.suppress(OSError):  # a full disk: the pid is for words alone, the lock is held
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another start; may be called twice. The file stays: removing it would race with that start."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1
