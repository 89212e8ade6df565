"""The broker's end of all links: one ROUTER behind several endpoints, read frame by frame.

`receive` is the hot path: about 1.5 microseconds of CPU per message. The look at `more` in it is what keeps a
peer that sends several frames from speaking for another; it must stay. Rubbish is dropped and counted here,
and never reaches anybody. Peers are told apart by the routing id that libzmq gives to each connection; a peer
that chose its own is not served. A sender never waits: a full queue or a vanished peer is an answer.
"""

import contextlib
import os
import socket as sockets
import stat
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import zmq

from xce.model.message import DOCUMENT_BYTES
from xce.wire.dealer import HANDSHAKE_TIMEOUT_MS, KEEPALIVE_PROBES, KEEPALIVE_S
from xce.wire.keys import KeyPair
from xce.wire.zap import DOMAIN

SEND_QUEUE = 256
RECEIVE_QUEUE = 64
"""Messages per peer. A peer that does not read fills the first and is told apart from one that is gone."""
ACCEPT_QUEUE = 4096
UNIX_PATH_BYTES = 107
TURN, TURN_BYTES = 320, 1 << 20
"""Messages: some 2 ms of work, after which followers hear of it. Longer turns leave other processors idle."""

_EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_ACCEPT_FAILED
)

_AT_ONCE, _MORE_AT_ONCE, _READABLE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE), int(zmq.POLLIN)
"""As plain numbers: joining two flags costs more than sending does."""

_UNKNOWN = object()

P = TypeVar("P")


class ListenError(Exception):
    """An endpoint cannot be used; the message names it, the cause and the way out."""


class Sent(Enum):
    """What became of a message to a peer."""

    OK = "ok"
    FULL = "full"
    """It does not read: its queue is full."""
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Stranger:
    """What is known of a connection when its first message arrives."""

    routing_id: bytes
    user: str
    """What ZAP's `accept` gave for its key; '' on a local socket."""
    address: str
    """`ADDRESS:PORT`; on a local socket `uid UID pid PID`."""
    uid: int = -1
    """Of a local peer; -1 for a remote one."""


