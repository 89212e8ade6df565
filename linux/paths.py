"""Files and directories by their path: opened where the whole path may be trusted, made, made durable.

Trusted means that nobody but the trusted users could have put it there. Every element from `/` on is opened
by itself, beneath the one before, without following links, and its owner and mode are read from the
descriptor, so that nothing can be swapped between check and use. Works on any kernel: with one element at a
time there is nothing left that openat2(2) would add.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Collection


class NotTrustedError(OSError):
    """A path element that others could change: it is named, with the rule that it breaks."""


def open_checked(path: str, trusted: Collection[int], flags: int = os.O_RDONLY) -> int:
    """A descriptor of `path`, whose elements are all owned by a uid in `trusted` and writable by it alone.

    A directory with the sticky bit may be writable by all, since the next element is checked for its owner
    and nobody else can replace it. `path` is absolute. Raises `NotTrustedError` (a link counts as not
    trusted), or another OSError that names the element (ENOENT, EACCES, ...).
    """
    with Walk(trusted) as walk:
        return walk.open(path, flags)


class Walk:
    """`open_checked` for files one after the other; the way to those of one directory is walked once."""

    def __init__(self, trusted: Collection[int]) -> None:
        self._trusted = trusted
        self._folder: list[str] | None = None
        self._at = -1
        """Descriptor of `_folder`."""

    def __enter__(self) -> "Walk":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        """See `open_checked`."""
        *folder, name = elements = _split(path)
        if folder != self._folder:
            self.close()
            self._at, self._folder = self._way(folder), folder
        # O_NONBLOCK: opening a FIFO must not wait for its other end.
        return self._open(self._at, name, "/" + "/".join(elements), flags | os.O_NONBLOCK)

    def close(self) -> None:
        """Let go of the directory; may be called twice."""
        if self._folder is not None:
            os.close(self._at)
            self._folder = None

    def _way(self, folder: list[str]) -> int:
        at = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _check("/", os.fstat(at), self._trusted)
            for number, name in enumerate(folder, start=1):
                here = "/" + "/".join(folder[:number])
                following = self._open(at, name, here, os.O_PATH | os.O_DIRECTORY)
                os.close(at)
                at = following
        except BaseException:
            os.close(at)
            raise
        return at

    def _open(self, at: int, name: str, here: str, flags: int) -> int:
        try:
            fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        except OSError as error:
            if _is_link(at, name):
                raise NotTrustedError(f"{here} is a symbolic link") from None
            error.filename = here
            raise
        try:
            _check(here, os.fstat(fd), self._trusted)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _split(path: str) -> list[str]:
    elements = [element for element in path.split("/") if element not in ("", ".")]
    if not path.startswith("/") or ".." in elements or not elements:
        raise NotTrustedError(f"{path} is not an absolute path without '..'")
    return elements


def _is_link(at: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _check(here: str, found: os.stat_result, trusted: Collection[int]) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise NotTrustedError(f"{here} is a symbolic link")
    if found.st_uid not in trusted:
        allowed = " or ".join(str(uid) for uid in sorted(trusted))
        raise NotTrustedError(f"{here} is owned by uid {found.st_uid}, not by {allowed}: chown it")
    # Access control lists show in the group bits, which are their mask.
    writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if writable and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        who = "everybody" if writable & stat.S_IWOTH else "its group"
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        raise NotTrustedError(f"{here} is writable by {who} (mode {mode}): chmod go-w it")


def written_by_others(path: str) -> str:
    """Who but root and we may write in a directory, in words; '' for nobody, or when it cannot be told."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    if found.st_uid not in {0, os.geteuid()}:
        return f"belongs to uid {found.st_uid}"
    return "can be written by others" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def private(path: str, flags: int) -> int:
    """For `open` as its `opener`: what is made is ours alone, and no link is followed."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def sync_directory(path: str) -> None:
    """Make what was renamed, made or removed in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_directory_of(path: str, uid: int, gid: int, mode: int) -> bool:
    """Whether it is there as `make_directory` would make it; only a look, which a frozen disk answers."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    held = found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)
    return stat.S_ISDIR(found.st_mode) and held == (uid, gid, mode)


def make_directory(path: str, uid: int, gid: int, mode: int) -> None:
    """A directory of its own for somebody, below a parent that we trust; there already is good, too.

    Its owner and mode are set through a descriptor, so that nothing can be put in its place meanwhile; what
    is in it is left alone. Raises OSError; a link or file in its place is an error. One that is as it should
    be is only looked at: whoever asks for more waits on a file system that is frozen.
    """
    if not os.path.lexists(path):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    if os.path.islink(path):  # O_NOFOLLOW, which would say that it is no directory, is what holds
        raise OSError(errno.ELOOP, "is a symbolic link: remove it", path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if (found.st_uid, found.st_gid) != (uid, gid):
            os.fchown(fd, uid, gid)
        if stat.S_IMODE(found.st_mode) != mode:
            os.fchmod(fd, mode)
    finally:
        os.close(fd)
