"""What the broker wants done, as values: the server does it, the tests read it."""

from typing import TypeAlias

import msgspec

from xce.broker.core.ledger import Answered
from xce.broker.core.peer import Peer
from xce.model.fact import Fact


class Send(msgspec.Struct, frozen=True):
    """Send a document to a peer, in the encoding that it speaks."""

    peer: Peer
    document: msgspec.Struct


class SendBytes(msgspec.Struct, frozen=True):
    """Send what is encoded already."""

    peer: Peer
    data: bytes


class Persist(msgspec.Struct, frozen=True):
    """Make facts durable, all or none, and report with the ticket. Tickets are committed in order."""

    ticket: int
    facts: list[Fact]
    answer: Answered | None = None
    """The answer that an order has from now on; durable together with the facts, or alone."""


class CutOff(msgspec.Struct, frozen=True):
    """End a peer's connection; what was sent before should still arrive."""

    peer: Peer


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """One mutating call and what became of it: a line of the audit log, which has every key of this."""

    who: str
    """Name of the key that asked; '' for the broker itself."""
    role: str
    operation: str
    target: str = ""
    """What it was about, in words."""
    op_id: str = ""
    result: str = "ok"
    """`ok`, or the code of the refusal. `recovered`: it went well, and was made up of its facts later; then
    the operation is what the last of them is called in `export`, target and address are not known.
    """
    revision: int = 0
    """Of the last fact that it made; 0 for none."""
    address: str = ""


class Backup(msgspec.Struct, frozen=True):
    """Write a whole copy of the facts, and answer with its last revision."""

    peer: Peer
    request_id: str


class Note(msgspec.Struct, frozen=True):
    """Something for the log: the begin or the end of a fault, once each."""

    text: str
    fault: bool
    host: str = ""
    """Which host it is about."""


Effect: TypeAlias = Send | SendBytes | Persist | CutOff | Audit | Backup | Note
