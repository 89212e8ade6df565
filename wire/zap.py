"""Who may connect: the answer to libzmq's question about each CURVE handshake (ZAP, RFC 27).

Served by the owner's loop, without a thread. It knows no roles: `accept` maps a public key to the name that
later stands on every message of the connection, or to None. Refusals are counted per address, within a bound.
"""

from collections import Counter
from collections.abc import Callable
from typing import cast

import zmq
from zmq.utils import z85

ENDPOINT = "inproc://zeromq.zap.01"
DOMAIN = b"xce"
_ADDRESSES = 1024


class Authenticator:
    """Answers key questions of all sockets of a context; there can be one per context."""

    def __init__(
        self,
        accept: Callable[[bytes], str | None],
        *,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
    ) -> None:
        """`accept` gets a public key (Z85) and gives the User-Id of its connection, or None to refuse."""
        self._accept = accept
        self.socket = (context or zmq.Context.instance()).socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ENDPOINT)
        self.refused: Counter[str] = Counter()
        """Refused handshakes by address of the peer; those beyond the bound are counted under 'others'."""
        self.news: list[tuple[str, bytes]] = []
        """Refusals since the owner last looked, address and key; each is told once, and so many in all."""
        self._told: set[tuple[str, bytes]] = set()

    def fileno(self) -> int:
        """Descriptor that becomes readable when `serve` may find something new (edge-triggered)."""
        return cast("int", self.socket.getsockopt(zmq.FD))

    def serve(self, limit: int = 256) -> bool:
        """Answer at most `limit` waiting questions.

        Whether there may be more; until there are none, its descriptor tells nothing.
        """
        try:
            for _ in range(limit):
                question = self.socket.recv_multipart(zmq.NOBLOCK)
                self.socket.send_multipart(self._answer(question))
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Close the socket; may be called twice."""
        self.socket.close(linger=0)

    def _answer(self, question: list[bytes]) -> list[bytes]:
        version, request = (question[0], question[1]) if len(question) > 1 else (b"1.0", b"")
        if len(question) == 7 and version == b"1.0" and question[2] == DOMAIN and question[5] == b"CURVE":
            key = z85.encode(question[6])
            if (user := self._accept(key)) is not None:
                return [version, request, b"200", b"OK", user.encode(), b""]
            self._count(question[3].decode(errors="replace").removeprefix("::ffff:"), key)
        return [version, request, b"400", b"unknown key", b"", b""]

    def _count(self, address: str, key: bytes) -> None:
        if (address, key) not in self._told and len(self._told) < _ADDRESSES:
            self._told.add((address, key))
            self.news.append((address, key))
        known = address in self.refused or len(self.refused) < _ADDRESSES
        self.refused[address if known else "others"] += 1
