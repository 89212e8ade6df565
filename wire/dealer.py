"""One end of a link to the broker: an agent's, a controller's, a command's.

A socket with bounds on everything, and its monitor's events in words. No thread of ours, no waiting, no
protocol: the owner polls `fileno()` and `monitor_fileno()`. `fileno()` is ZeroMQ's edge: after it fires,
after each `send` and after each `receive`, ask `readable()` before sleeping again.

A link that was rejected, or that met no XCE broker, does not try again by itself (libzmq gives a session up
after a protocol error): `LinkEvent.final` says so, and the owner closes it and makes a new one after a while.
"""

import errno
import ipaddress
import random
import socket
import struct
import weakref
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple, cast

import zmq

from xce.wire.keys import KeyPair

SEND_QUEUE = 1000
RECEIVE_QUEUE = 1000
"""Messages; when full, `send` refuses, and TCP holds the broker back."""
FROM_BROKER_BYTES = 64 << 20
CONNECT_TIMEOUT_MS = 5_000
HANDSHAKE_TIMEOUT_MS = 10_000
KEEPALIVE_S, KEEPALIVE_PROBES = 15, 3
RETRY_S = (0.1, 0.5)
"""A link's own first retry interval is drawn from this span; it doubles up to four times the span's end."""
LONGEST_RETRY_S = 15.0
"""But not beyond this."""

_EVENTS = (
    zmq.EVENT_CONNECT_DELAYED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
)


class LinkState(StrEnum):
    """What is known of a link."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    """The broker's host has answered; keys are being exchanged."""
    READY = "ready"
    REJECTED = "rejected by broker"
    WRONG_KEY = "broker's key does not match"
    NOT_A_BROKER = "no XCE broker at this address"
    NO_ANSWER = "nobody answers"
    NO_NAME = "name does not resolve"
    NO_ROUTE = "no route"
    DISCONNECTED = "disconnected"


_AT_ONCE, _READABLE = int(zmq.NOBLOCK), int(zmq.POLLIN)
"""As plain numbers: to test one flag against another costs more than the question whose answer it is."""

SURE_S = 1.0
"""So long a link that tries again has to tell the same, before a command gives up."""
DEFINITE = frozenset({LinkState.REJECTED, LinkState.WRONG_KEY, LinkState.NOT_A_BROKER})
"""States that waiting will hardly heal, once they are final or have lasted."""
HINTS = {
    LinkState.REJECTED: "xce-broker key list, there, says which. One that it does not know: "
    "xce-broker key add FILE.pub; one that was revoked stays so: make another "
    "(a host: xce-broker token new, move its agent.key away, xce-agent join)",
    LinkState.WRONG_KEY: "copy /etc/xce/keys/broker.pub from the broker's host",
    LinkState.NOT_A_BROKER: "check the address, and that keys are given for tcp://",
    LinkState.NO_ROUTE: "is the network up, and the address right? ip route get ADDRESS",
    LinkState.NO_NAME: "check its spelling, and with: getent hosts NAME",
    LinkState.NO_ANSWER: "is xce-broker running there, and the port open? systemctl status xce-broker",
}
"""What to do about a link that does not come, for whoever has to wait for it."""


class LinkEvent(NamedTuple):
    """A change of a link. `text` is for people and names the endpoint."""

    state: LinkState
    text: str
    final: bool = False
    """The socket will not try again."""


