"""`docs/messages.md`: every document of the protocol with its fields, and who may say it."""

import typing
from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Any

import msgspec

from docs.generators.schema import field_docs, members, plain, referred
from xce.broker.core.access import ROLES
from xce.model import message
from xce.model.role import Role
from xce.model.value import Absent

HEAD = """\
# Messages

Generated from `model/` and `broker/core/access.py` by `python docs/generate.py`; do not edit. How they are
used stands in [protocol.md](protocol.md). Every document is a map with a `type`; fields in *italics* may be
left out and then have the default shown.
"""
PARTS = {
    "Questions": message.Read,
    "Orders": message.Order,
    "Answers": message.Answer,
    "From agents and external reporters": message.FromAgent,
    "To agents and external reporters": message.ToAgent,
}
TICKS = """\
What an agent sends all day is positional: MessagePack arrays whose first element names them (`r`, `h`),
fields in this order. They exist in MessagePack only.
"""


def render() -> dict[str, str]:
    """The one file of this generator."""
    return {"messages.md": "\n".join(_lines()).rstrip() + "\n"}


def _lines() -> Iterable[str]:
    yield HEAD
    yield from _roles()
    for title, union in PARTS.items():
        yield from ("", f"## {title}")
        for kind in members(union):
            yield from _document(f"`{kind.__struct_config__.tag}`", kind)
    yield from ("", "## Ticks", "", TICKS)
    ticks: list[type[msgspec.Struct]] = [*members(message.Tick), message.FeedTick]
    for kind in ticks:
        tag = kind.__struct_config__.tag
        yield from _document(f"`{tag}` ({kind.__name__})" if tag else kind.__name__, kind)
    yield from ("", "## Parts of messages")
    said = {kind for union in PARTS.values() for kind in members(union)} | {*ticks}
    parts = {kind for kind in referred([*said]) if issubclass(kind, msgspec.Struct)} - said
    for kind in sorted(parts, key=lambda kind: kind.__name__):
        yield from _document(kind.__name__, kind)


def _roles() -> Iterable[str]:
    roles = list(Role)
    yield from ("", "## Who may say what", "")
    yield "Whatever is not in a role's column is refused with `forbidden`, and counted."
    yield from ("", f"| message | {' | '.join(roles)} |", "|---" * (len(roles) + 1) + "|")
    for kind, allowed in ROLES.items():
        cells = ["yes" if role in allowed else "" for role in roles]
        tag = kind.__struct_config__.tag  # type: ignore[attr-defined]
        yield f"| `{tag}` | {' | '.join(cells)} |"


def _document(title: str, kind: Any) -> Iterable[str]:
    yield from ("", f"### {title}", "", plain(kind.__doc__ or ""))
    fields = msgspec.structs.fields(kind)
    if not fields:
        return
    docs, hints = field_docs(kind), typing.get_type_hints(kind)
    yield from ("", "| field | | |", "|---|---|---|")
    for field in fields:
        name = field.encode_name if field.required else f"*{field.encode_name}*"
        about = docs.get(field.name, "").replace("|", "\\|")
        default = "" if field.required else f" = {_default(field)}"
        yield f"| {name} | {_type(hints[field.name])}{default} | {about} |"


def _default(field: msgspec.structs.FieldInfo) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, msgspec.Struct):
        return "its defaults"
    return f"`{msgspec.json.encode(value).decode()}`"


def _type(hint: Any) -> str:
    """A type in words that need no Python."""
    arguments = typing.get_args(hint)
    if Absent in arguments:
        return "reading or null" if NoneType in arguments else "reading"
    if isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union:
        plain = [argument for argument in arguments if argument is not NoneType]
        words = "value" if len(plain) > 2 else " or ".join(_type(argument) for argument in plain)
        return f"{words} or null" if NoneType in arguments else words
    match typing.get_origin(hint):
        case origin if origin is dict:
            return f"map of text to {_type(arguments[1])}"
        case origin if origin is list:
            return f"list of {_type(arguments[0])}"
        case typing.Annotated:
            return _type(arguments[0])
    names = {str: "text", int: "integer", float: "number", bool: "true/false"}
    name = getattr(hint, "__name__", str(hint))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return f"[{name}](#{name.lower()})"
    if isinstance(hint, type) and hint not in names:
        return "one of " + ", ".join(f"`{member}`" for member in hint)  # type: ignore[attr-defined]
    return names.get(hint, name)
