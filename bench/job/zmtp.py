"""ZMTP 3.1 without keys on a plain socket (RFC 37, mechanism NULL): what a host says to a ZeroMQ hub.

The peers' hosts write frames that were encoded beforehand to a socket. So do these: a message with its head
in front is such a frame, and `Link.send` is a write and nothing else. What the hub says meanwhile waits in
the kernel's buffers until `Link.messages` is asked; that holds back the hub's words, not the host's.
"""

import select
import socket
import struct
import time
from collections.abc import Callable

from bench.job.sockets import PIECE, connect, receive_until

_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
_MORE, _LONG, _COMMAND = 1, 2, 4
_READY, _ERROR, _PING, _PONG = b"\x05READY", b"\x05ERROR", b"\x04PING", b"\x04PONG"
_PING_HEAD = len(_PING) + 2
"""Bytes of a ping before its context, which the answer repeats."""
_PATIENCE = struct.pack("ll", 60, 0)
"""The kernel ends a read or write that takes longer; Python's own timeouts would ask twice for each."""


def framed(body: bytes, *, flags: int = 0) -> bytes:
    """A message of one frame, as it stands on the wire."""
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return bytes((flags | _LONG,)) + len(body).to_bytes(8, "big") + body


class Link:
    """A DEALER's connection to a ROUTER; raises `ConnectionError` when it speaks something else."""

    def __init__(self, address: str) -> None:
        """Of a unix socket path, or of a port on loopback."""
        self._connection = connect(address)
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            self._connection.setsockopt(socket.SOL_SOCKET, option, _PATIENCE)
        self.send: Callable[[bytes | bytearray], object] = self._connection.sendall
        """Sends messages that are framed already."""
        self.send(_GREETING)
        data = receive_until(self._connection, lambda data: len(data) >= len(_GREETING))
        if data[:1] != _GREETING[:1] or data[12:17] != b"NULL\0":
            raise ConnectionError(f"cannot speak ZMTP 3 without keys with {data!r}")
        self.send(framed(_READY + _property("Socket-Type", "DEALER"), flags=_COMMAND))
        self._rest, self._ready = b"", False
        self._take(data[len(_GREETING) :])
        while not self._ready:
            self.read()

    def fileno(self) -> int:
        """Readable when messages may have come."""
        return self._connection.fileno()

    def messages(self, timeout_s: float) -> list[bytes]:
        """What has come; if that is nothing, what comes within the time."""
        found: list[bytes] = []
        poll, deadline = select.poll(), time.monotonic() + timeout_s
        poll.register(self._connection, select.POLLIN)
        while poll.poll(0 if found else max(0.0, deadline - time.monotonic()) * 1000):
            found += self.read()
        return found

    def read(self) -> list[bytes]:
        """What has come, at least something: messages that are whole now."""
        piece = self._connection.recv(PIECE)
        if not piece:
            raise ConnectionError("the hub has closed the connection")
        return self._take(piece)

    def _take(self, piece: bytes) -> list[bytes]:
        """The messages that are whole now. Commands are obeyed."""
        frames, self._rest = split(self._rest + piece)
        for flags, body in frames:
            if flags & _COMMAND:
                self._obey(body)
            elif flags & _MORE:
                raise ConnectionError("the hub sent a message of more than one frame")
        return [body for flags, body in frames if not flags & _COMMAND]

    def _obey(self, command: bytes) -> None:
        if command.startswith(_PING):
            self.send(framed(_PONG + command[_PING_HEAD:], flags=_COMMAND))
        elif command.startswith(_ERROR):
            raise ConnectionError(f"the hub refused the connection: {command[7:]!r}")
        self._ready = self._ready or command.startswith(_READY)


def split(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Whole frames in `data`, with their flags, and the rest."""
    found: list[tuple[int, bytes]] = []
    place = 0
    while place + 2 <= len(data):
        flags = data[place]
        head = place + (9 if flags & _LONG else 2)
        end = head + int.from_bytes(data[place + 1 : head], "big")
        if head > len(data) or end > len(data):
            break
        found.append((flags, data[head:end]))
        place = end
    return found, data[place:]


def _property(name: str, value: str) -> bytes:
    return bytes((len(name),)) + name.encode() + len(value).to_bytes(4, "big") + value.encode()
