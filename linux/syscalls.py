"""System calls that Python 3.11 lacks, through libc, a few lines each; nothing else lives here.

Constants keep the kernel's names. Every wrapper raises `OSError(errno, text, path)`.
"""

import ctypes
import fcntl
import os
import sys
from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_quick = ctypes.PyDLL(None)
"""libc for calls that never wait and whose errno nobody asks: no other thread runs meanwhile."""
_syscall, _waitid = _quick.syscall, _quick.waitid

CLOSE_RANGE_CLOEXEC = 1 << 2
"""linux/close_range.h; Linux 5.11."""
_CLOSE_RANGE = 436
"""Its number is the same on every architecture."""

PR_SET_DUMPABLE = 4
PR_SET_PDEATHSIG = 1
"""linux/prctl.h."""
MNT_DETACH, UMOUNT_NOFOLLOW = 0x2, 0x8
"""linux/fs.h."""

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE = 0x2, 0x4, 0x8
IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF, IN_MOVE_SELF = 0x400, 0x800
IN_Q_OVERFLOW = 0x4000
IN_ONLYDIR = 0x1000000
"""linux/inotify.h."""


def _checked(result: int, path: str | bytes | None = None) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return result


def call(number: int, *arguments: object, path: str | bytes | None = None) -> int:
    """System call `number`, for those that libc has no function for; arguments are ctypes values."""
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments), path)


def access(path: str, mode: int) -> None:
    """Ask whether we may open `path`: access(2). The kernel asks device filters as well. Raises OSError."""
    _checked(_libc.access(os.fsencode(path), ctypes.c_int(mode)), path)


def umount2(path: str, flags: int) -> None:
    """Take the topmost mount off `path`: umount2(2)."""
    _checked(_libc.umount2(os.fsencode(path), ctypes.c_int(flags)), path)


def leave_no_core() -> None:
    """What is in this process's memory goes to no disk, and to no other user: prctl(2), PR_SET_DUMPABLE."""
    _checked(_libc.prctl(ctypes.c_int(PR_SET_DUMPABLE), *[ctypes.c_ulong(0)] * 4))


def end_with_parent() -> None:
    """Let the kernel send us SIGKILL when the thread that started us ends: prctl(2), PR_SET_PDEATHSIG.

    Whoever calls it looks afterwards whether its parent is still there.
    """
    _checked(_libc.prctl(ctypes.c_int(PR_SET_PDEATHSIG), ctypes.c_ulong(9), *[ctypes.c_ulong(0)] * 3))


def close_on_exec_from(first: int) -> None:
    """Mark every open descriptor from `first` on as not for children: close_range(2).

    Falls back to /proc/self/fd on kernels before 5.11.
    """
    # Plain numbers, each a C int, since that is quickest before every start of a process; -1 is the last.
    if _syscall(_CLOSE_RANGE, first, -1, CLOSE_RANGE_CLOEXEC) == 0:
        return
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) >= first:
                os.set_inheritable(int(name), False)
        except OSError:
            continue  # the directory's own descriptor


def childless() -> bool:
    """Whether this process has no children, not even ended ones: waitid(2), but without an exception."""
    return bool(_waitid(os.P_ALL, 0, None, os.WEXITED | os.WNOHANG | os.WNOWAIT) < 0)


def sealed_file(name: str, content: bytes) -> int:
    """A read-only descriptor of a file in memory that nobody can change any more: memfd_create(2)."""
    writing = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(writing, view) :]
        os.fchmod(writing, 0o555)
        fcntl.fcntl(writing, fcntl.F_ADD_SEALS, _SEALS)
        # Anew: a file that is open for writing cannot be executed.
        return os.open(f"/proc/self/fd/{writing}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writing)


def signalfd(fd: int, numbers: Iterable[int]) -> int:
    """A non-blocking descriptor that tells of these signals, `fd` itself unless that is -1: signalfd(2)."""
    mask = sum(1 << (number - 1) for number in numbers)
    held = ctypes.create_string_buffer(mask.to_bytes(8, sys.byteorder), 128)  # sigset_t of libc
    return _checked(_libc.signalfd(fd, held, os.O_NONBLOCK | os.O_CLOEXEC))


def inotify_init() -> int:
    """A new non-blocking inotify descriptor: inotify_init1(2)."""
    return _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def inotify_add_watch(fd: int, path: str, mask: int) -> int:
    """The watch descriptor of `path`; the same one if its inode is watched already."""
    return _checked(_libc.inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(mask)), path)


def inotify_rm_watch(fd: int, watch: int) -> None:
    """Stop a watch."""
    _checked(_libc.inotify_rm_watch(fd, watch))
