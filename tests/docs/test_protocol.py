"""The protocol's page and schemas say what the code does."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from docs.generators import schema
from tests.wire.test_codec import anything
from xce.model import message as m
from xce.wire import codec

DOCS = Path(schema.__file__).parent.parent
PAGE = (DOCS / "protocol.md").read_text()


def validator(name: str) -> Any:
    return jsonschema.Draft202012Validator(json.loads((DOCS / "schema" / f"{name}.json").read_text()))


def session() -> list[tuple[str, str]]:
    """(arrow, JSON) of each line of the page's session."""
    (block,) = re.findall(r"```session\n(.*?)```", PAGE, re.DOTALL)
    return [(line[0], line[2:]) for line in block.splitlines()]


@pytest.mark.parametrize("name", schema.FILES)
def test_a_schema_is_one(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(validator(name).schema)


@pytest.mark.parametrize(("arrow", "text"), session())
def test_each_message_of_the_session_is_read_and_means_what_it_shows(arrow: str, text: str) -> None:
    decode = codec.decode_for_broker if arrow == "→" else codec.decode_from_broker
    message = decode(text.encode())
    shown = json.loads(text)
    assert msgspec.to_builtins(message) == shown, "a field is shown that the code does not know, or a default"
    validator("request" if arrow == "→" else "answer").validate(shown)
    packed = codec.encode(message)
    assert decode(packed) == message, "MessagePack says the same"


def test_the_session_shows_every_answer_but_those_of_commands_and_of_a_change_of_the_key() -> None:
    shown = {json.loads(text)["type"] for _, text in session()}
    all_answers = {kind.__struct_config__.tag for kind in schema.members(m.Answer)}
    of_commands = {"inventory.bodies", "mine.is", "status.is", "keys.are", "claims.are"}
    assert all_answers - shown == of_commands | {"key.next"}


def test_every_question_order_and_answer_is_on_the_page_or_in_the_list_of_messages() -> None:
    text = PAGE + (DOCS / "messages.md").read_text()
    for union in (m.Read, m.Order, m.Answer):
        for kind in schema.members(union):
            assert f"`{kind.__struct_config__.tag}`" in text


def test_the_codes_on_the_page_are_the_codes_of_the_model() -> None:
    in_model = set(re.findall(r"`([a-z-]+)`", schema.field_docs(m.Failed)["code"]))
    table = PAGE.split("Codes of `failed`:")[1].split("\n\n")[1]
    assert set(re.findall(r"^\| `([a-z-]+)`", table, re.MULTILINE)) == in_model


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("request", {"type": "snapshot"}),
        ("request", {"type": "sing", "id": "a"}),
        ("request", {"type": "watch", "id": "a", "since": {"epoch": 1}}),
        ("answer", {"type": "done", "id": "a", "revision": "7"}),
        ("from-agent", ["r", "one", []]),
    ],
)
def test_what_the_code_refuses_the_schema_refuses_too(name: str, broken: object) -> None:
    decode = codec.decode_from_broker if name == "answer" else codec.decode_for_broker
    data = (
        msgspec.msgpack.encode(broken) if isinstance(broken, list) else msgspec.json.encode(broken)
    )  # ticks
    with pytest.raises(codec.CodecError):
        decode(data)
    assert not validator(name).is_valid(broken)


_requests = st.sampled_from(schema.members(m.Read) + schema.members(m.Order)).flatmap(anything)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(_requests)
def test_whatever_request_the_code_can_make_fits_the_schema(request: msgspec.Struct) -> None:
    validator("request").validate(json.loads(msgspec.json.encode(request)))
