"""NATS JetStream key-value in memory, over loopback TCP (the server has no unix socket)."""

import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.children import connects, free_port, started, wait_for
from bench.job.hub import Follower, Hub, Mirror, Send, Server, Values, decode_report
from bench.job.reports import host_name
from bench.job.shared import Job
from bench.job.sockets import PIECE, StreamFollower, connect, receive_until

_STREAM = "KV_xce"
_SUBJECTS = "$KV.xce.>"


class Nats(Hub):
    """A stream with one message per subject is the newest report; a subscription sees every one."""

    name, transport = "NATS KV", "tcp"

    def missing(self) -> str:
        """Whether it is installed."""
        return "" if shutil.which("nats-server") else "nats-server is not installed"

    @contextmanager
    def serve(self, work: Path, job: Job) -> Iterator[Server]:
        """JetStream, memory storage."""
        port = free_port()
        argv = ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(work)]
        with started(argv, work / "log") as child:
            wait_for(lambda: connects(("127.0.0.1", port)), child, "accepting")
            yield Server(child, str(port))

    def wrap(self, host: int, report: bytes) -> bytes:
        """One publication."""
        return b"PUB $KV.xce.%s %d\r\n%s\r\n" % (host_name(host).encode(), len(report), report)

    def connect(self, job: Job) -> list[Send]:
        """The publisher is never answered."""
        return [_session(job.address).sendall for _ in range(job.hosts)]

    def follow(self, job: Job, mirror: Mirror) -> Follower:
        """Make the bucket and subscribe."""
        return _Follower(job, mirror)


class _Follower(StreamFollower):
    def __init__(self, job: Job, mirror: Mirror) -> None:
        self._job = job
        connection = _session(job.address)
        bucket = {"name": _STREAM, "subjects": [_SUBJECTS], "max_msgs_per_subject": 1, "num_replicas": 1}
        _ask(connection, f"$JS.API.STREAM.CREATE.{_STREAM}", {**bucket, "storage": "memory"})
        connection.sendall(f"SUB {_SUBJECTS} 1\r\nPING\r\n".encode())
        receive_until(connection, lambda data: b"PONG\r\n" in data)
        super().__init__(connection, mirror)

    def parse(self, data: bytes) -> tuple[list[bytes], bytes]:
        return _messages(data, self.connection)

    def snapshot(self) -> object:
        with _session(self._job.address) as connection:
            inbox = f"_INBOX.s{time.monotonic_ns()}"
            connection.sendall(f"SUB {inbox} 9\r\n".encode())
            wanted = {
                "deliver_subject": inbox,
                "deliver_policy": "last_per_subject",
                "ack_policy": "none",
                "filter_subject": _SUBJECTS,
                "replay_policy": "instant",
                "mem_storage": True,
            }
            body = msgspec.json.encode({"stream_name": _STREAM, "config": wanted})
            subject = f"$JS.API.CONSUMER.CREATE.{_STREAM}".encode()
            connection.sendall(b"PUB %s _INBOX.r %d\r\n%s\r\n" % (subject, len(body), body))
            connection.settimeout(5)
            found: dict[str, Values] = {}
            rest = b""
            while len(found) < self._job.hosts:
                messages, rest = _messages(rest + connection.recv(PIECE), connection)
                for report in map(decode_report, messages):
                    found[report.host] = report.values
        return found


def _session(address: str) -> socket.socket:
    connection = connect(address)
    connection.recv(PIECE)  # INFO
    connection.sendall(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nPING\r\n')
    receive_until(connection, lambda data: b"PONG\r\n" in data)
    return connection


def _ask(connection: socket.socket, subject: str, body: object) -> None:
    """A call of the server's own interface; raises `ConnectionError` when it is refused."""
    data = msgspec.json.encode(body)
    question = b"SUB _INBOX.api 7\r\nPUB %s _INBOX.api %d\r\n%s\r\nUNSUB 7 1\r\n"
    connection.sendall(question % (subject.encode(), len(data), data))
    connection.settimeout(5)
    answer = receive_until(connection, lambda data: b"_INBOX.api" in data and data.count(b"\r\n") >= 2)
    if b'"error"' in answer:
        raise ConnectionError(f"NATS refused {subject}: {answer!r}")


def _messages(data: bytes, connection: socket.socket) -> tuple[list[bytes], bytes]:
    """Payloads of whole messages, and the rest; pings are answered."""
    found: list[bytes] = []
    place = 0
    while (end := data.find(b"\r\n", place)) >= 0:
        if data.startswith(b"MSG", place):
            size = int(data[data.rfind(b" ", place, end) + 1 : end])
            if len(data) < end + 4 + size:
                break
            payload = data[end + 2 : end + 2 + size]
            if payload[:1] != b"{":  # an answer of the server
                found.append(payload)
            place = end + 4 + size
        else:
            if data.startswith(b"PING", place):
                connection.sendall(b"PONG\r\n")
            place = end + 2
    return found, data[place:]
