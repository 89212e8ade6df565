"""A file system that never answers: what a dead file server looks like to its callers.

Speaks just enough of the FUSE protocol (linux/fuse.h) to be mounted. Every request is taken from the kernel
and left without an answer, so that its caller sleeps in state D and outlives SIGKILL, until `release`. Or,
with `after`, it answers that late: every name is a directory.
"""

import contextlib
import ctypes
import errno
import os
import select
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_libc = ctypes.CDLL(None, use_errno=True)
_LOOKUP, _GETATTR, _STATFS, _INIT, _OPENDIR = 1, 3, 17, 26, 27
_NOT_ASKED = {2, 36, 42}
"""FUSE_FORGET, FUSE_INTERRUPT, FUSE_BATCH_FORGET: nobody waits for an answer."""
_DIRECTORY = struct.pack("6Q10I", 7, 0, 0, 0, 0, 0, 0, 0, 0, 0o040755, 2, 0, 0, 0, 4096, 0)
"""fuse_attr"""
_MNT_DETACH = 2


@contextlib.contextmanager
def hanging(point: Path, at_most: float = 5.0) -> Iterator[None]:
    """A mount that hangs meanwhile; not for longer, so that who waits for it fails, and the tests go on."""
    mount = HangingMount(point)
    timer = threading.Timer(at_most, mount.release)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        mount.release()


class HangingMount:
    """Mounted at `point` from construction until `release`, which wakes everybody with an error."""

    def __init__(self, point: Path, *, after: float | None = None) -> None:
        self._after = after
        if os.geteuid() != 0:
            pytest.skip("needs root to mount")
        try:
            self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            pytest.skip(f"needs /dev/fuse: {error.strerror}")
        self.point = point
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if _libc.mount(b"hang", os.fsencode(point), b"fuse", 0, options):
            why = os.strerror(ctypes.get_errno())
            os.close(self._fd)
            pytest.skip(f"cannot mount: {why}")
        os.set_blocking(self._fd, False)
        self.asked = threading.Event()
        self._over = threading.Event()
        self._held: list[int] = []
        self._late: list[tuple[float, int, int]] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._over.is_set():
            try:
                request = os.read(self._fd, 1 << 17)
            except BlockingIOError:
                select.select([self._fd], [], [], 0.01 if self._after else 0.05)
                self._answer_late()
                continue
            except OSError:
                return  # unmounted
            _length, code, unique = struct.unpack_from("IIQ", request)
            if code == _INIT:
                answer = struct.pack("IIIIHHIIHH28x", 7, 19, 1 << 16, 0, 12, 9, 1 << 12, 1, 0, 0)
                os.write(self._fd, struct.pack("IiQ", 16 + len(answer), 0, unique) + answer)
            elif code not in _NOT_ASKED:
                self._held.append(unique)
                self._late.append((time.monotonic() + (self._after or 0), code, unique))
                self.asked.set()

    def _answer_late(self) -> None:
        """What has waited for its time."""
        while self._after is not None and self._late and self._late[0][0] <= time.monotonic():
            _, code, unique = self._late.pop(0)
            self._held.remove(unique)
            answer = {
                _LOOKUP: struct.pack("4Q2I", 7, 1, 0, 0, 0, 0) + _DIRECTORY,
                _GETATTR: struct.pack("Q2I", 0, 0, 0) + _DIRECTORY,
                _OPENDIR: bytes(16),
                _STATFS: bytes(80),
            }.get(code, b"")
            error = 0 if answer else -errno.ENOSYS
            with contextlib.suppress(FileNotFoundError):  # whoever asked was killed meanwhile
                os.write(self._fd, struct.pack("IiQ", 16 + len(answer), error, unique) + answer)

    def hang(self) -> None:
        """Answer nobody any more."""
        self._after = None

    def go_on(self) -> None:
        """Answer again, and whoever has waited first."""
        self._after = 0.01

    def release(self) -> None:
        """End it: everybody who waits gets an I/O error. May be called twice."""
        if self._fd < 0:
            return
        self._over.set()
        self._thread.join()
        for unique in self._held:
            with contextlib.suppress(OSError):  # its caller has gone meanwhile
                os.write(self._fd, struct.pack("IiQ", 16, -errno.EIO, unique))
        _libc.umount2(os.fsencode(self.point), _MNT_DETACH)
        os.close(self._fd)  # the kernel ends what is still to come
        self._fd = -1
