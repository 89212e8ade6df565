"""gRPC's unary calls on a plain socket (HTTP/2, RFC 9113): what a client says to etcd, and nothing more.

A call is a frame of headers, the same for all, and one of data; its answer ends with the frame of trailers
that ends its stream. Our windows are opened so wide at the start that they are never the reason to wait; a
server's is 64 kB, so its callers have little out at a time, in calls of 16 kB at most. Pings and settings are
answered.
"""

import struct

from bench.job.sockets import PIECE, connect

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACKNOWLEDGED, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW = 4
"""Number of a setting."""
_WIDE = 1 << 30
_HEAD = 9
"""Bytes of a frame before its payload."""


class Link:
    """One connection; raises `ConnectionError` when the server ends it or a call."""

    def __init__(self, address: str, path: str) -> None:
        """To a port on loopback, for calls of one method."""
        self._connection = connect(address)
        self._headers = _headers(path, f"127.0.0.1:{address}")
        self._stream, self._rest = 1, b""
        self._bodies: dict[int, bytes] = {}
        """By stream that has not ended."""
        settings = _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, _WIDE))
        self._connection.sendall(_PREFACE + settings + _frame(_WINDOW, 0, 0, struct.pack(">I", _WIDE)))

    def fileno(self) -> int:
        """Readable when answers may have come."""
        return self._connection.fileno()

    def call(self, request: bytes) -> int:
        """Send a request; the number that its answer will have."""
        stream, self._stream = self._stream, self._stream + 2
        data = b"\0" + len(request).to_bytes(4, "big") + request
        self._connection.sendall(
            _frame(_HEADERS, _END_HEADERS, stream, self._headers) + _frame(_DATA, _END_STREAM, stream, data)
        )
        return stream

    def answers(self) -> list[tuple[int, bytes]]:
        """What has come, at least something: answers that are whole now, each with the number of its call."""
        piece = self._connection.recv(PIECE)
        if not piece:
            raise ConnectionError("the server has closed the connection")
        frames, self._rest = split(self._rest + piece)
        return [answer for frame in frames for answer in self._take(*frame)]

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> list[tuple[int, bytes]]:
        if kind == _DATA:
            self._bodies[stream] = self._bodies.get(stream, b"") + body
        elif kind == _HEADERS and flags & _END_STREAM:
            if stream not in self._bodies:
                raise ConnectionError(f"the server refused a call: {body!r}")
            return [(stream, self._bodies.pop(stream)[5:])]
        elif kind in {_RESET, _GOAWAY}:
            raise ConnectionError(f"the server ended a call or the connection: {body!r}")
        elif kind in {_PING, _SETTINGS} and not flags & _ACKNOWLEDGED:
            self._connection.sendall(_frame(kind, _ACKNOWLEDGED, 0, body if kind == _PING else b""))
        return []


def split(data: bytes) -> tuple[list[tuple[int, int, int, bytes]], bytes]:
    """Whole frames in `data` as kind, flags, stream and payload, and the rest."""
    found = []
    place = 0
    while place + _HEAD <= len(data):
        start = place + _HEAD
        end = start + int.from_bytes(data[place : place + 3], "big")
        if end > len(data):
            break
        stream = int.from_bytes(data[place + 5 : start], "big")
        found.append((data[place + 3], data[place + 4], stream, data[start:end]))
        place = end
    return found, data[place:]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _headers(path: str, authority: str) -> bytes:
    """POST to a path, in HPACK (RFC 7541) without compression: numbers are those of its static table."""
    fields = b"\x83\x86" + b"\x04" + _text(path) + b"\x01" + _text(authority)
    return fields + b"\x0f\x10" + _text("application/grpc") + b"\0" + _text("te") + _text("trailers")


def _text(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()
