"""This process with few descriptors, and as before once it is over, whatever happens."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def allowed(count: int) -> Iterator[None]:
    """At most so many, for us and for whoever is started meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def hoarded() -> Iterator[list[int]]:
    """All that are still to be had; those that are left in the list are given back."""
    held: list[int] = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.open("/", os.O_PATH))
        yield held
    finally:
        for fd in held:
            os.close(fd)
