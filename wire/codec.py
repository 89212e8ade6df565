"""Bytes to messages and back, and nothing else: no socket, no meaning, no state.

The first byte tells the three forms apart: `{` is a JSON document, the head of a MessagePack array a tick,
everything else a MessagePack document. Whatever the bytes are, decoding gives a message or raises
`CodecError`.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from xce.model.message import (
    DOCUMENT_BYTES,
    TICK_BYTES,
    FeedTick,
    FromBroker,
    Heartbeat,
    Report,
    Tick,
    ToBroker,
)
from xce.model.value import LARGEST_INTEGER

_BRACE = 0x7B
_ARRAYS = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
"""Heads of MessagePack arrays (specification, "array format family")."""

LARGE = 1 << 15
"""Bytes of a message that is decoded without the collector."""

_REFUSALS = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, MemoryError)

Plain = Annotated[int, Meta(ge=0, le=LARGEST_INTEGER)] | Annotated[float, Meta(ge=0, le=sys.float_info.max)]
"""A number that is finite, not below 0, and can travel: what nearly all values are."""


class PlainFeed(FeedTick, frozen=True, array_like=True, gc=False):
    """A `FeedTick` of nothing but plain numbers: the decoder has checked each, in a tenth of the time."""

    # Narrower than its base on purpose: what is decoded is only read.
    values: dict[str, Plain] = {}  # type: ignore[assignment]


class PlainReport(Report, frozen=True, array_like=True, tag="r", gc=False):
    """A `Report` of nothing but plain numbers."""

    feeds: list[PlainFeed]  # type: ignore[assignment]
    full: bool = False


_plain_tick = msgspec.msgpack.Decoder(PlainReport | Heartbeat).decode
_tick = msgspec.msgpack.Decoder(Tick).decode
_to_broker = msgspec.msgpack.Decoder(ToBroker).decode
_to_broker_json = msgspec.json.Decoder(ToBroker).decode
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


class _Identified(msgspec.Struct):
    id: str = ""


_id = msgspec.msgpack.Decoder(_Identified).decode
_id_json = msgspec.json.Decoder(_Identified).decode


class CodecError(Exception):
    """Bytes that are no message, or a message that has no bytes; `reason` says why in a few words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def is_json(data: bytes) -> bool:
    """Whether the sender speaks JSON and should be answered in it."""
    return data[:1] == b"{"


def request_id(data: bytes) -> str:
    """The `id` of a message that is otherwise wrong, so that its sender learns which; '' without one."""
    try:
        return (_id_json(data) if data[:1] == b"{" else _id(data)).id[:128]
    except _REFUSALS:
        return ""


def encode(message: msgspec.Struct) -> bytes:
    """The MessagePack form of a tick or document; raises `CodecError` for what has none (lone surrogates)."""
    try:
        return _encode(message)
    except _REFUSALS as error:
        raise CodecError(f"cannot encode {type(message).__name__}: {error}") from error


def encode_json(document: msgspec.Struct) -> bytes:
    """The JSON form of a document; ticks have none."""
    if isinstance(document, Report | Heartbeat):
        raise CodecError(f"cannot encode {type(document).__name__} as JSON: ticks are MessagePack only")
    try:
        return _encode_json(document)
    except _REFUSALS as error:
        raise CodecError(f"cannot encode {type(document).__name__}: {error}") from error


def decode_for_broker(data: bytes) -> Tick | ToBroker:
    """What a peer says to the broker; raises `CodecError`."""
    if data and data[0] in _ARRAYS and len(data) <= TICK_BYTES:
        try:
            return _plain_tick(data)
        except _REFUSALS:
            pass
    return _any_for_broker(data)


def _any_for_broker(data: bytes) -> Tick | ToBroker:
    """The same for what is not a tick of plain numbers."""
    head = data[0] if data else 0
    size = len(data)
    try:
        if head in _ARRAYS:
            if size > TICK_BYTES:
                raise CodecError(f"tick of {size} bytes, more than {TICK_BYTES}")
            return _tick(data)
        if size > DOCUMENT_BYTES:
            raise CodecError(f"document of {size} bytes, more than {DOCUMENT_BYTES}")
        if head == _BRACE:
            return _to_broker_json(data)
        return _to_broker(data)
    except _REFUSALS as error:
        raise CodecError(str(error) or type(error).__name__) from error


def reader_of(kind: Any) -> Callable[[bytes | memoryview], Any]:
    """A function that decodes documents of this type in either encoding, and raises `CodecError`."""
    packed, text = msgspec.msgpack.Decoder(kind).decode, msgspec.json.Decoder(kind).decode

    def decode(data: bytes | memoryview) -> Any:
        large = len(data) > LARGE and gc.isenabled()
        if large:
            gc.disable()  # as in `without_collector`, which takes as long as a small message
        try:
            return text(data) if data[:1] == b"{" else packed(data)
        except _REFUSALS as error:
            raise CodecError(str(error) or type(error).__name__) from error
        finally:
            if large:
                gc.enable()

    return decode


@contextmanager
def without_collector() -> Iterator[None]:
    """What comes is many new objects and no garbage: looking for some takes longer than decoding."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


decode_from_broker: Callable[[bytes | memoryview], FromBroker] = reader_of(FromBroker)
"""What the broker says to a peer; raises `CodecError`."""
