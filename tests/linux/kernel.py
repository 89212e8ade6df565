"""A loop and its reaper, driven by tests until something is true; a test's own groups and devices."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from xce.linux import cgroup, mountapi
from xce.linux.loop import Loop
from xce.linux.reaper import Reaper


class Kernel:
    """A loop, its reaper, and the errors that callbacks raised."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.loop = Loop(on_error=lambda error, _: self.errors.append(error))
        self.reaper = Reaper(self.loop)

    def until(self, condition: Callable[[], object], within: float = 20.0) -> None:
        """Take turns until `condition()` is true; fails the test after `within` seconds."""
        deadline = time.monotonic() + within
        while not condition():
            assert time.monotonic() < deadline, f"it did not become true in time; errors: {self.errors}"
            self.loop.turn(0.02)

    def during(self, seconds: float) -> None:
        """Take turns for a while."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.loop.turn(left)


def make_kernel() -> Iterator[Kernel]:
    """Body of the fixture: fails the test if a callback raised something that it did not expect."""
    kernel = Kernel()
    yield kernel
    kernel.loop.close()
    assert kernel.errors == []


def make_group(tmp_path: Path) -> Iterator[cgroup.Cgroup]:
    """Body of the fixture: a fresh group below our own; killed and removed afterwards."""
    base = cgroup.own()
    if base is None or not base.writable():
        pytest.skip("needs a cgroup2 hierarchy that we may make groups in")
    group = base.child(f"xce-test-{os.getpid()}-{tmp_path.name}"[:200])
    group.create()
    yield group
    deadline = time.monotonic() + 10
    group.kill()
    while not group.remove() and time.monotonic() < deadline:
        group.kill()
        time.sleep(0.01)
    assert not group.exists()


def terminal() -> str:
    """A device file of this process alone, to stand in for a GPU: nothing else that runs has it open."""
    _master, slave = os.openpty()  # kept open: the file goes with it
    path = os.ttyname(slave)
    os.close(slave)
    return path


@contextlib.contextmanager
def in_place_of(path: str, file: Path) -> Iterator[None]:
    """A file of ours is read where the kernel has one of its own. This process has mounts of its own."""
    source, target = os.open(file, os.O_PATH), os.open(path, os.O_PATH)
    tree = mountapi.clone(source)
    mountapi.attach(tree, target)
    for fd in (source, target, tree):
        os.close(fd)
    try:
        yield
    finally:
        mountapi.unmount(path)
