"""What an order is judged against, and how it is refused: shared by `orders.py` and `claim_orders.py`."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from xce.broker.core.ledger import Ledger
from xce.broker.core.location import Host
from xce.model.instance import Instance
from xce.model.resource import ResourceType
from xce.model.schema import nearest
from xce.model.site import Site
from xce.model.supply import NAME_BYTES, LocationKind

REASON = 1024
"""Characters of a reason."""
LONGEST = NAME_BYTES + 16
"""Characters of a location's key that are looked at to find what is like it."""
_DECLARED = {
    LocationKind.POOL.value: "declare it under 'pools:' in resources.yaml",
    LocationKind.GROUP.value: "declare it under 'groups:' in hosts.yaml",
}
"""Where locations come from that are there by a site's files alone."""


class Refusal(Exception):
    """An order is refused; the parts of `Failed`."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


class Situation(msgspec.Struct, kw_only=True):
    """What an order is judged against. What may be another one for the next order is replaced in it."""

    ledger: Ledger
    site: Site
    types: Mapping[str, ResourceType]
    present: Mapping[str, object]
    """Keys of all locations in the map."""
    own_key: str
    """The broker's own public key."""
    wall: Callable[[], str]
    """Wall time, for showing."""
    hosts: Mapping[str, Host]
    settled: Callable[[str], bool]
    """Whether a host's agent has said which bindings it has, on the connection that it has now."""
    inventory: Callable[[Host, str], Mapping[str, Instance]]
    """The instances of a host's reporter, by id."""
    epoch: int


def check_reason(reason: str, what: str) -> None:
    """Raise `Refusal` for a reason that people could not read."""
    if not reason.strip():
        raise Refusal("invalid", f"cannot {what}: give a reason, people will read it")
    if len(reason) > REASON or not reason.isprintable():
        raise Refusal("invalid", f"cannot {what}: the reason must be one printable line of at most {REASON}")


def way_to(key: str, present: Iterable[str]) -> str:
    """What to do about a location that is not there; '' where there is nothing to say."""
    kind, colon, name = key[:LONGEST].partition(":")
    if kind not in _DECLARED:
        return ""
    known = [other.removeprefix(kind + colon) for other in present if other.startswith(kind + colon)]
    return nearest(name, known) or _DECLARED[kind]
