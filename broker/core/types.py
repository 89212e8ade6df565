"""The cluster's resource types, and what follows from them for every value that comes in."""

from collections.abc import Mapping

from xce.broker.core.ledger import AdmittedType
from xce.broker.core.location import Bounds
from xce.model.resource import Kind, ResourceType, types_digest
from xce.model.value import LARGEST_INTEGER


class Types:
    """All types in force: the built-in ones, the site's, and those that were admitted. The site's win."""

    def __init__(self, configured: Mapping[str, ResourceType], admitted: Mapping[str, AdmittedType]) -> None:
        declared = {name: one.type for name, one in admitted.items() if name not in configured}
        self.all: dict[str, ResourceType] = dict(sorted({**declared, **configured}.items()))
        self.list = list(self.all.values())
        self.digest = types_digest(self.list)
        self.ttls: dict[str, float] = {kind.name: kind.ttl for kind in self.list if kind.ttl is not None}
        """Seconds, of the types that have a time to live of their own."""
        self.bounds: dict[str, Bounds | None] = {name: bounds_of(kind) for name, kind in self.all.items()}


def bounds_of(kind: ResourceType) -> Bounds | None:
    """Within these a number needs no closer look; NaN and infinities are never within them.

    Integers that cannot travel lie outside, and the few floats that lie outside and are good are let in by
    the closer look. Booleans are all good. None for strings and sets.
    """
    if kind.kind is Kind.BOOLEAN:
        return False, True
    if kind.kind is not Kind.NUMERIC:
        return None
    low = -float(LARGEST_INTEGER) if kind.minimum is None else kind.minimum
    high = LARGEST_INTEGER if kind.maximum is None else kind.maximum
    return max(low, -LARGEST_INTEGER), min(high, LARGEST_INTEGER)
