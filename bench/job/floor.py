"""The floor: a bare ZeroMQ ROUTER that decodes, finds what changed, merges, and sends one message of changes
per turn. None of a broker's duties: handshake, sequence, epoch, types, digest, access, credit, time to live.

    python -m bench.job.floor PORT     serves on loopback
"""

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import zmq

from bench.children import connects, free_port, python, started, wait_for
from bench.job import zmtp
from bench.job.hub import Follower, Hub, Mirror, Send, Server, Values, decode_report
from bench.job.shared import Job

CONTEXT: "zmq.Context[zmq.Socket[bytes]]" = zmq.Context.instance()
_WATCH, _SNAPSHOT = b"w", b"s"
_TURN = 512
_REST_S = 0.002
"""Between turns once nothing waits: at low rates wake-ups are the cost, not messages."""

_changes = msgspec.msgpack.Decoder(list[tuple[str, Values]]).decode
_hosts = msgspec.msgpack.Decoder(dict[str, Values]).decode


class Floor(Hub):
    """The same job with next to nothing around it."""

    name, transport = "bare ROUTER", "tcp"

    @contextmanager
    def serve(self, work: Path, job: Job) -> Iterator[Server]:
        """This module as a process."""
        port = free_port()
        with started(python("bench.job.floor", str(port)), work / "log") as child:
            wait_for(lambda: connects(("127.0.0.1", port)), child, "accepting")
            yield Server(child, str(port))

    def wrap(self, host: int, report: bytes) -> bytes:
        """One message of one frame."""
        return zmtp.framed(report)

    def connect(self, job: Job) -> list[Send]:
        """One DEALER per host, as far as the server can tell."""
        return [zmtp.Link(job.address).send for _ in range(job.hosts)]

    def follow(self, job: Job, mirror: Mirror) -> Follower:
        """Become the one watcher."""
        return _Follower(job, mirror)


class _Follower(Follower):
    def __init__(self, job: Job, mirror: Mirror) -> None:
        self.mirror = mirror
        self._stream, self._questions = dealer(job.address), dealer(job.address)
        self._stream.send(_WATCH)
        self._stream.recv()

    def pump(self) -> None:
        receive, change = self._stream.recv, self.mirror.change
        if self._stream.poll(200):
            try:
                for _ in range(_TURN):
                    for host, values in _changes(receive(zmq.NOBLOCK)):
                        change(host, values)
            except zmq.Again:
                pass

    def snapshot(self) -> object:
        self._questions.send(_SNAPSHOT)
        return _hosts(self._questions.recv())


def endpoint(address: str) -> str:
    """Of a unix socket path, or of a port on loopback."""
    return f"tcp://127.0.0.1:{address}" if address.isdigit() else f"ipc://{address}"


def dealer(address: str) -> "zmq.Socket[bytes]":
    """A client's socket, without bounds: the window of the job bounds it."""
    socket = CONTEXT.socket(zmq.DEALER)
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = 0
    socket.connect(endpoint(address))
    return socket


class _Server:
    def __init__(self, port: str) -> None:
        self._socket = CONTEXT.socket(zmq.ROUTER)
        self._socket.rcvhwm = self._socket.sndhwm = 0
        self._socket.backlog = 4096
        self._socket.bind(endpoint(port))
        self._hosts: dict[str, Values] = {}
        self._watcher = b""
        self._encode = msgspec.msgpack.Encoder().encode

    def run(self) -> None:
        gc.freeze()
        while True:
            self._socket.poll()
            changes, drained = self._turn()
            if changes and self._watcher:
                self._socket.send_multipart([self._watcher, self._encode(changes)])
            if drained:
                time.sleep(_REST_S)

    def _turn(self) -> tuple[list[tuple[str, Values]], bool]:
        """What changed in one turn, and whether nothing waits any more."""
        receive, more = self._socket.recv, self._socket.getsockopt
        changes: list[tuple[str, Values]] = []
        try:
            for _ in range(_TURN):
                peer = receive(zmq.NOBLOCK)
                data = receive(zmq.NOBLOCK)
                if more(zmq.RCVMORE):
                    raise ValueError("cannot take a message of more than one frame")
                if len(data) == 1:
                    self._serve(peer, data)
                    continue
                report = decode_report(data)
                held = self._hosts.get(report.host)
                if held is None:
                    held = self._hosts[report.host] = {}
                changed = {name: value for name, value in report.values.items() if held.get(name) != value}
                if changed:
                    held.update(changed)
                    changes.append((report.host, changed))
        except zmq.Again:
            return changes, True
        return changes, False

    def _serve(self, peer: bytes, data: bytes) -> None:
        if data == _WATCH:
            self._watcher = peer
            self._socket.send_multipart([peer, _WATCH])
        else:
            self._socket.send_multipart([peer, self._encode(self._hosts)])


if __name__ == "__main__":
    _Server(sys.argv[1]).run()
