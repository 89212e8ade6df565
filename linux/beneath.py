"""Working below a directory that we hold, whatever others do to the names in it: descriptors all the way.

Nothing here follows a link, leaves the tree or crosses into another mount. `remove_tree` deletes what users
made: links as links, mount points not at all, and what it cannot remove it names. Requires openat2(2),
Linux 5.6.
"""

import contextlib
import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable
from typing import NamedTuple

from xce.linux import mountapi, syscalls

_OPENAT2 = 437
RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x01, 0x02, 0x04, 0x08
"""linux/openat2.h."""
_STRICT = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
DEPTH = 64
"""Directories held open while a tree is removed; what lies deeper is moved up first."""
REFUSED = 2
"""Levels below a tree's top on which directories may have to stay."""
LEFT = 32
"""Leftovers that are named; more are only counted."""
NOT_FINISHED = "not finished yet"
"""Of a tree that had more entries than were looked at: it goes on at once."""


class Left(NamedTuple):
    """What `remove_tree` could not remove: the path below the tree, as text for a person, and why."""

    path: str
    why: str


def open_beneath(root: int, path: str, flags: int = os.O_PATH, *, cross: bool = True) -> int:
    """A descriptor of `path` below `root`, without any link on the way; `cross`: mounts on the way are fine.

    Raises OSError: ELOOP for a link, EXDEV for a way out of the root (or into another mount), EINVAL for a
    path that is not plain, even if its `..` would stay inside.
    """
    if not path or path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")):
        raise OSError(errno.EINVAL, "not a plain relative path", path)
    resolve = _STRICT | (0 if cross else RESOLVE_NO_XDEV)
    how = ctypes.create_string_buffer(struct.pack("<QQQ", flags | os.O_CLOEXEC, 0, resolve), 24)
    return syscalls.call(
        _OPENAT2,
        ctypes.c_int(root),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.byref(how),
        ctypes.c_size_t(24),
        path=path,
    )


def open_root(path: str) -> int:
    """A descriptor of a directory by its own path, which is the admin's; its last element is no link."""
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def make_directory(parent: int, name: str, mode: int = 0o755) -> int:
    """A directory `name` in `parent`, made unless it is there; its descriptor. Owner and mode as found."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=parent)
    how = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, how, dir_fd=parent)


def remove_tree(
    parent: int, name: str, *, budget: int = 1_000_000, refuse: Callable[[int], str] = lambda _: ""
) -> list[Left]:
    """Remove the directory `name` of `parent` and all in it; what is left of it, [] if nothing is.

    `refuse` says of a directory why that has to stay, at most `REFUSED` below it; '' if it need not. At most
    `budget` entries are looked at in one call; then the rest is left, to be removed by the next.
    """
    remover = _Remover(parent, os.fsencode(name), budget, refuse)
    try:
        remover.run()
    finally:
        remover.close()
    return remover.left


class _Open(NamedTuple):
    """A directory being emptied: its descriptor, its name in the one above, and what is still to be seen."""

    fd: int
    name: bytes
    entries: list[bytes]


class _Remover:
    """Depth first, without recursion. The mount of the top directory is the only one that is touched."""

    def __init__(self, parent: int, name: bytes, budget: int, refuse: Callable[[int], str]) -> None:
        self.parent, self.name, self.budget, self.refuse = parent, name, budget, refuse
        self.left: list[Left] = []
        self.stack: list[_Open] = []
        self.moved = 0
        self.mount = -1

    def close(self) -> None:
        for directory in self.stack:
            os.close(directory.fd)
        self.stack.clear()

    def run(self) -> None:
        try:
            place = mountapi.place_at(self.parent, self.name)
        except FileNotFoundError:
            return
        if place.root:
            self._leave(self.name, "a file system is mounted on it")
            return
        self.mount = place.mount
        if not self._enter(self.parent, self.name):
            return
        while self.stack:
            directory = self.stack[-1]
            if directory.entries and self.budget > 0:
                self.budget -= 1
                self._entry(directory.fd, directory.entries.pop())
            elif self.budget <= 0:
                self._leave(b"", NOT_FINISHED)
                return
            else:
                self._leave_directory()

    def _leave_directory(self) -> None:
        directory = self.stack[-1]
        if not self.left and (late := os.listdir(directory.fd)):
            directory.entries.extend(os.fsencode(name) for name in late)  # made meanwhile
            return
        os.close(self.stack.pop().fd)
        above = self.stack[-1].fd if self.stack else self.parent
        self._try_rmdir(above, directory.name)

    def _entry(self, above: int, name: bytes) -> None:
        try:
            os.unlink(name, dir_fd=above)
        except FileNotFoundError:
            return
        except OSError as error:
            # EISDIR; POSIX and some file systems say EPERM. A bind mount on a file says EBUSY.
            if error.errno in (errno.EISDIR, errno.EPERM) and _is_directory(above, name):
                self._directory(above, name)
            else:
                self._leave(name, _words(error))

    def _directory(self, above: int, name: bytes) -> None:
        if len(self.stack) >= DEPTH:
            self.moved += 1
            up = b".xce-removed-%d-%d" % (os.getpid(), self.moved)
            try:
                os.rename(name, up, src_dir_fd=above, dst_dir_fd=self.stack[0].fd)
            except FileNotFoundError:
                return
            except OSError as error:
                self._leave(name, _words(error))
                return
            self.stack[0].entries.append(up)
            return
        self._enter(above, name)

    def _enter(self, above: int, name: bytes) -> bool:
        how = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(name, how, dir_fd=above)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and self.stack:
                self.stack[-1].entries.append(name)  # swapped just now: once more, as what it is by now
                return False
            self._leave(name, _words(error))
            return False
        if mountapi.place(fd).mount != self.mount:
            os.close(fd)
            self._leave(name, "a file system is mounted on it")
            return False
        if 0 < len(self.stack) <= REFUSED and (why := self.refuse(fd)):
            os.close(fd)
            self._leave(name, why)
            return False
        self.stack.append(_Open(fd, name, [os.fsencode(entry) for entry in os.listdir(fd)]))
        return True

    def _try_rmdir(self, above: int, name: bytes) -> None:
        try:
            os.rmdir(name, dir_fd=above)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno == errno.ENOTDIR and self.stack:
                self.stack[-1].entries.append(name)
            elif error.errno != errno.ENOTEMPTY:
                self._leave(name, _words(error))
            elif not self.left:
                self._leave(name, "somebody still writes to it")

    def _leave(self, name: bytes, why: str) -> None:
        parts = [directory.name for directory in self.stack] + ([name] if name else [])
        if len(self.left) < LEFT:
            self.left.append(Left(b"/".join(parts).decode(errors="backslashreplace"), why))


def _words(error: OSError) -> str:
    return error.strerror or str(error)


def _is_directory(above: int, name: bytes) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    except OSError:
        return False