class Dealer:
    """A link to one broker endpoint (`tcp://HOST:PORT` or `ipc://PATH`); connects at once and in the
    background.

    `key` and `broker_key` (Z85) go together; without them the link is plain, as it should be on `ipc://`
    only. Raises `ValueError` for an endpoint that is none, and where no socket can be made at present.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        key: KeyPair | None = None,
        broker_key: bytes | None = None,
        retry_s: tuple[float, float] = RETRY_S,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
    ) -> None:
        if (key is None) != (broker_key is None):
            raise ValueError("cannot connect: give our key and the broker's, or none of the two")
        self.endpoint = endpoint
        self.dropped = 0
        """Messages from the broker with a wrong number of frames."""
        self._state = LinkState.CONNECTING
        self._lost = False
        """The connection has just ended, and no new attempt has been made yet."""
        self._tried = False
        """The newest event says that an attempt is under way: an address was found to go to."""
        self._secured = key is not None
        try:
            self._socket = (context or zmq.Context.instance()).socket(zmq.DEALER)
            _bound(self._socket, retry_s)
            if key is not None and broker_key is not None:
                self._socket.curve_serverkey = broker_key
                self._socket.curve_publickey = key.public
                self._socket.curve_secretkey = key.secret
            self._monitor = self._socket.get_monitor_socket(_EVENTS)
        except zmq.ZMQError as error:
            raise ValueError(f"cannot make a socket for {endpoint}: {error.strerror}") from error
        self._monitor.linger = 0
        self._end = weakref.finalize(self, _end, self._socket, self._monitor)
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ValueError(
                f"cannot connect to {endpoint!r}: {error.strerror}; use tcp://HOST:PORT or ipc://PATH"
            ) from error

    @property
    def state(self) -> LinkState:
        """The newest state that `events` has told."""
        return self._state

    def fileno(self) -> int:
        """Descriptor that becomes readable when messages may have come (edge-triggered, see above)."""
        return cast("int", self._socket.getsockopt(zmq.FD))

    def monitor_fileno(self) -> int:
        """Descriptor that becomes readable when `events` may have something (edge-triggered)."""
        return cast("int", self._monitor.getsockopt(zmq.FD))

    def readable(self) -> bool:
        """Whether a message or an event is waiting.

        The monitor is asked, too: its descriptor tells nothing before it has been found empty once, and a
        link that comes up at once would go unnoticed.
        """
        return _waiting(self._socket) or _waiting(self._monitor)

    def send(self, data: bytes) -> bool:
        """Queue one message; False when the link is not ready or its queue is full."""
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self, limit: int = 512) -> list[bytes]:
        """At most `limit` waiting messages."""
        return [message.tobytes() for message in self.messages(limit)]

    def messages(self, limit: int) -> Iterator[memoryview]:
        """The same, each received when it is asked for and left where ZeroMQ has it.

        To copy a large one takes a quarter of the time that its decoding does.
        """
        for _ in range(limit):
            if not _waiting(self._socket):
                return
            frame = self._socket.recv(_AT_ONCE, copy=False)
            if frame.more:
                while self._socket.getsockopt(zmq.RCVMORE):
                    self._socket.recv(_AT_ONCE)
                self.dropped += 1
            else:
                yield frame.buffer

    def events(self) -> list[LinkEvent]:
        """What has happened to the link since the last call, oldest first; each change is told once."""
        changes: list[LinkEvent] = []
        while _waiting(self._monitor):
            event, value = struct.unpack("=hi", self._monitor.recv(zmq.NOBLOCK)[:6])
            self._monitor.recv(zmq.NOBLOCK)  # the endpoint
            change = self._in_words(event, value)
            if change and change.state is not self._state:
                self._state = change.state
                changes.append(change)
        return changes

    def close(self) -> None:
        """Close the link; unsent messages are dropped. Dropping it does the same. May be called twice."""
        self._end()

    def _in_words(self, event: int, value: int) -> LinkEvent | None:
        """The meaning of one monitor event; None where it adds nothing to what has been told."""
        # The first "retried" after a loss only says that an attempt is planned; later ones, that it failed.
        lost, self._lost = self._lost, event == zmq.EVENT_DISCONNECTED
        tried, self._tried = self._tried, event == zmq.EVENT_CONNECT_DELAYED
        match event:
            case zmq.EVENT_CONNECTED if self._state not in {LinkState.WRONG_KEY, LinkState.NOT_A_BROKER}:
                return LinkEvent(LinkState.CONNECTED, f"connected to {self.endpoint}, exchanging keys")
            case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return LinkEvent(LinkState.READY, f"linked to {self.endpoint}")
            case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                text = f"rejected by broker {self.endpoint}: it does not know our key, or has revoked it"
                return LinkEvent(LinkState.REJECTED, text, final=True)
            case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                text = f"{self.endpoint} does not answer like an XCE broker" + (
                    "" if self._secured else "; it may want keys"
                )
                return LinkEvent(LinkState.NOT_A_BROKER, text, final=True)
            case zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL if self._secured and value in {
                errno.EPIPE,
                errno.ECONNRESET,
            }:
                # A CURVE server that cannot open our hello closes without a word (RFC 26).
                text = f"broker's key does not match: {self.endpoint} closed the link during the key exchange"
                return LinkEvent(LinkState.WRONG_KEY, text)
            case zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                return self._not_greeted()
            case zmq.EVENT_DISCONNECTED if self._state is LinkState.CONNECTED:
                return self._not_greeted()
            case zmq.EVENT_DISCONNECTED if self._state is LinkState.READY:
                return LinkEvent(LinkState.DISCONNECTED, f"link to {self.endpoint} is down")
            case zmq.EVENT_CONNECT_RETRIED if not lost:
                return self._not_reached(tried=tried)
            case _:
                return None

    def _not_greeted(self) -> LinkEvent:
        """The connection ended, or nothing came over it, before keys were exchanged."""
        words = "takes connections and does not answer like an XCE broker: something else, or it hangs"
        return LinkEvent(LinkState.NOT_A_BROKER, f"{self.endpoint} {words}")

    def _not_reached(self, *, tried: bool) -> LinkEvent:
        """An attempt has failed. libzmq does not tell why; names it looks up by itself."""
        if not tried and (name := _name_in(self.endpoint)):
            text = f"cannot reach {self.endpoint}: the name {name} does not resolve"
            return LinkEvent(LinkState.NO_NAME, text)
        if _no_route(self.endpoint):
            return LinkEvent(LinkState.NO_ROUTE, f"no route to {self.endpoint} from this host")
        return LinkEvent(LinkState.NO_ANSWER, f"nobody answers at {self.endpoint}")


def _end(socket: "zmq.Socket[bytes]", monitor: "zmq.Socket[bytes]") -> None:
    """Close both ends in the order that they need: libzmq's thread would wait for ever to tell an event to a
    monitor that is gone, and no link of the process would come up again.
    """
    if not socket.closed:
        socket.disable_monitor()
        monitor.close(linger=0)
        socket.close(linger=0)


def _waiting(socket: "zmq.Socket[bytes]") -> bool:
    """Whether something can be received: a third of the price of finding out by an exception."""
    return bool(cast("int", socket.getsockopt(zmq.EVENTS)) & _READABLE)


def _name_in(endpoint: str) -> str:
    """The host name in an endpoint; '' where there is an address or a path."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host if endpoint.startswith("tcp://") else ""
    return ""


