"""etcd: put and watch, over gRPC on loopback TCP. Its few messages are written and read by hand here."""

import importlib.util
import shutil
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.children import connects, free_port, started, wait_for
from bench.job.hub import Follower, Hub, Mirror, Send, Server, decode_report
from bench.job.reports import host_name
from bench.job.shared import Job

_KV, _WATCH = "/etcdserverpb.KV/", "/etcdserverpb.Watch/Watch"
_FIRST, _LAST = b"xce/", b"xce0"
_OUTSTANDING = 128
_CONNECTIONS = 4


class Etcd(Hub):
    """A key per host."""

    name, transport = "etcd", "tcp"

    def __init__(self) -> None:
        self._outstanding: deque[Any] = deque()

    def missing(self) -> str:
        """Whether it and its transport are installed."""
        if not shutil.which("etcd"):
            return "etcd is not installed"
        return "" if importlib.util.find_spec("grpc") else "Python's grpcio is not installed"

    @contextmanager
    def serve(self, work: Path, job: Job) -> Iterator[Server]:
        """One member, as it is installed: every put is synced."""
        port, peers = free_port(), free_port()
        client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
        argv = ["etcd", "--data-dir", str(work / "data"), "--log-level", "error"]
        argv += ["--listen-client-urls", client, "--advertise-client-urls", client]
        argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        argv += ["--initial-cluster", f"default={peer}", "--quota-backend-bytes", str(4 << 30)]
        with started(argv, work / "log") as child:
            wait_for(lambda: connects(("127.0.0.1", port)), child, "accepting")
            yield Server(child, str(port))

    def wrap(self, host: int, report: bytes) -> bytes:
        """A PutRequest."""
        return _field(1, _key(host)) + _field(2, report)

    def connect(self, job: Job) -> list[Send]:
        """A few connections (gRPC multiplexes), and a bounded number of puts on their way."""
        puts = [_call(_channel(job.address), "Put") for _ in range(_CONNECTIONS)]

        def send(host: int, frame: bytes | bytearray) -> None:
            self._outstanding.append(puts[host % _CONNECTIONS].future(bytes(frame)))
            if len(self._outstanding) > _OUTSTANDING:
                self._outstanding.popleft().result()

        return [partial(send, host) for host in range(job.hosts)]

    def finish(self) -> str:
        """Wait for the last puts."""
        while self._outstanding:
            self._outstanding.popleft().result()
        return ""

    def follow(self, job: Job, mirror: Mirror) -> Follower:
        """Watch all keys."""
        return _Follower(job, mirror)


class _Follower(Follower):
    def __init__(self, job: Job, mirror: Mirror) -> None:
        self.mirror = mirror
        channel = _channel(job.address)
        self._range = _call(channel, "Range")
        watch = channel.stream_stream(_WATCH, request_serializer=_same, response_deserializer=_same)
        self._responses = watch(_one_request())
        next(self._responses)

    def pump(self) -> None:
        for event in _all(next(self._responses), 11):
            for pair in _all(event, 2):
                self.mirror.take(_all(pair, 5)[0])

    def snapshot(self) -> object:
        pairs = _all(self._range(_field(1, _FIRST) + _field(2, _LAST)), 2)
        return {report.host: report.values for pair in pairs for report in [decode_report(_all(pair, 5)[0])]}


def transaction(once: bytes, pairs: list[tuple[bytes, bytes]]) -> bytes:
    """A TxnRequest: put the pairs if the key `once` is not there yet."""
    absent = _field(3, once) + _varint(4 << 3) + b"\0"  # version 0, which has to be written
    puts = (_field(2, _field(2, _field(1, key) + _field(2, value))) for key, value in pairs)
    return _field(1, absent) + b"".join(puts)


TRANSACTION = _KV + "Txn"


def transactions(address: str) -> Any:
    """gRPC's call that carries out a transaction, over one connection."""
    return _call(_channel(address), "Txn")


def carried_out(answer: bytes) -> bool:
    """Whether a TxnResponse says that the key was not there."""
    return _varint(2 << 3) + b"\1" == answer[_after_field(answer) :][:2]


def _after_field(data: bytes) -> int:
    """Where the first field of `data` ends, which has a length."""
    _, place = _read(data, 0)
    size, place = _read(data, place)
    return place + size


def _key(host: int) -> bytes:
    return _FIRST + host_name(host).encode()


def _one_request() -> Iterator[bytes]:
    """The WatchRequest, and then nothing for ever: the stream ends when we say no more."""
    yield _field(1, _field(1, _FIRST) + _field(2, _LAST))
    threading.Event().wait()


def _channel(address: str) -> Any:
    grpc = importlib.import_module("grpc")
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    return grpc.insecure_channel(f"127.0.0.1:{address}", options=options)


def _call(channel: Any, name: str) -> Any:
    return channel.unary_unary(_KV + name, request_serializer=_same, response_deserializer=_same)


def _same(data: bytes) -> bytes:
    return data


# Protocol buffers' wire format: a key of field number and type, then a varint, or a length and so many bytes.


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _all(data: bytes, wanted: int) -> list[bytes]:
    """Every occurrence of a field that has a length."""
    found, place = [], 0
    while place < len(data):
        key, place = _read(data, place)
        size, place = _read(data, place)
        if key & 7 == 2:
            if key >> 3 == wanted:
                found.append(data[place : place + size])
            place += size
    return found


def _read(data: bytes, place: int) -> tuple[int, int]:
    number, shift = 0, 0
    while True:
        byte = data[place]
        number |= (byte & 127) << shift
        shift, place = shift + 7, place + 1
        if byte < 128:
            return number, place
