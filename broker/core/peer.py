"""A connected peer: who it is and what it follows. Volatile; ends with its connection."""

from typing import TYPE_CHECKING

from xce.model.role import Role

if TYPE_CHECKING:
    from xce.broker.core.changes import Watch
    from xce.broker.core.external import External
    from xce.broker.core.location import Host

NOTHING: frozenset[type] = frozenset()


class Peer:
    """One connection. `routing_id` is the wire's name for it and means nothing here."""

    __slots__ = (
        "address",
        "allowed",
        "asked_again",
        "cut",
        "host",
        "identity",
        "json",
        "key",
        "name",
        "role",
        "routing_id",
        "scolded",
        "sequence",
        "since",
        "title",
        "told_key",
        "told_spread",
        "uid",
        "watches",
    )

    def __init__(self, routing_id: bytes, *, key: str, address: str, uid: int = -1, now: float = 0) -> None:
        self.routing_id = routing_id
        self.key = key
        """Public key (Z85) that its connection was made with; '' on the local socket."""
        self.address, self.uid, self.since = address, uid, now
        self.json = False
        """Its last message was JSON: answer in kind."""
        self.role: Role | None = None
        self.name = ""
        self.title = "nobody:"
        """`ROLE:NAME`, as it owns holds and stands in the audit."""
        self.allowed: frozenset[type] = NOTHING
        """Classes of messages that its role may send now."""
        self.host: Host | None = None
        """Of an agent after its hello was accepted."""
        self.identity: External | None = None
        """Of an external reporter after its hello was accepted."""
        self.sequence = 0
        """Of its last tick."""
        self.asked_again = 0.0
        """When it was last asked to send everything; 0: everything has come since."""
        self.scolded = 0.0
        """When it was last told that it does something wrong."""
        self.told_key = ""
        """The broker's next key, as it has heard of it."""
        self.told_spread = 0
        """Over how long it is to spread its return, as it has heard."""
        self.watches: dict[str, Watch] = {}
        self.cut = False

    def be(self, role: Role, name: str) -> None:
        """From now on it is known as this."""
        self.role, self.name, self.title = role, name, f"{role.value}:{name}"
