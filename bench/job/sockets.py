"""Plain stream sockets for the protocols that the bench speaks itself."""

import socket
from abc import abstractmethod
from collections.abc import Callable

from bench.job.hub import Follower, Mirror

PIECE = 1 << 18


def connect(address: str) -> socket.socket:
    """A connection to a unix socket path, or to a port on loopback."""
    if address.startswith("/"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(address)
        return connection
    connection = socket.create_connection(("127.0.0.1", int(address)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive_until(connection: socket.socket, done: Callable[[bytes], object]) -> bytes:
    """Read until `done(all that was read)`; raises `ConnectionError` at the end of the stream."""
    data = b""
    while not done(data):
        piece = connection.recv(PIECE)
        if not piece:
            raise ConnectionError(f"cannot go on: the server closed the connection after {data[-200:]!r}")
        data += piece
    return data


class StreamFollower(Follower):
    """A subscription on a stream socket: `parse` splits what has come into reports and a rest."""

    def __init__(self, connection: socket.socket, mirror: Mirror) -> None:
        self.connection, self.mirror = connection, mirror
        connection.settimeout(0.2)
        self._rest = b""

    @abstractmethod
    def parse(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Whole reports in `data`, and the bytes after the last one."""

    def pump(self) -> None:
        """Give the mirror what has come."""
        try:
            piece = self.connection.recv(PIECE)
        except TimeoutError:
            return
        reports, self._rest = self.parse(self._rest + piece)
        for report in reports:
            self.mirror.take(report)
