"""Join tokens: one line that a new peer needs to become known. Whoever has it can join once: it is a secret.

It holds the broker's public key, so that nobody else can play the broker to a new host, and the secret key of
a pair whose public half the broker accepts for joining alone.
"""

import base64
import binascii

import msgspec
import zmq

from xce.model.role import Role
from xce.wire import keys
from xce.wire.keys import KeyPair

PREFIX = "xce1:"


class Token(msgspec.Struct, frozen=True):
    """What a token says. The secret is left out of its repr."""

    name: str
    secret: bytes
    """Z85."""
    broker: bytes
    """The broker's public key, Z85."""
    following: bytes = b""
    """The one that it will have soon, if it has announced one when the token was made."""

    def __repr__(self) -> str:
        """Without the secret."""
        return f"Token(name={self.name!r}, broker={self.broker!r})"

    def pair(self) -> KeyPair:
        """The pair to connect with."""
        return KeyPair(self.name, Role.JOINER, zmq.curve_public(self.secret), self.secret)


def text_of(token: Token) -> str:
    """As one line."""
    following = (token.following.decode(),) if token.following else ()
    data = msgspec.msgpack.encode((token.name, token.secret.decode(), token.broker.decode(), *following))
    return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def parse(text: str) -> Token:
    """The token in a line; raises ValueError that does not repeat it."""
    line = text.strip()
    try:
        data = base64.urlsafe_b64decode(
            line.removeprefix(PREFIX) + "=" * (-len(line.removeprefix(PREFIX)) % 4)
        )
        name, secret, *brokers = msgspec.msgpack.decode(data, type=list[str])
    except (binascii.Error, msgspec.DecodeError, ValueError):
        name, secret, brokers = "", "", []
    fit = len(brokers) in {1, 2} and all(keys.is_public(one) for one in (secret, *brokers))
    if not line.startswith(PREFIX) or not fit:
        raise ValueError(f"this is no token: a token is one line that begins with {PREFIX}")
    return Token(name, secret.encode(), *(one.encode() for one in brokers))
