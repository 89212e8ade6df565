"""The agent's local socket: one JSON object a line in, one a line out.

What is asked (`op`) and who may ask it is in `Control.operations`; the kernel tells who asks (SO_PEERCRED).
Nobody can hurt the agent, or keep root from it, through it: each user has a few places and a few requests a
second, and root and the agent's own user have places that nobody else gets. Lines and unread answers are
bounded, a client that does not read is cut off, and a line that is no request gets an answer that says so.
"""

import json
import os
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from xce.linux.listen import Listener, Reserve
from xce.linux.loop import Loop, Timer

CLIENTS, OTHERS, PER_USER = 32, 24, 4
"""Places: of all, of those of them that any user may have, and of one user among these."""
RESERVE = 4
"""Descriptors that are kept for root to ask what is wrong when all others are used up."""
BACKLOG = 32
REQUESTS, PER_S = 20, 10.0
"""Requests that another user than root may make at once, and how many a second after that."""
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
        self.pace = Pace()
        self._loop = loop
        self._clients: set[_Client] = set()
        self._reserve = Reserve(RESERVE)
        self._listener: Listener | None = None
        self.listen()

    @property
    def scarce(self) -> bool:
        """Whether descriptors ran out when somebody connected last."""
        return self._listener is not None and self._listener.scarce

    def listen(self) -> None:
        """Make the socket anew and listen there; clients stay. Raises OSError."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        _remove_leftover(self.path)
        listening = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
        try:
            listening.bind(self.path)
            os.chmod(self.path, 0o666)  # everybody may ask; who may change is decided by uid
            self._inode = _inode(self.path)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        self._listener = Listener(self._loop, listening, self._take, reserve=self._reserve)

    def missing(self) -> bool:
        """Whether somebody has removed the socket, or put something else in its place."""
        return self._listener is None or _inode(self.path) != self._inode

    def close(self) -> None:
        """Cut all clients off and remove the socket; may be called twice."""
        self._reserve.close()
        for client in tuple(self._clients):
            client.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            _remove_leftover(self.path)

    def _take(self, connection: socket.socket) -> bool:
        uid = _uid(connection)
        if not self._has_room(uid):
            self.refused += 1
            return False
        self._clients.add(_Client(self, self._loop, connection, uid))
        return True

    def _has_room(self, uid: int) -> bool:
        if privileged(uid):
            return len(self._clients) < CLIENTS
        others = [client.uid for client in self._clients if not privileged(client.uid)]
        return not self.scarce and len(others) < OTHERS and others.count(uid) < PER_USER

    def forget(self, client: "_Client", *, cut: bool) -> None:
        """A client is gone; `cut`: because of what it did."""
        self._clients.discard(client)
        self.refused += cut


class Pace:
    """How often each user may ask: `REQUESTS` at once, `PER_S` a second. Others are forgotten."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}
        """By uid, the time at which all that it has asked so far is paid for."""

    def wait(self, uid: int, now: float) -> float:
        """Seconds until a request of `uid` may be served; if 0, it counts as served now."""
        if privileged(uid):
            return 0.0
        paid = max(now, self._until.get(uid, now))
        if (wait := paid - now - (REQUESTS - 1) / PER_S) > 0:
            return wait
        self._until = {one: until for one, until in self._until.items() if until > now}
        self._until[uid] = paid + 1 / PER_S
        return 0.0


class _Client:
    """One connection."""

    def __init__(self, control: Control, loop: Loop, connection: socket.socket, uid: int) -> None:
        self._control, self._loop, self._connection = control, loop, connection
        self.uid = uid
        self._received = bytearray()
        self._unsent = bytearray()
        self._endings: list[Callable[[], None]] = []
        self._open = True
        self._writing = False
        self._next: Timer | None = None
        """When a request that is there already will be looked at; nothing more is read before."""
        self._reading = False
        self._read_on()
        self._idle: Timer = loop.call_later(IDLE_S, self.close)

    def close(self, *, cut: bool = False) -> None:
        if not self._open:
            return
        self._open = False
        self._idle.cancel()
        if self._next is not None:
            self._next.cancel()
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
        self._look()

    def _look(self) -> None:
        """Serve one request, if a whole one is there; the next one has to wait for another turn."""
        self._next = None
        end = self._received.find(b"\n")
        if end < 0:
            self._read_on()
            if len(self._received) > LINE_BYTES:
                self._answer({"error": f"cannot read the request: longer than {LINE_BYTES} bytes"})
                self.close(cut=True)
        elif (wait := self._control.pace.wait(self.uid, self._loop.now())) > 0:
            self._look_later(wait)
        else:
            line = bytes(self._received[:end])
            del self._received[: end + 1]
            if b"\n" in self._received:
                self._look_later(0)
            else:
                self._read_on()
            self._serve(line)

    def _look_later(self, seconds: float) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._connection.fileno())
        self._next = self._loop.call_later(seconds, self._look)

    def _read_on(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.add_reader(self._connection.fileno(), self._read)

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
        elif operation.changes and not privileged(self.uid):
            self._answer(
                {"error": f"cannot {request['op']}: only root or the agent's user may, not uid {self.uid}"}
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
        if b"\\u" in line:
            json.dumps(request, ensure_ascii=False).encode()  # half a character is no text
    except (ValueError, RecursionError):
        return "cannot read the request: it is not JSON"
    if not isinstance(request, dict) or not isinstance(request.get("op"), str):
        return 'cannot read the request: expected {"op": ...}'
    return request


def privileged(uid: int) -> bool:
    """Root and the agent's own user."""
    return uid in {0, os.geteuid()}


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    return int(struct.unpack("iII", credentials)[1])


def _remove_leftover(path: str) -> None:
    """Whoever holds the agent's lock is the only one that may listen here."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
