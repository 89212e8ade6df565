"""What is said to a plugin of a volume beside its id: mount flags and contexts. Pure.

It comes from the profile and, over that, from the claim's provider, and nobody knows how secret it is. So
steps have only a digest of it: the profile is looked up again when a call is made, and a provider's words are
kept in memory and asked for again after a restart. They are one flat map:

    volume_id · capacity_bytes            of the volume that it has made
    volume_context/KEY                    what its controller said when it was made
    publish_context/KEY                   when it was attached, to any node
    publish_context@HOST/KEY              when it was attached to this host

with `MOUNT/` in front where a claim mounts several volumes of plugins; everything else is the provider's own.
"""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from xce.model.profile import Volume

_DIGITS = 18
"""Of a size: the protocol's numbers have no more."""
ID, CAPACITY, VOLUME, PUBLISH = "volume_id", "capacity_bytes", "volume_context", "publish_context"


class Words(NamedTuple):
    """A provider's words about one volume."""

    id: str = ""
    bytes: int = 0
    context: Mapping[str, str] = {}
    publish_context: Mapping[str, str] = {}


class Said(NamedTuple):
    """What the plugin is told."""

    flags: list[str]
    context: dict[str, str]
    publish_context: dict[str, str]

    def digest(self) -> str:
        """Changes with any of it."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:32]


def of(words: Mapping[str, str], *, mount: str, host: str, only: bool) -> Words:
    """What a provider says of one volume; `only`: the claim mounts no other volume of plugins."""
    mine = {key.removeprefix(f"{mount}/"): one for key, one in words.items() if key.startswith(f"{mount}/")}
    if only:
        mine = {**words, **mine}
    size = mine.get(CAPACITY, "")
    return Words(
        id=mine.get(ID, ""),
        bytes=int(size) if size.isascii() and size.isdecimal() and len(size) <= _DIGITS else 0,
        context=_below(mine, VOLUME),
        publish_context={**_below(mine, PUBLISH), **_below(mine, f"{PUBLISH}@{host}")},
    )


def said(volume: Volume, words: Words) -> Said:
    """The profile's words, and over them the provider's."""
    csi = volume.csi
    assert csi is not None, "internal error: no volume of a plugin"
    return Said(
        flags=list(volume.options),
        context={**csi.context, **words.context},
        publish_context={**csi.publish_context, **words.publish_context},
    )


def _below(words: Mapping[str, str], head: str) -> dict[str, str]:
    return {key.removeprefix(f"{head}/"): one for key, one in words.items() if key.startswith(f"{head}/")}
