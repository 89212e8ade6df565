"""The life of an agent's link to the broker, as a table. `agent/core.py` walks it; sockets are in `wire/`."""

from enum import StrEnum

from xce.model.transition import Machine


class Phase(StrEnum):
    """How far an agent and its broker have come with each other."""

    DISCONNECTED = "disconnected"
    """No socket; the next attempt has a time."""
    CONNECTING = "connecting"
    """A socket is open, and the broker cannot be talked to (yet, or again)."""
    GREETING = "greeting"
    """Hello is said; no answer so far."""
    SYNCED = "synced"
    """Welcomed: the broker's copy follows the node's table."""
    REFUSED = "refused"
    """The broker said no, and when to ask again."""
    SILENT = "silent"
    """The broker stopped answering; the socket is dropped, the next attempt has a time."""


class PhaseEvent(StrEnum):
    """What moves a link on."""

    OPENED = "opened"
    """A socket was made."""
    GREETED = "greeted"
    """The broker can be reached; hello was sent."""
    WELCOMED = "welcomed"
    """The broker serves us."""
    REFUSED = "refused"
    """The broker will not serve us (now)."""
    LOST = "lost"
    """The connection is gone; the socket tries again by itself."""
    UNANSWERED = "unanswered"
    """No answer to hello, or no pulse, for too long."""
    CLOSED = "closed"
    """The socket was given up: it will not try again, or another broker is meant."""


_P, _E = Phase, PhaseEvent
_OPEN = (_P.CONNECTING, _P.GREETING, _P.SYNCED, _P.REFUSED)

LINK = Machine(
    "link",
    Phase.DISCONNECTED,
    {
        (_P.DISCONNECTED, _E.OPENED): _P.CONNECTING,
        (_P.SILENT, _E.OPENED): _P.CONNECTING,
        (_P.CONNECTING, _E.GREETED): _P.GREETING,
        (_P.REFUSED, _E.GREETED): _P.GREETING,
        (_P.GREETING, _E.WELCOMED): _P.SYNCED,
        (_P.GREETING, _E.REFUSED): _P.REFUSED,
        (_P.SYNCED, _E.REFUSED): _P.REFUSED,
        (_P.GREETING, _E.UNANSWERED): _P.SILENT,
        (_P.SYNCED, _E.UNANSWERED): _P.SILENT,
        **{(phase, _E.LOST): _P.CONNECTING for phase in _OPEN},
        **{(phase, _E.CLOSED): _P.DISCONNECTED for phase in Phase},
    },
    final=frozenset(),
)
