"""The agent's local socket: one JSON object a line in, one a line out.

What is asked (`op`) and who may ask it is in `Control.operations`; the kernel tells who asks (SO_PEERCRED).
Nobody can hurt the agent through it: clients, lines and unread answers are bounded, a client that does not
read is cut off, and a line that is no request gets an answer that says so.
"""

import json
import os
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from xce.linux.loop import Loop, Timer

CLIENTS = 32
LINE_BYTES = 64 << 10
UNREAD_BYTES = 4 << 20
"""Answers that a client has not read; one that lets more pile up is cut off."""
IDLE_S = 60.0
"""A client that neither asks nor follows is cut off after this."""

Answer: TypeAlias = dict[str, Any]
Reply: TypeAlias = Callable[[Answer], None]


class Operation(NamedTuple):
    """One thing that can be asked. `run` gets the request and the way to answer, once or more often.

    It may answer later; what it returns, if anything, is called when the client is gone.
    """

    run: Callable[[Mapping[str, Any], Reply], Callable[[], None] | None]
    changes: bool = False
    """Only for root and the agent's own user."""


class Control:
    """Listens at `path`, whose directory must exist. Raises OSError."""

    def __init__(self, loop: Loop, path: str, operations: Mapping[str, Operation]) -> None:
        self.path, self.operations = path, operations
        self.refused = 0
        """Clients turned away or cut off."""
        self._loop = loop
        self._clients: set[_Client] = set()
        _remove_leftover(path)
        self._socket = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
        try:
            self._socket.bind(path)
            os.chmod(path, 0o666)  # everybody may ask; who may change is decided by uid
            self._socket.listen(CLIENTS)
        except OSError:
            self._socket.close()
            raise
        loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Cut all clients off and remove the socket; may be called twice."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for client in tuple(self._clients):
            client.close()
        _remove_leftover(self.path)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):
            return
        connection.setblocking(False)
        if len(self._clients) >= CLIENTS:
            self.refused += 1
            connection.close()
            return
        self._clients.add(_Client(self, self._loop, connection))

    def forget(self, client: "_Client", *, cut: bool) -> None:
        """A client is gone; `cut`: because of what it did."""
        self._clients.discard(client)
        self.refused += cut


class _Client:
    """One connection."""

    def __init__(self, control: Control, loop: Loop, connection: socket.socket) -> None:
        self._control, self._loop, self._connection = control, loop, connection
        self._uid = _uid(connection)
        self._received = bytearray()
        self._unsent = bytearray()
        self._endings: list[Callable[[], None]] = []
        self._open = True
        self._writing = False
        loop.add_reader(connection.fileno(), self._read)
        self._idle: Timer = loop.call_later(IDLE_S, self.close)

    def close(self, *, cut: bool = False) -> None:
        if not self._open:
            return
        self._open = False
        self._idle.cancel()
        self._loop.remove_reader(self._connection.fileno())
        self._loop.remove_writer(self._connection.fileno())
        self._connection.close()
        self._control.forget(self, cut=cut)
        for ending in self._endings:
            ending()

    def _read(self) -> None:
        try:
            data = self._connection.recv(LINE_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self.close()
            return
        self._received += data
        while self._open and (end := self._received.find(b"\n")) >= 0:
            line = bytes(self._received[:end])
            del self._received[: end + 1]
            self._serve(line)
        if len(self._received) > LINE_BYTES:
            self._answer({"error": f"cannot read the request: longer than {LINE_BYTES} bytes"})
            self.close(cut=True)

    def _serve(self, line: bytes) -> None:
        self._idle.cancel()
        self._idle = self._loop.call_later(IDLE_S, self.close)
        request = _parsed(line)
        if isinstance(request, str):
            self._answer({"error": request})
            return
        operation = self._control.operations.get(str(request.get("op")))
        if operation is None:
            known = ", ".join(sorted(self._control.operations))
            self._answer({"error": f"cannot do {str(request.get('op'))[:64]!r}: known are {known}"})
        elif operation.changes and self._uid not in {0, os.geteuid()}:
            self._answer(
                {"error": f"cannot {request['op']}: only root or the agent's user may, not uid {self._uid}"}
            )
        elif ending := self._run(operation, request):
            self._idle.cancel()  # it follows something
            self._endings.append(ending)

    def _run(self, operation: Operation, request: Mapping[str, Any]) -> Callable[[], None] | None:
        try:
            return operation.run(request, self._answer)
        except Exception as error:
            self._answer({"error": f"internal error: {error!r}"})
            raise

    def _answer(self, answer: Answer) -> None:
        if not self._open:
            return
        self._unsent += (
            json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode(errors="replace") + b"\n"
        )
        if len(self._unsent) > UNREAD_BYTES:
            self.close(cut=True)
        else:
            self._write()

    def _write(self) -> None:
        try:
            sent = self._connection.send(self._unsent)
            del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if bool(self._unsent) != self._writing:
            self._writing = not self._writing
            if self._writing:
                self._loop.add_writer(self._connection.fileno(), self._write)
            else:
                self._loop.remove_writer(self._connection.fileno())


def _parsed(line: bytes) -> dict[str, Any] | str:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return "cannot read the request: it is not JSON"
    if not isinstance(request, dict) or not isinstance(request.get("op"), str):
        return 'cannot read the request: expected {"op": ...}'
    return request


def _uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    return int(struct.unpack("iII", credentials)[1])


def _remove_leftover(path: str) -> None:
    """Whoever holds the agent's lock is the only one that may listen here."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
