"""Snapshots as a client takes them: what only people look at stays bytes until somebody looks.

States of reporters, and what is known about a location, are half of a snapshot's objects, and whoever places
jobs reads none of them; types mostly are the same as before. Until they are read they cost no time, and less
memory than what they say. Everything else is decoded at once. msgspec writes such bytes as they are, so that
a view has to be made `whole` before it is written as JSON.
"""

from typing import Any, Union

import msgspec

from xce.model.message import FromBroker, LocationView, ReporterState, SnapshotBegin, SnapshotPart
from xce.model.resource import ResourceType
from xce.wire import codec

_NOTHING = msgspec.Raw(b"\x80")
"""An empty map in MessagePack."""
_JSON = (b"{", b"[")
"""How a map or a list begins in JSON, and neither does in MessagePack."""


class _Undecoded(LocationView, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The same fields, two of which are left as they came."""

    reporters: msgspec.Raw = _NOTHING  # type: ignore[assignment]
    about: msgspec.Raw = _NOTHING  # type: ignore[assignment]


def _read_late(name: str, kind: Any) -> Any:
    """A property that hides the field of this name and decodes it when it is read first."""
    place: Any = vars(LocationView)[name]

    def read(view: LocationView) -> Any:
        held = place.__get__(view)
        if held.__class__ is msgspec.Raw:
            held = _decoded(held, kind)
            place.__set__(view, held)
        return held

    return property(read)


class ArrivedView(_Undecoded, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A `LocationView` for all who read it. To be encoded it is made `whole`."""

    reporters = _read_late("reporters", dict[str, ReporterState])
    about = _read_late("about", dict[str, str])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LocationView):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__struct_fields__)

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)  # a struct's own would compare the bytes
        return equal if equal is NotImplemented else not equal

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(whole(self))


class _ArrivedPart(SnapshotPart, frozen=True, kw_only=True, tag="snapshot.part"):
    locations: dict[str, ArrivedView] = {}  # type: ignore[assignment]


class _ArrivedBegin(SnapshotBegin, frozen=True, kw_only=True, tag="snapshot.begin"):
    types: msgspec.Raw  # type: ignore[assignment]


_ARRIVED: dict[type, type] = {SnapshotBegin: _ArrivedBegin, SnapshotPart: _ArrivedPart}
decode = codec.reader_of(Union[tuple(_ARRIVED.get(kind, kind) for kind in FromBroker.__args__)])  # noqa: UP007
"""What the broker says to a client, in either encoding; raises `CodecError`."""


def whole(view: LocationView) -> LocationView:
    """The same with nothing left undecoded."""
    if isinstance(view, ArrivedView):
        return LocationView(**{name: getattr(view, name) for name in view.__struct_fields__})
    return view


def types_of(begin: SnapshotBegin) -> list[ResourceType]:
    """The types of a snapshot."""
    types: Any = begin.types
    if types.__class__ is msgspec.Raw:
        types = _decoded(types, list[ResourceType])
    return types  # type: ignore[no-any-return]


def _decoded(raw: msgspec.Raw, kind: Any) -> Any:
    """What these bytes say; raises `CodecError`."""
    read = msgspec.json.decode if memoryview(raw)[:1] in _JSON else msgspec.msgpack.decode
    try:
        return read(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise codec.CodecError(f"cannot read a part of a snapshot: {error}") from error
