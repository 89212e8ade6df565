"""mosquitto: retained messages (MQTT 3.1.1) over loopback TCP; what a relay in C reaches."""

import shutil
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.children import connects, free_port, started, wait_for
from bench.job.hub import Follower, Hub, Mirror, Send, Server, Values, decode_report
from bench.job.reports import host_name
from bench.job.shared import Job
from bench.job.sockets import PIECE, StreamFollower, connect

_PUBLISH = 3


class Mosquitto(Hub):
    """The retained message of a topic is the newest report."""

    name, transport = "mosquitto", "tcp"

    def missing(self) -> str:
        """Whether it is installed."""
        return "" if shutil.which("mosquitto") else "mosquitto is not installed"

    @contextmanager
    def serve(self, work: Path, job: Job) -> Iterator[Server]:
        """Unbounded queues, nothing on disk."""
        port, configuration = free_port(), work / "mosquitto.conf"
        configuration.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n"
            f"max_queued_messages 0\nlog_type error\nuser root\n"
        )
        with started(["mosquitto", "-c", str(configuration)], work / "log") as child:
            wait_for(lambda: connects(("127.0.0.1", port)), child, "accepting")
            yield Server(child, str(port))

    def wrap(self, host: int, report: bytes) -> bytes:
        """QoS 0, retained."""
        topic = f"xce/{host_name(host)}".encode()
        body = struct.pack(">H", len(topic)) + topic + report
        return b"\x31" + _length(len(body)) + body

    def connect(self, job: Job) -> list[Send]:
        """The publisher is never answered."""
        return [_session(job.address, b"p%05d" % host).sendall for host in range(job.hosts)]

    def follow(self, job: Job, mirror: Mirror) -> Follower:
        """Subscribe."""
        return _Follower(job, mirror)


class _Follower(StreamFollower):
    def __init__(self, job: Job, mirror: Mirror) -> None:
        self._job = job
        connection = _subscription(job.address, b"consumer")
        time.sleep(0.2)
        super().__init__(connection, mirror)

    def parse(self, data: bytes) -> tuple[list[bytes], bytes]:
        return _messages(data)

    def snapshot(self) -> object:
        found: dict[str, Values] = {}
        rest = b""
        with _subscription(self._job.address, b"snapshot") as connection:
            while len(found) < self._job.hosts:
                messages, rest = _messages(rest + connection.recv(PIECE))
                for report in map(decode_report, messages):
                    found[report.host] = report.values
        return found


def _session(address: str, name: bytes) -> socket.socket:
    connection = connect(address)
    body = b"\x00\x04MQTT\x04\x02\x00\x00" + struct.pack(">H", len(name)) + name
    connection.sendall(b"\x10" + _length(len(body)) + body)
    if connection.recv(4)[:1] != b"\x20":
        raise ConnectionError("mosquitto refused the connection")
    return connection


def _subscription(address: str, name: bytes) -> socket.socket:
    connection = _session(address, name)
    body = b"\x00\x01\x00\x05xce/#\x00"
    connection.sendall(b"\x82" + _length(len(body)) + body)
    return connection


def _length(size: int) -> bytes:
    """A remaining length (section 2.2.3)."""
    digits = bytearray()
    while True:
        size, digit = divmod(size, 128)
        digits.append(digit | (128 if size else 0))
        if not size:
            return bytes(digits)


def _messages(data: bytes) -> tuple[list[bytes], bytes]:
    """Payloads of whole PUBLISH packets, and the rest."""
    found: list[bytes] = []
    place, end = 0, len(data)
    while place + 2 <= end:
        size, shift, body = 0, 0, place + 1
        while body < end:
            byte = data[body]
            size |= (byte & 127) << shift
            shift, body = shift + 7, body + 1
            if byte < 128:
                break
        else:
            break
        if body + size > end:
            break
        if data[place] >> 4 == _PUBLISH:
            topic = data[body] << 8 | data[body + 1]
            found.append(data[body + 2 + topic : body + size])
        place = body + size
    return found, data[place:]
