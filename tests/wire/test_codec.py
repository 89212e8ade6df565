"""Bytes to messages and back: every message survives both encodings, and no bytes do anything but fail."""

import contextlib
import types
import typing
from enum import Enum
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xce.model import message
from xce.model.instance import Instance, Inventory
from xce.model.resource import Kind, ResourceType
from xce.model.value import Absent, Count, Presence
from xce.wire import codec

PAYLOADS: list[type[msgspec.Struct]] = [
    *typing.get_args(message.Tick),
    *typing.get_args(message.ToBroker),
    *typing.get_args(message.FromBroker),
]

_finite = st.floats(allow_nan=False, allow_infinity=False)
"""JSON has no others, and no value is let in that is not finite."""
_values = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), _finite, st.text())
_instances = st.builds(Instance, id=st.from_regex(r"[a-z]{1,9}", fullmatch=True), kind=st.just("gpu"))
STRICT: dict[Any, st.SearchStrategy[Any]] = {
    Instance: _instances,
    Inventory: st.builds(
        Inventory,
        reporter=st.text(),
        generation=st.integers(0, 99),
        complete=st.booleans(),
        instances=st.lists(_instances, max_size=3, unique_by=lambda instance: instance.id),
    ),
    ResourceType: st.builds(
        ResourceType,
        name=st.from_regex(r"[a-z]{1,9}", fullmatch=True),
        kind=st.sampled_from(Kind),
        description=st.text(max_size=99),
    ),
    Absent: st.builds(Absent, st.sampled_from(Presence), cause=st.text(), last=st.none() | _values),
    Count: st.integers(0, 2**53),
    int: st.integers(-(2**63), 2**63 - 1),
    float: _finite,
    str: st.text(max_size=8),
    bool: st.booleans(),
    type(None): st.none(),
}
"""Structs whose constructor checks more than the types of its fields, and the leaves."""


def anything(kind: Any) -> st.SearchStrategy[Any]:
    """Every value that a field of this type may have."""
    if kind in STRICT:
        return STRICT[kind]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return st.lists(anything(inner[0]), max_size=2)
    if origin is tuple:
        return st.tuples(*map(anything, inner))
    if origin is dict:
        return st.dictionaries(anything(inner[0]), anything(inner[1]), max_size=2)
    if origin in {typing.Union, types.UnionType}:
        return st.one_of([anything(one) for one in inner])
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    return st.builds(kind, **{field.name: anything(field.type) for field in msgspec.structs.fields(kind)})


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: payload.__name__)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_every_message_survives_both_encodings(payload: type[msgspec.Struct], data: st.DataObject) -> None:
    original = data.draw(anything(payload))
    for_broker = payload in typing.get_args(message.Tick) or payload in typing.get_args(message.ToBroker)
    decode = codec.decode_for_broker if for_broker else codec.decode_from_broker
    decoded = decode(codec.encode(original))
    if payload in typing.get_args(message.Tick):
        # A report may come back as the codec's own kind of it.
        assert isinstance(decoded, payload)
        assert msgspec.to_builtins(decoded) == msgspec.to_builtins(original)
    else:
        assert decoded == original
        assert decode(codec.encode_json(original)) == original


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_no_bytes_raise_anything_but_codec_error(data: bytes) -> None:
    for decode in (codec.decode_for_broker, codec.decode_from_broker):
        with contextlib.suppress(codec.CodecError):
            decode(data)


@given(data=st.data(), payload=st.sampled_from(PAYLOADS))
@settings(max_examples=300, deadline=None)
def test_no_damaged_message_raises_anything_but_codec_error(
    data: st.DataObject, payload: type[msgspec.Struct]
) -> None:
    whole = bytearray(codec.encode(data.draw(anything(payload))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    for decode in (codec.decode_for_broker, codec.decode_from_broker):
        with contextlib.suppress(codec.CodecError):
            decode(damaged)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (b"{}", "type"),
        (b"\x91" * 100_000, "Expected"),
        (b'{"type":"hello","protocol":' + b"[" * 100_000, "Expected"),
        (b"\x93\xa1r\x01\xdd\xff\xff\xff\xff", "truncated"),
        (b"\x93" + b"\x00" * message.TICK_BYTES, "tick of 1048577 bytes, more than 1048576"),
        (b"\x85" + b"\x00" * message.DOCUMENT_BYTES, "document of 4194305 bytes, more than 4194304"),
        (b'{"type":"nonsense"}', "nonsense"),
        (b"\x81\xa4type\xa5hello", "missing"),
        (
            b'{"type":"reporters","reporters":{"a":{"state":"running","runs":99999999999999999999}}}',
            "<= 9007",
        ),
        (b"\x93\xa1r\x01\x91\x94\xa1a\x01\xff\x80", ">= 0"),  # of an age that is not over yet
    ],
)
def test_rubbish_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(codec.CodecError, match=reason):
        codec.decode_for_broker(data)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (0, True),
        (2.5, True),
        (2**63 - 1, True),
        (1.7e308, True),
        (2**63, False),
        (-1, False),
        (-0.5, False),
        (float("inf"), False),
        (True, False),
        ("text", False),
        (["a"], False),
        (None, False),
        (Absent(Presence.UNKNOWN), False),
    ],
)
def test_plain_numbers_are_told_from_everything_else(value: Any, plain: bool) -> None:
    """What is `PlainFeed` needs no closer look: NaN, too large an integer or a boolean never is."""
    report = message.Report(1, [message.FeedTick("probe", 1, 0, {"good": 1.5, "other": value})])
    decoded = codec.decode_for_broker(codec.encode(report))
    assert isinstance(decoded, message.Report)
    assert isinstance(decoded.feeds[0], codec.PlainFeed) == plain
    assert decoded.feeds[0].values == {"good": 1.5, "other": value}
    assert type(decoded.feeds[0].values["other"]) is type(value)


def test_not_a_number_is_no_plain_number() -> None:
    report = message.Report(1, [message.FeedTick("probe", 1, 0, {"other": float("nan")})])
    decoded = codec.decode_for_broker(codec.encode(report))
    assert isinstance(decoded, message.Report)
    assert not isinstance(decoded.feeds[0], codec.PlainFeed)


def test_a_newer_peers_fields_are_ignored() -> None:
    request = codec.decode_for_broker(b'{"type":"status","id":"1","from_the_future":[1,2]}')
    assert request == message.StatusRequest(id="1")


def test_a_report_of_twenty_values_is_small() -> None:
    feed = message.FeedTick("nodeinfo", 1234, 150, {f"value{number:02}": number for number in range(20)})
    assert len(codec.encode(message.Report(17, [feed]))) < 340


def test_lone_surrogates_have_no_bytes() -> None:
    with pytest.raises(codec.CodecError, match="cannot encode"):
        codec.encode(message.StatusRequest(id="\ud800"))


def test_ticks_have_no_json_form() -> None:
    with pytest.raises(codec.CodecError, match="MessagePack only"):
        codec.encode_json(message.Heartbeat(1, {}))
