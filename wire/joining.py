"""Becoming known to a broker with a token, and changing one's key later. Both may be broken off and repeated.

The new key is on disk before the broker hears of it, under a name of its own, and takes its place only when
the broker has accepted it. Whoever repeats a step that was broken off goes on with that key.
"""

import re
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

from xce.model.message import Done, Join, KeyRetire, KeyRotate
from xce.wire import ask, dealer, keys, token
from xce.wire.ask import Denied, NoAnswer
from xce.wire.dealer import LinkState
from xce.wire.keys import KeyFileError, KeyPair
from xce.wire.token import Token

PORT = 7400
HINTS = dealer.HINTS | {
    LinkState.REJECTED: "the token was used, has ended or was revoked: xce-broker token list",
    LinkState.WRONG_KEY: "the token is another broker's, or the broker's key was changed since it was made: "
    "make a new one there with xce-broker token new",
}
"""What to do about a broker that takes no token."""

Ask = Callable[[object, KeyPair, bytes], Done]
"""Puts a question with a key to the broker that has this public key."""


def endpoint_of(text: str) -> str:
    """A broker's address as it stands in a configuration, of HOST or HOST:PORT; raises ValueError."""
    host = text.removeprefix("tcp://")
    if not re.search(r":\d+$", host) or host.endswith("]"):
        host = f"{host}:{PORT}"
    name, _, port = host.rpartition(":")
    if not re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", name) or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is no address of a broker: HOST, HOST:PORT or [IPV6]:PORT")
    return f"tcp://{name}:{port}"


def token_of(path: str) -> Token:
    """The token in a file, or on standard input for `-`; raises ValueError that does not repeat it."""
    if path.startswith(token.PREFIX):
        raise ValueError("a token is wanted in a file, or on standard input: everybody sees a command line")
    try:
        text = sys.stdin.readline() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"cannot read the token {path}: {getattr(error, 'strerror', '') or error}"
        ) from error
    return token.parse(text)


def asking(endpoint: str, within_s: float) -> Ask:
    """The real one."""

    def put(question: object, key: KeyPair, broker: bytes) -> Done:
        return ask.ask(endpoint, question, key=key, broker_key=broker, within_s=within_s)  # type: ignore[arg-type]

    return put


def join(
    put: Ask,
    ticket: Token,
    name: str,
    role: str,
    path: Path,
    *,
    public: Path | None = None,
    configure: Callable[[], None] = lambda: None,
) -> None:
    """Make a key at `path` that the broker accepts for `name`; the broker's goes to `public`, or beside it.

    `configure` is called before the key is there: until then all of it may be repeated.
    Raises `Denied`, `NoAnswer`, `KeyFileError`, and what `configure` raises.
    """
    if path.exists():
        raise KeyFileError(
            f"cannot join: {path} exists: {name} has joined; start what uses it, or move it away to join anew"
        )
    pending = path.with_suffix(".joining")
    mine = _pending(pending, name, role, (name,) if role == "agent" else ())
    broker = _enter(put, ticket, mine)
    _save_public(broker, public or path.with_name("broker.pub"))
    configure()
    keys.replace(pending, path)


def _enter(put: Ask, ticket: Token, mine: KeyPair) -> bytes:
    """Has the broker accept our key; which of the token's keys is the broker's."""
    question = Join(id=_op_id(), name=mine.name, public=mine.public.decode())
    for broker in filter(None, (ticket.broker, ticket.following)):
        try:
            put(question, ticket.pair(), broker)
        except (Denied, NoAnswer) as failed:
            wrong = isinstance(failed, NoAnswer) and failed.state is LinkState.WRONG_KEY
            if wrong and broker != (ticket.following or ticket.broker):
                continue  # made during a change of the broker's key, and used after it
            if wrong or not _accepted(put, mine, broker):
                raise
        return broker
    raise ValueError("internal error: a token without the broker's key")


def rotate(put: Ask, path: Path, broker: bytes) -> KeyPair:
    """Put a new key in the place of the one at `path`; both are accepted until `retire`. The new one."""
    old = keys.load(path, secret=True)
    pending = path.with_suffix(".next")
    mine = _pending(pending, old.name, old.role, old.hosts)
    try:
        put(KeyRotate(id=_op_id(), public=mine.public.decode()), old, broker)
    except (Denied, NoAnswer):
        if not _accepted(put, mine, broker, retire=False):
            raise
    keys.replace(pending, path)
    return mine


def retire(put: Ask, key: KeyPair, broker: bytes) -> None:
    """Have the broker accept no other key of this name any more."""
    put(KeyRetire(id=_op_id()), key, broker)


def _pending(path: Path, name: str, role: str, hosts: tuple[str, ...]) -> KeyPair:
    """The key of an attempt for this name that was broken off, or a new one."""
    if path.exists():
        left = keys.load(path, secret=True)
        if (left.name, left.role, left.hosts) == (name, role, hosts):
            return left
        path.unlink()
    pair = keys.new(name, role, hosts)
    keys.save(pair, path)
    return pair


def _accepted(put: Ask, mine: KeyPair, broker: bytes, *, retire: bool = True) -> bool:
    """Whether an earlier attempt got through: the broker knows this key already."""
    question = KeyRetire(id=_op_id()) if retire else KeyRotate(id=_op_id(), public=mine.public.decode())
    try:
        put(question, mine, broker)
    except Denied:
        return True  # it was let in to be told so
    except NoAnswer as failed:
        if failed.state is LinkState.REJECTED:
            return False
        raise
    return True


def _save_public(broker: bytes, path: Path) -> None:
    """The broker's public key, as the token pins it."""
    if path.exists():
        if keys.load(path, secret=False).public != broker:
            raise KeyFileError(f"cannot join: {path} holds another broker's key than the token; move it away")
        return
    keys.save(KeyPair("broker", "broker", broker), path)


def _op_id() -> str:
    return secrets.token_hex(8)
