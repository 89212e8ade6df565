"""The client's half of the protocol, without sockets, clocks or waiting.

A *conversation* is one thing that a client wants: an answer (`Question`), a snapshot (`Taking`), or to follow
the map (`follow.Follow`). It says what to send, takes the answers to the ids it waits for, and survives a
lost link: when the link is back it asks again, orders with the same id, so that nothing is done twice.
`client.py` and `client_async.py` are the two shells that move the bytes.
"""

import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec

from xce.broker.mirror import Mirror, OutOfStep
from xce.model.instance import Inventory
from xce.model.message import (
    Answer,
    Delta,
    Failed,
    Order,
    Read,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRequest,
)

Request: TypeAlias = Read | Order


class BrokerError(Exception):
    """What a user of the client catches: the broker has refused, or cannot be reached."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class BrokerRefused(BrokerError):
    """The broker has answered no. Nothing has changed. `code` is one of the protocol's."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


class BrokerUnreachable(BrokerError):
    """No answer in time, or no link that could carry one; the message says what is known of the link."""


def op_id() -> str:
    """A fresh id for a request."""
    return secrets.token_hex(8)


# ------------------------------------------------------------------------------------------------ events


@dataclass(frozen=True)
class Fresh:
    """A new mirror has replaced the old one."""

    mirror: Mirror
    reason: str
    """'' for the first one, otherwise why the stream could not go on."""


@dataclass(frozen=True)
class Changed:
    """The mirror has taken a delta."""

    delta: Delta


@dataclass(frozen=True)
class Bodies:
    """The mirror has taken bodies of inventories."""

    bodies: dict[str, dict[str, Inventory]]


@dataclass(frozen=True)
class LinkNews:
    """The link came up or went down, in words. While it is down the mirror grows old."""

    up: bool
    text: str


Event: TypeAlias = Fresh | Changed | Bodies | LinkNews


# ----------------------------------------------------------------------------------------- conversations


class Conversation(Protocol):
    """One thing that a client wants from the broker."""

    to_send: list[Request]
    """What is to be sent next; the shell empties it."""

    def waits_for(self) -> Collection[str]:
        """Ids of requests whose answers it wants."""

    def take(self, answer: Answer) -> None:
        """An answer to one of those has come."""

    def link(self, news: LinkNews) -> None:
        """The link came up (ask again) or went down."""

    def tick(self, now: float) -> None:
        """Time passes; `now` is the shell's monotonic clock, in seconds."""


class Ending(Conversation, Protocol):
    """A conversation that comes to an end."""

    @property
    def done(self) -> bool:
        """Whether it is over."""


class Question:
    """One request with one answer. An order keeps its id, so that asking again does nothing twice."""

    def __init__(self, request: Request) -> None:
        self.request = request if request.id else msgspec.structs.replace(request, id=op_id())
        self.to_send: list[Request] = []
        self.answer: Answer | None = None

    @property
    def done(self) -> bool:
        """Whether there is an answer."""
        return self.answer is not None

    def waits_for(self) -> Collection[str]:
        """The request's id, until it is answered."""
        return () if self.done else (self.request.id,)

    def take(self, answer: Answer) -> None:
        """Keep the answer."""
        self.answer = answer

    def link(self, news: LinkNews) -> None:
        """Ask, or ask again."""
        self.to_send[:] = [self.request] if news.up and not self.done else []

    def tick(self, now: float) -> None:
        """Nothing: the caller's deadline bounds a question."""


class Taking:
    """A snapshot being taken. Each attempt has an id of its own, so that two are never mixed."""

    def __init__(
        self,
        only: Iterable[str] = (),
        *,
        detail: bool = False,
        older: Mirror | None = None,
        to_send: list[Request] | None = None,
    ) -> None:
        self._only, self._detail, self._older = list(only), detail, older
        self.to_send: list[Request] = [] if to_send is None else to_send
        self.failed: Failed | None = None
        self.mirror: Mirror | None = None
        self._id = ""

    @property
    def done(self) -> bool:
        """Whether it is complete, or has failed."""
        return self.failed is not None or (self.mirror is not None and self.mirror.complete)

    def waits_for(self) -> Collection[str]:
        """The id of the newest attempt."""
        return () if self.done else (self._id,)

    def ask(self) -> None:
        """Start, or start again."""
        self._id, self.mirror, self.failed = op_id(), None, None
        self.to_send.append(SnapshotRequest(id=self._id, only=self._only, detail=self._detail))

    def take(self, answer: Answer) -> None:
        """Put the parts together; begin anew if one is missing."""
        try:
            match answer:
                case SnapshotBegin():
                    self.mirror = Mirror(answer, older=self._older)
                case SnapshotPart() if self.mirror is not None:
                    self.mirror.part(answer)
                case SnapshotEnd() if self.mirror is not None:
                    self.mirror.end(answer)
                case Failed():
                    self.failed = answer
                case _:
                    raise OutOfStep(f"{type(answer).__name__} before the snapshot's begin")
        except OutOfStep:
            self.ask()

    def link(self, news: LinkNews) -> None:
        """Start again on a new link."""
        self.to_send.clear()
        if news.up and not self.done:
            self.ask()

    def tick(self, now: float) -> None:
        """Nothing: the caller's deadline bounds it."""