class Router(Generic[P]):
    """Binds at once; raises `ListenError`.

    `admit` turns a stranger into whatever the owner keeps per peer, or None to ignore the connection.
    `gone` is told when a known peer's connection has ended.
    """

    def __init__(
        self,
        *,
        listen: list[str],
        local: str,
        key: KeyPair | None,
        admit: Callable[[Stranger], P | None],
        gone: Callable[[P], None],
        local_mode: int = 0o600,
        most: int = 1 << 30,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
    ) -> None:
        """`most`: with so many connections those that have not spoken yet have to go, the oldest first."""
        self._admit, self._gone, self._most = admit, gone, most
        self.socket = (context or zmq.Context.instance()).socket(zmq.ROUTER)
        _bound(self.socket)
        self.monitor = self.socket.get_monitor_socket(_EVENTS)
        self.monitor.linger = 0
        self.dropped: Counter[str] = Counter()
        """Messages and connections that were not taken: `frames`, `identity`, `ignored`, `handshake`,
        `accept`, `crowded`, `silent`.
        """
        self._silent: dict[int, None] = {}
        """Descriptors of connections that have not spoken yet, the oldest first."""
        self._peers: dict[bytes, P | None] = {}
        self._ids: dict[int, bytes] = {}
        """Descriptor of a connection to its routing id."""
        self._links: dict[bytes, tuple[int, str]] = {}
        self._reused: Counter[int] = Counter()
        """Descriptors whose end will be told after their reuse was seen."""
        self.endpoints: list[str] = []
        try:
            if local:
                self._bind_local(local, local_mode)
            if listen:
                self._bind_all(listen, key)
        except BaseException:
            self.close()
            raise

    def receive(self, limit: int = TURN) -> list[tuple[P, bytes]]:
        """At most `limit` messages of one frame, or `TURN_BYTES` and one; the rest is dropped and counted.

        Connections take turns in them, so what one of them sends keeps the others waiting no longer.
        """
        messages: list[tuple[P, bytes]] = []
        receive, add, room = self.socket.recv, messages.append, TURN_BYTES
        known: Any = self._peers.get
        try:
            for number in range(limit):
                if number == 1 and not self.readable():
                    break  # one that comes alone, as orders do: a refusal costs more than the question
                routing_id = receive(_AT_ONCE)
                # Not copied at once: a frame knows whether more follow, and asking the socket costs twice as
                # much. But copied then: each frame holds a whole buffer of the I/O thread.
                frame = receive(_AT_ONCE, False)
                peer = known(routing_id, _UNKNOWN)
                if peer is _UNKNOWN:
                    peer = self._meet(routing_id, frame)
                if frame.more:
                    self._drop_rest()
                elif peer is not None:
                    add((peer, data := frame.bytes))
                    if (room := room - len(data)) < 0:
                        break
                else:
                    self.dropped["ignored"] += 1
        except zmq.Again:
            pass
        return messages

    def readable(self) -> bool:
        """Whether a message is waiting: to be asked before sleeping on `fileno`, which tells only what is
        new.
        """
        return bool(cast("int", self.socket.getsockopt(zmq.EVENTS)) & _READABLE)

    def fileno(self) -> int:
        """Descriptor that becomes readable when messages may have come (edge-triggered)."""
        return cast("int", self.socket.getsockopt(zmq.FD))

    def monitor_fileno(self) -> int:
        """Descriptor that becomes readable when `serve_monitor` may find something new (edge-triggered)."""
        return cast("int", self.monitor.getsockopt(zmq.FD))

    def send(self, routing_id: bytes, data: bytes) -> Sent:
        """Queue one message for a peer, or say why not; nothing is kept for later."""
        send = self.socket.send
        try:
            send(routing_id, _MORE_AT_ONCE)
            send(data, _AT_ONCE)
        except zmq.Again:
            return Sent.FULL
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._forget(routing_id)
            return Sent.GONE
        return Sent.OK

    def serve_monitor(self, limit: int = TURN) -> bool:
        """Take at most `limit` events of the socket's monitor: ended connections, failed handshakes.

        Whether there may be more; until there are none, its descriptor tells nothing.
        """
        receive = self.monitor.recv
        try:
            for _ in range(limit):
                event, value = struct.unpack("=hi", receive(zmq.NOBLOCK)[:6])
                receive(zmq.NOBLOCK)  # the endpoint
                if event == zmq.EVENT_ACCEPTED:
                    if value not in self._ids:
                        self._silent[value] = None
                    if len(self._peers) + len(self._silent) >= self._most:
                        self._make_room()
                elif event == zmq.EVENT_DISCONNECTED:
                    self._silent.pop(value, None)
                    self._ended(value)
                elif event == zmq.EVENT_ACCEPT_FAILED:
                    self.dropped["accept"] += 1
                    self._make_room()
                else:
                    self.dropped["handshake"] += 1
        except zmq.Again:
            return False
        return True

    def _make_room(self) -> None:
        """Close the older half of the connections that have not spoken.

        Without descriptors libzmq would turn round and round with a connection that it cannot accept, and end
        the process at one on the local socket.
        """
        for descriptor in list(self._silent)[: len(self._silent) // 2 + 1]:
            del self._silent[descriptor]
            self.dropped["crowded"] += 1
            with contextlib.suppress(OSError, ValueError), _duplicate(descriptor) as connection:
                if descriptor not in self._ids:
                    connection.shutdown(sockets.SHUT_RDWR)

    def cut(self, routing_id: bytes) -> None:
        """Serve a peer no longer and close its connection, where that can be done without hitting another."""
        if routing_id in self._peers:
            self._peers[routing_id] = None
        descriptor, address = self._links.get(routing_id, (-1, ""))
        with contextlib.suppress(OSError, ValueError), _duplicate(descriptor) as connection:
            # The number may have been given to another connection meanwhile; on the duplicate that cannot
            # happen.
            if _address_of(connection)[0] == address:
                connection.shutdown(sockets.SHUT_RDWR)

    def __len__(self) -> int:
        """How many connections have spoken and not ended."""
        return len(self._peers)

    def close(self) -> None:
        """Close all endpoints; unsent messages are dropped. May be called twice."""
        if not self.socket.closed:
            self.socket.disable_monitor()
            self.monitor.close(linger=0)
            self.socket.close(linger=0)

    # ------------------------------------------------------------------------------------ connections

    def _meet(self, routing_id: bytes, frame: zmq.Frame) -> P | None:
        """The first message of a connection: who is it?"""
        if len(routing_id) != 5 or routing_id[0] != 0:
            # Not one of libzmq's own; it could have belonged to another connection before.
            self.dropped["identity"] += 1
            self._peers[routing_id] = None
            return None
        descriptor = int(_property(frame, "__fd") or -1)
        address, uid = _property(frame, "Peer-Address"), -1
        with contextlib.suppress(OSError, ValueError), _duplicate(descriptor) as connection:
            address, uid = _address_of(connection)
        peer = self._admit(Stranger(routing_id, _property(frame, "User-Id"), address, uid))
        self._peers[routing_id] = peer
        if descriptor >= 0:
            self._silent.pop(descriptor, None)
            earlier = self._ids.get(descriptor)
            if earlier is not None:  # it has ended, and the monitor will say so when it is too late
                self._reused[descriptor] += 1
                self._forget(earlier)
            self._ids[descriptor] = routing_id
            self._links[routing_id] = (descriptor, address)
        return peer

    def _ended(self, descriptor: int) -> None:
        if self._reused[descriptor] > 0:
            self._reused[descriptor] -= 1
        elif (routing_id := self._ids.get(descriptor)) is not None:
            self._forget(routing_id)
        else:
            self.dropped["silent"] += 1

    def _forget(self, routing_id: bytes) -> None:
        peer = self._peers.pop(routing_id, None)
        descriptor, _ = self._links.pop(routing_id, (-1, ""))
        if self._ids.get(descriptor) == routing_id:
            del self._ids[descriptor]
        if peer is not None:
            self._gone(peer)

    def _drop_rest(self) -> None:
        self.dropped["frames"] += 1
        while self.socket.getsockopt(zmq.RCVMORE):
            self.socket.recv(zmq.NOBLOCK)

    # -------------------------------------------------------------------------------------- endpoints

    def _bind_local(self, path: str, mode: int) -> None:
        """The local socket comes first: libzmq copies a socket's keys to an endpoint when it is bound."""
        if len(path.encode()) > UNIX_PATH_BYTES:
            raise ListenError(f"cannot listen on {path}: longer than {UNIX_PATH_BYTES} bytes")
        with contextlib.suppress(
            OSError
        ):  # below /run, where nothing outlives a boot; the check has the words
            Path(path).parent.mkdir(mode=0o755, exist_ok=True)
        _check_directory(Path(path).parent)
        before = os.umask(0o177)
        try:
            self.socket.bind(f"ipc://{path}")
            os.chmod(path, mode)
        except (zmq.ZMQError, OSError) as error:
            raise ListenError(f"cannot listen on {path}: {error.strerror}") from error
        finally:
            os.umask(before)
        self.endpoints.append(f"ipc://{path}")

    def _bind_all(self, listen: list[str], key: KeyPair | None) -> None:
        if key is None:
            raise ListenError(
                f"cannot listen on {listen[0]} without a key; make one with: xce-broker key new"
            )
        self.socket.curve_server = 1
        self.socket.curve_publickey, self.socket.curve_secretkey = key.public, key.secret
        self.socket.zap_domain = DOMAIN
        for endpoint in listen:
            if not endpoint.startswith("tcp://"):
                raise ListenError(f"cannot listen on {endpoint!r}: expected tcp://ADDRESS:PORT")
            try:
                self.socket.bind(endpoint)
            except zmq.ZMQError as error:
                why = os.strerror(error.errno or 0)  # its own words name the address once more
                raise ListenError(f"cannot listen on {endpoint}: {why}") from error
            self.endpoints.append(
                cast("bytes", self.socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
            )


def wait_to_be_scheduled() -> None:
    """Let ZeroMQ's thread take no processor from whoever is at work; to be called before there is a socket.

    Woken by each message, it would interrupt for a single one what the broker or its peers do. When it waits
    until a processor is free, or a time slice is over, it reads many at once: a tenth less CPU at 5,000
    messages a second.
    """
    zmq.Context.instance().set(zmq.THREAD_SCHED_POLICY, os.SCHED_BATCH)


def _bound(socket: "zmq.Socket[bytes]") -> None:
    """Set every limit of the broker's socket. A dead peer is found by TCP itself, without a timer of ours
    each.
    """
    socket.linger = 0
    socket.router_mandatory = 1
    socket.sndhwm, socket.rcvhwm = SEND_QUEUE, RECEIVE_QUEUE
    socket.maxmsgsize = DOCUMENT_BYTES
    socket.backlog = ACCEPT_QUEUE
    socket.handshake_ivl = HANDSHAKE_TIMEOUT_MS
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = socket.tcp_keepalive_intvl = KEEPALIVE_S
    socket.tcp_keepalive_cnt = KEEPALIVE_PROBES
    socket.tcp_maxrt = KEEPALIVE_S * KEEPALIVE_PROBES * 1000
    socket.ipv6 = 1


def _property(frame: zmq.Frame, name: str) -> str:
    """A property of the connection that a frame came by; '' where it has none."""
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return ""


def _duplicate(descriptor: int) -> sockets.socket:
    return sockets.socket(fileno=os.dup(descriptor))


def _address_of(connection: sockets.socket) -> tuple[str, int]:
    """Address of the other end, and its user where the kernel tells (unix(7), SO_PEERCRED)."""
    if connection.family == sockets.AF_UNIX:
        credentials = connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, struct.calcsize("iII"))
        pid, uid, _ = struct.unpack("iII", credentials)
        return f"uid {uid} pid {pid}", uid
    name = connection.getpeername()
    host = str(name[0]).removeprefix("::ffff:")
    return (f"[{host}]:{name[1]}" if ":" in host else f"{host}:{name[1]}"), -1


def _check_directory(directory: Path) -> None:
    """Who can write in the socket's directory can put another socket in its place."""
    try:
        status = directory.stat()
    except OSError as error:
        raise ListenError(f"cannot use {directory}: {error.strerror}") from error
    if status.st_uid not in {0, os.geteuid()}:
        raise ListenError(
            f"cannot trust {directory}: it belongs to user {status.st_uid}, not to root or to us"
        )
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise ListenError(f"cannot trust {directory}: others can write in it; chmod 755 {directory}")
