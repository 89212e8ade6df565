"""Small reads below a root: a folder is opened once, its files through its descriptor.

Absent things are None. So is what the kernel refuses by design (the speed of a link that is down: EINVAL).
Anything else that cannot be read, or does not parse, is noted once in `Tree.faults`, with its path. Opening
never waits: a pipe or a socket in a strange root reads as nothing.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from xce.agent.probe import facts
from xce.model.value import LARGEST_INTEGER
from xce.reporters.frame import escape

FAULTS = 64
"""As many are told one by one; the rest is a number."""
_FAULT = 400
"""Of one, in characters."""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_BYTES = 1 << 16
_ABSENT = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENODEV,
    errno.ENXIO,
    errno.EINVAL,
    errno.EOPNOTSUPP,
    errno.ENODATA,
    errno.ENOTCONN,
    errno.ENETDOWN,
    errno.EAGAIN,
}
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


class Tree:
    """The root, and what could not be read below it."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.functions: set[str] = set()
        """PCI functions that are there: a link to another one ends in nothing."""
        self._faults: list[str] = []
        self._more = 0

    @contextmanager
    def folder(self, path: str) -> Iterator["Folder | None"]:
        """The folder at `path`, relative to the root; None if there is none."""
        fd = self.open(f"{self.root}/{path}", path, None)
        if fd is None:
            yield None
            return
        try:
            yield Folder(self, path, fd)
        finally:
            os.close(fd)

    def open(self, name: str, path: str, base: int | None) -> int | None:
        """A folder's descriptor. `path` is what a fault names."""
        try:
            return os.open(name, _FLAGS | os.O_DIRECTORY, dir_fd=base)
        except OSError as error:
            self.failed(path, error)
            return None

    def failed(self, path: str, error: OSError) -> None:
        """Note what could not be read, unless that only says that it is not there."""
        if error.errno not in _ABSENT:
            self.fault(path, error.strerror or "cannot be read")

    def fault(self, path: str, problem: str) -> None:
        """Note one thing in words."""
        if len(self._faults) < FAULTS:
            self._faults.append(escape(f"{path}: {problem}", _FAULT))
        else:
            self._more += 1

    def faults(self) -> tuple[str, ...]:
        """All that was noted."""
        more = (f"and {self._more} more",) if self._more else ()
        return (*self._faults, *more)


class Folder:
    """One open folder. Names may hold slashes."""

    def __init__(self, tree: Tree, path: str, fd: int) -> None:
        self.tree = tree
        self.path = path
        self.fd = fd

    @contextmanager
    def folder(self, name: str) -> Iterator["Folder | None"]:
        """A folder below this one; None if there is none."""
        fd = self.tree.open(name, f"{self.path}/{name}", self.fd)
        if fd is None:
            yield None
            return
        try:
            yield Folder(self.tree, f"{self.path}/{name}", fd)
        finally:
            os.close(fd)

    def raw(self, name: str, *, refusable: bool = False) -> str | None:
        """All of a small file; None if it is not there, or may not be read now.

        `refusable`: the kernel lets only those read it who may use the device, so a refusal is no fault.
        """
        try:
            fd = os.open(name, _FLAGS, dir_fd=self.fd)
        except OSError as error:
            self._failed(name, error, refusable=refusable)
            return None
        try:
            return os.read(fd, _BYTES).decode("utf-8", "replace")
        except OSError as error:
            self._failed(name, error, refusable=refusable)
            return None
        finally:
            os.close(fd)

    def _failed(self, name: str, error: OSError, *, refusable: bool) -> None:
        if not (refusable and isinstance(error, PermissionError)):
            self.tree.failed(f"{self.path}/{name}", error)

    def text(self, name: str) -> str | None:
        """A file's line without its end; None if it is empty or not there."""
        raw = self.raw(name)
        return None if raw is None else escape(raw.strip(" \t\r\n\0"), _BYTES) or None

    def number(self, name: str, base: int = 10) -> int | None:
        """A file's number; None if it is unknown."""
        text = self.text(name)
        return None if text is None else self.parsed(name, text, base)

    def parsed(self, name: str, text: str, base: int = 10) -> int | None:
        """A number, or a fault. Negative is the kernel's way to say unknown."""
        try:
            number = int(text, base)
            if base == 10 and number > LARGEST_INTEGER:  # a mask of CPUs has any length
                raise ValueError
        except ValueError:
            self.tree.fault(f"{self.path}/{name}", f"not a number: {text[:40]!r}")
            return None
        return None if number < 0 else number

    def link(self, name: str) -> str | None:
        """Where a link points to, followed or not; None if it is no link."""
        try:
            return os.readlink(name, dir_fd=self.fd)
        except OSError as error:
            self.tree.failed(f"{self.path}/{name}", error)
            return None

    def target(self, name: str) -> str:
        """The last part of where a link points to, '' if it is none: the name of a driver, of a bond."""
        return escape((self.link(name) or "").rstrip("/").rpartition("/")[2])

    def names(self, name: str = "") -> list[str]:
        """What is in the folder, or one below it: by length, then by name (`card2` before `card10`)."""
        fd = self.fd if not name else self.tree.open(name, f"{self.path}/{name}", self.fd)
        if fd is None:
            return []
        try:
            return sorted(filter(self._readable, os.listdir(fd)), key=_in_order)
        except OSError as error:
            self.tree.failed(f"{self.path}/{name}", error)
            return []
        finally:
            if fd != self.fd:
                os.close(fd)

    def _readable(self, name: str) -> bool:
        """Whether a name can stand in an id and on a screen: the kernel lets an interface have any."""
        if not name.isprintable():
            self.tree.fault(f"{self.path}/{name}", "passed over: its name cannot be shown")
        return name.isprintable()

    def pairs(self, name: str, separator: str | None = None) -> dict[str, str]:
        """A file of `key value` lines: uevent (`=`), KFD properties (blank)."""
        found = {}
        for line in (self.raw(name) or "").splitlines():
            key, *value = line.split(separator, 1)[:2] if line.strip() else ("",)
            if key:
                found[key.strip()] = value[0].strip() if value else ""
        return found


def _in_order(name: str) -> tuple[int, str]:
    return len(name), name


def pci_path(link: str) -> tuple[list[str], str | None]:
    """The PCI functions on the way to a device, from its host bridge down, and that host bridge.

    A host bridge below another one (a volume management device) starts the way anew, as its numbers do.
    """
    functions: list[str] = []
    root = None
    for part in link.split("/"):
        if part.startswith("pci") and _HOST_BRIDGE.fullmatch(part):
            root, functions = part, []
        elif ":" in part and (address := facts.address(part)) is not None:
            functions.append(address)
    return functions, root


def pci_parent(folder: Folder, name: str) -> str | None:
    """The PCI function, of `Tree.functions`, that a device hangs on, however many levels above."""
    for link in (folder.link(name), folder.link(f"{name}/device")):
        functions, _ = pci_path(link or "")
        if functions and functions[-1] in folder.tree.functions:
            return functions[-1]
    return None
