"""Views of a snapshot whose details are decoded when they are read first."""

from typing import Any

import msgspec
import pytest

from xce.broker import arrived
from xce.broker.mirror import Mirror, changed_view
from xce.model.message import (
    LocationChange,
    LocationView,
    Position,
    Pulse,
    Quality,
    ReporterState,
    SnapshotBegin,
    SnapshotPart,
)
from xce.model.resource import Kind, ResourceType
from xce.model.supply import Source
from xce.wire import codec

ENCODINGS = [codec.encode, codec.encode_json]
VIEW = LocationView(
    source=Source.CONFIG,
    state="available",
    values={"mem": 812},
    reporters={"site": ReporterState(state="failed", cause="no licence")},
    about={"address": "at 10.0.0.7"},
)
BARE = LocationView(source=Source.DISCOVERED, state="joining")


def arriving(view: LocationView, encode: Any = codec.encode) -> LocationView:
    part = arrived.decode(encode(SnapshotPart(id="s", part=0, locations={"host:a": view})))
    assert isinstance(part, SnapshotPart)
    return part.locations["host:a"]


@pytest.mark.parametrize("encode", ENCODINGS)
@pytest.mark.parametrize("view", [VIEW, BARE])
def test_a_view_that_arrived_says_the_same_as_any_other(view: LocationView, encode: Any) -> None:
    for seen in (arriving(view, encode), arriving(view, encode)):
        assert (seen.values, seen.reporters, seen.about) == (view.values, view.reporters, view.about)
        assert seen.reporters is seen.reporters, "it is decoded once"
    assert arriving(view, encode) == view
    assert view == arriving(view, encode) == arriving(view, encode)
    assert not view != arriving(view, encode)  # noqa: SIM202 - who compares does not always ask for ==
    assert not arriving(view, encode) != view  # noqa: SIM202
    assert repr(arriving(view, encode)) == repr(view)


@pytest.mark.parametrize(
    "change",
    [{"about": {}}, {"reporters": {"site": ReporterState(state="failed")}}, {"values": {"mem": 813}}],
)
def test_views_that_differ_are_not_equal_wherever_they_differ(change: dict[str, Any]) -> None:
    other = msgspec.structs.replace(VIEW, **change)
    assert arriving(other) != VIEW
    assert arriving(VIEW) != arriving(other)


def test_what_is_not_read_goes_on_through_changes_and_can_be_read_then() -> None:
    lost = changed_view(arriving(VIEW), LocationChange(state="lost"))
    newer = msgspec.structs.replace(arriving(VIEW), values={"mem": 1})
    assert lost == msgspec.structs.replace(VIEW, state="lost")
    assert newer == msgspec.structs.replace(VIEW, values={"mem": 1})


def test_a_view_that_arrived_is_written_as_json_by_way_of_the_whole() -> None:
    assert msgspec.json.encode(arrived.whole(arriving(VIEW))) == msgspec.json.encode(VIEW)
    assert arrived.whole(BARE) is BARE


@pytest.mark.parametrize("encode", ENCODINGS)
def test_types_are_those_that_were_told(encode: Any) -> None:
    types = [ResourceType(name="mem", kind=Kind.NUMERIC), ResourceType(name="os", kind=Kind.STRING)]
    place = Position(epoch=1, incarnation="a", sequence=1)
    begin = SnapshotBegin(
        id="s", revision=1, position=place, broker_ms=1, taken_at="", parts=0, quality=Quality(), types=types
    )
    assert Mirror(arrived.decode(encode(begin))).types == {"mem": types[0], "os": types[1]}
    assert Mirror(begin).types == {"mem": types[0], "os": types[1]}


def test_details_that_cannot_be_read_are_an_error_when_they_are_read() -> None:
    bad = SnapshotPart(id="s", part=0, locations={"host:a": VIEW})
    data = codec.encode(bad).replace(b"failed", b"\xc0ailed")
    seen = arrived.decode(data).locations["host:a"]
    assert seen.values == VIEW.values
    with pytest.raises(codec.CodecError, match="cannot read a part of a snapshot"):
        _ = seen.reporters


def test_other_messages_are_what_they_always_are() -> None:
    pulse = Pulse(sequence=7)
    assert arrived.decode(codec.encode(pulse)) == pulse
    with pytest.raises(codec.CodecError):
        arrived.decode(b"\xc1")