def _no_route(endpoint: str) -> bool:
    """Whether the kernel knows no way to an address. Nothing is sent to find out."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return False  # a name is not looked up for it, which may take long
    with socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        return probe.connect_ex((host, 1)) in {
            errno.ENETUNREACH,
            errno.EHOSTUNREACH,
            errno.EADDRNOTAVAIL,  # IPv6: no address of ours could be the sender
        }


def retry_within(spread_s: float) -> tuple[float, float]:
    """First retry intervals of the links that come back together, so that not all come at once.

    No second of a long spread should see more than a quarter of them, with those that tried too early and
    come a second time.
    """
    return max(spread_s / 16, RETRY_S[0]), spread_s


def allow(links: int) -> None:
    """Make room for so many links in this process; to be called before the first one is made."""
    # Its monitor has two ends; those that were closed count until libzmq's thread comes to them.
    zmq.Context.instance().set(zmq.MAX_SOCKETS, 4 * links + 64)


def _bound(socket: "zmq.Socket[bytes]", retry_s: tuple[float, float]) -> None:
    """Set every limit of a client's socket. It sets no identity: the broker's ROUTER gives one per
    connection.
    """
    socket.linger = 0
    socket.sndhwm, socket.rcvhwm = SEND_QUEUE, RECEIVE_QUEUE
    socket.maxmsgsize = FROM_BROKER_BYTES
    socket.immediate = 1  # nothing is queued for a link that is not ready: a tick of yesterday helps nobody
    socket.connect_timeout = CONNECT_TIMEOUT_MS
    socket.handshake_ivl = HANDSHAKE_TIMEOUT_MS
    socket.reconnect_ivl = max(1, int(random.uniform(*retry_s) * 1000))  # noqa: S311 - spreads load, no secret
    socket.reconnect_ivl_max = int(min(LONGEST_RETRY_S, 4 * retry_s[1]) * 1000)
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = socket.tcp_keepalive_intvl = KEEPALIVE_S
    socket.tcp_keepalive_cnt = KEEPALIVE_PROBES
    socket.tcp_maxrt = KEEPALIVE_S * KEEPALIVE_PROBES * 1000
    socket.ipv6 = 1
