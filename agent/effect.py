"""What the agent's core wants done, as values: the link and the daemon do it, the tests read it."""

from typing import TypeAlias

import msgspec

from xce.model.message import BindingPrepare, BindingRelease, Failed, Mine
from xce.model.resource import ResourceType


class Open(msgspec.Struct, frozen=True):
    """Make a socket that spreads its attempts over so many seconds."""

    spread_s: float


class Close(msgspec.Struct, frozen=True):
    """Drop the socket."""


class Send(msgspec.Struct, frozen=True):
    """Send a message; when that fails, say so (`Core.unsent`)."""

    message: msgspec.Struct


class Learn(msgspec.Struct, frozen=True):
    """The cluster's types, whole: work by them from now on."""

    types: list[ResourceType]


class Judge(msgspec.Struct, frozen=True):
    """What became of declared types: name to '' or the reason for refusing it."""

    types: dict[str, str]


class Deliver(msgspec.Struct, frozen=True):
    """An answer to a question that was put with `ask`."""

    answer: Mine | Failed


class Shown(msgspec.Struct, frozen=True):
    """What the broker says of us has changed (`Core.standing`)."""


class Ordered(msgspec.Struct, frozen=True):
    """The broker has given an order about a binding."""

    order: BindingPrepare | BindingRelease


Effect: TypeAlias = Open | Close | Send | Learn | Judge | Deliver | Shown | Ordered
