"""One machine's instances as those of many hosts: what is unique is another on each host. Pure."""

import hashlib
import re
from collections.abc import Sequence

import msgspec

from xce.model.instance import Instance
from xce.model.value import Value

_OWN = re.compile(r"(GPU|MIG)-")
_SINGULAR = frozenset({"serial", "chassis", "fabric_guid", "node_guid", "system_guid", "mac"})
"""Attributes that no two machines share; a copy has none."""


def of_host(instances: Sequence[Instance], host: str) -> list[Instance]:
    """The instances as `host` would have them: ids of its own, and PCI addresses as they are."""
    return [
        msgspec.structs.replace(
            one,
            id=_id(one.id, host),
            parent=_id(one.parent, host),
            attributes=_attributes(one.attributes, host),
        )
        for one in instances
    ]


def _attributes(attributes: dict[str, Value], host: str) -> dict[str, Value]:
    kept = {name: value for name, value in attributes.items() if name not in _SINGULAR}
    peers = kept.get("link_peers")
    if isinstance(peers, list):
        kept["link_peers"] = [_id(peer, host) for peer in peers]
    return kept


def _id(identifier: str, host: str) -> str:
    """A UUID made of the host and the id; what stands behind it (`=18`, `/1`) stays."""
    if not _OWN.match(identifier):
        return identifier
    end = min((at for at in map(identifier.find, "=/") if at >= 0), default=len(identifier))
    digits = hashlib.blake2b(f"{host} {identifier[:end]}".encode(), digest_size=16).hexdigest()
    uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return f"{identifier[:4]}{uuid}{identifier[end:]}"
