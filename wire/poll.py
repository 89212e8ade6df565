"""Waiting for sockets of this room and for descriptors at the same time."""

from typing import TypeAlias

import zmq

Readable: TypeAlias = "zmq.Socket[bytes] | int"


class Poll:
    """A set of things to wait for."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()

    def add(self, readable: Readable) -> None:
        """Wait for this too."""
        self._poller.register(readable, zmq.POLLIN)

    def wait(self, timeout_ms: int) -> set[Readable]:
        """What became readable; empty after the timeout."""
        return {readable for readable, _ in self._poller.poll(timeout_ms)}
