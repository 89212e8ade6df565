"""The process of many watchers of our broker, who look at nothing: they count deltas and give credit.

    python -m bench.job.watchers PATH COUNT

Prints a line when all follow, and serves until it is ended.
"""

import sys

import zmq

from bench.children import say
from bench.job.floor import CONTEXT, dealer
from xce.model.message import Credit, SnapshotBegin, SnapshotRequest, WatchBegin, WatchRequest
from xce.wire import codec

_CREDIT = 64


class Watchers:
    """Each on a connection of its own."""

    def __init__(self, path: str, count: int) -> None:
        CONTEXT.max_sockets = count + 16
        self._poller = zmq.Poller()
        self._left: dict[zmq.Socket[bytes], int] = {}
        for _ in range(count):
            socket = dealer(path)
            socket.send(codec.encode(SnapshotRequest(id="s")))
            begin = codec.decode_from_broker(socket.recv())
            assert isinstance(begin, SnapshotBegin), begin
            for _ in range(begin.parts + 1):
                socket.recv()
            socket.send(codec.encode(WatchRequest(id="w", since=begin.position, credit=2 * _CREDIT)))
            answer = codec.decode_from_broker(socket.recv())
            assert isinstance(answer, WatchBegin), answer
            self._poller.register(socket, zmq.POLLIN)
            self._left[socket] = _CREDIT

    def run(self) -> None:
        """Count and give credit."""
        more = codec.encode(Credit(id="w", more=_CREDIT))
        while True:
            for socket, _ in self._poller.poll():
                self._take(socket, more)

    def _take(self, socket: "zmq.Socket[bytes]", more: bytes) -> None:
        try:
            while True:
                socket.recv(zmq.NOBLOCK, copy=False)
                self._left[socket] -= 1
                if not self._left[socket]:
                    self._left[socket] = _CREDIT
                    socket.send(more)
        except zmq.Again:
            pass


if __name__ == "__main__":
    watchers = Watchers(sys.argv[1], int(sys.argv[2]))
    say(following=True)
    watchers.run()
