"""redis: SET or HSET for the newest report, PUBLISH for the stream, over loopback TCP (RESP 2)."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import msgspec

from bench.children import connects, free_port, started, wait_for
from bench.job.hub import Follower, Hub, Mirror, Send, Server, decode_report
from bench.job.reports import host_name
from bench.job.shared import Job
from bench.job.sockets import PIECE, StreamFollower, connect

_REPLIES = 4096
_MINUS = 0x2D


class Redis(Hub):
    """The newest report as one string, as who only passes it on would keep it."""

    name, transport = "redis SET", "tcp"

    def missing(self) -> str:
        """Whether it is installed."""
        return "" if shutil.which("redis-server") else "redis-server is not installed"

    @contextmanager
    def serve(self, work: Path, job: Job) -> Iterator[Server]:
        """Memory only."""
        port = free_port()
        argv = [
            "redis-server",
            "--bind",
            "127.0.0.1",
            "--port",
            str(port),
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        with started([*argv, "--dir", str(work), "--maxclients", "5000"], work / "log") as child:
            wait_for(lambda: connects(("127.0.0.1", port)), child, "accepting")
            yield Server(child, str(port))

    def wrap(self, host: int, report: bytes) -> bytes:
        """Two commands in one write."""
        return command("SET", host_name(host), report) + command("PUBLISH", "d", report)

    def connect(self, job: Job) -> list[Send]:
        """Replies are read before the next send, when they are long there."""
        return [_pipelined(job.address) for _ in range(job.hosts)]

    def follow(self, job: Job, mirror: Mirror) -> Follower:
        """Subscribe."""
        return _Follower(job, mirror)


class RedisHash(Redis):
    """Every value of its own in a hash, as who must look at single values would keep it."""

    name = "redis HSET"

    def wrap(self, host: int, report: bytes) -> bytes:
        """Values are fields, in MessagePack."""
        values = msgspec.msgpack.decode(report)["values"]
        fields = [part for name, value in values.items() for part in (name, msgspec.msgpack.encode(value))]
        return command("HSET", host_name(host), *fields) + command("PUBLISH", "d", report)

    def follow(self, job: Job, mirror: Mirror) -> Follower:
        """Subscribe."""
        return _HashFollower(job, mirror)


class _Follower(StreamFollower):
    def __init__(self, job: Job, mirror: Mirror) -> None:
        connection = connect(job.address)
        connection.sendall(command("SUBSCRIBE", "d"))
        connection.recv(_REPLIES)
        super().__init__(connection, mirror)
        self._hosts = [host_name(host) for host in range(job.hosts)]
        self._questions = connect(job.address)

    def parse(self, data: bytes) -> tuple[list[bytes], bytes]:
        values, rest = parsed(data)
        return [cast("list[bytes]", value)[2] for value in values], rest

    def snapshot(self) -> object:
        self._questions.sendall(command("MGET", *self._hosts))
        answers = cast("list[bytes]", self._answers(1)[0])
        return {host: decode_report(data).values for host, data in zip(self._hosts, answers, strict=True)}

    def _answers(self, count: int) -> list["Reply"]:
        found: list[Reply] = []
        rest = b""
        while len(found) < count:
            replies, rest = parsed(rest + self._questions.recv(PIECE))
            found += replies
        return found


class _HashFollower(_Follower):
    def snapshot(self) -> object:
        self._questions.sendall(b"".join(command("HGETALL", host) for host in self._hosts))
        decode = msgspec.msgpack.decode
        found = {}
        for host, answer in zip(self._hosts, self._answers(len(self._hosts)), strict=True):
            parts = cast("list[bytes]", answer)
            found[host] = {parts[i].decode(): decode(parts[i + 1]) for i in range(0, len(parts), 2)}
        return found


Reply = bytes | int | list["Reply"] | None


def command(*parts: str | bytes) -> bytes:
    """A command as an array of bulk strings."""
    texts = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%s\r\n" % (len(text), text) for text in texts)


def parsed(data: bytes) -> tuple[list[Reply], bytes]:
    """All whole replies in `data`, and the rest."""
    replies: list[Reply] = []
    place = 0
    try:
        while place < len(data):
            reply, place = _reply(data, place)
            replies.append(reply)
    except _Incomplete:
        pass
    return replies, data[place:]


class _Incomplete(Exception):
    """More bytes are needed."""


def _reply(data: bytes, place: int) -> tuple[Reply, int]:
    end = data.find(b"\r\n", place)
    if end < 0:
        raise _Incomplete
    kind, head, place = data[place : place + 1], data[place + 1 : end], end + 2
    match kind:
        case b"$" if head == b"-1":
            return None, place
        case b"$":
            end = place + int(head)
            if end + 2 > len(data):
                raise _Incomplete
            return data[place:end], end + 2
        case b"*":
            return _array(data, place, int(head))
        case b":":
            return int(head), place
        case b"-":
            raise ConnectionError(f"redis refused a command: {head!r}")
    return head, place


def _array(data: bytes, place: int, count: int) -> tuple[list[Reply], int]:
    """Items of an array; bulk strings, which nearly all are, without a call each: this is timed."""
    items: list[Reply] = []
    find, size_of_all = data.find, len(data)
    for _ in range(count):
        end = find(b"\r\n", place)
        if data[place : place + 1] == b"$" and end > 0 and data[place + 1] != _MINUS:
            place = end + 4 + int(data[place + 1 : end])
            if place > size_of_all:
                raise _Incomplete
            items.append(data[end + 2 : place - 2])
        else:
            item, place = _reply(data, place)
            items.append(item)
    return items, place


def _pipelined(address: str) -> Send:
    connection = connect(address)
    waiting = False

    def send(frame: bytes | bytearray) -> None:
        nonlocal waiting
        if waiting:
            connection.recv(_REPLIES)
        waiting = True
        connection.sendall(frame)

    return send
