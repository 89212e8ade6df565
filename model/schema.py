"""Plain data with places, fitted to the structs of `configuration.py`, and the words for what does not fit.

`document.py` turns text into `Node`s; `Fitting` turns a tree of nodes into a struct. It goes on after an
error, so that an admin sees all of them at once, and it speaks of numbers, text and lists, not of types.
Nothing here reads files or raises for bad data: problems are returned.
"""

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import inspect

from xce.model.refusal import ConfigError
from xce.model.value import LARGEST_INTEGER

T = TypeVar("T")

Plain: TypeAlias = bool | int | float | str | None


@dataclass(slots=True)
class Node:
    """One value of a document and the line (from 1) where it starts; keys have lines of their own."""

    line: int
    value: "Plain | list[Node] | dict[str, Entry]"


@dataclass(slots=True)
class Entry:
    """A key of a mapping: where the key stands, and its value."""

    line: int
    node: Node


@dataclass(slots=True)
class Document(Generic[T]):
    """A document that fits, with the places of its parts for checks across files."""

    value: T
    path: str
    root: Node

    def line(self, *keys: str | int) -> int:
        """The line of a part (`line("hosts", 3, "values", "tmp")`), or of the nearest part that is there."""
        node, line = self.root, self.root.line
        for key in keys:
            if isinstance(key, str) and isinstance(node.value, dict) and key in node.value:
                line, node = node.value[key].line, node.value[key].node
            elif isinstance(key, int) and isinstance(node.value, list) and key < len(node.value):
                node = node.value[key]
                line = node.line
            else:
                break
        return line

    def error(self, keys: tuple[str | int, ...], problem: str, hint: str = "") -> ConfigError:
        """An error at a part of this document."""
        node, text = self.root, ""
        for key in keys:
            if isinstance(key, str):
                text = _under(text, key)
                entry = node.value.get(key) if isinstance(node.value, dict) else None
                node = entry.node if entry else node
            elif isinstance(node.value, list):
                text += _index(node.value, key)
                node = node.value[key]
        return ConfigError(self.path, self.line(*keys), text, problem, hint)

    def errors(self, found: Mapping[str, str]) -> list[ConfigError]:
        """What a check of the value has found (key as it is written, problem), each at its place."""
        placed = [self.error(self._keys(written), problem) for written, problem in found.items()]
        return sorted(placed, key=lambda error: error.line)

    def _keys(self, written: str) -> tuple[str | int, ...]:
        """The parts of `claims.profiles.a.b.ports` or `types[1].name`: names may have dots in them."""
        node, keys, rest = self.root, list[str | int](), written
        while rest:
            if isinstance(node.value, list):
                number, _, rest = rest.removeprefix("[").partition("]")
                keys.append(int(number))
                node = node.value[int(number)]
            else:
                names = node.value if isinstance(node.value, dict) else {}
                fitting = (
                    name for name in names if rest == name or rest.startswith((f"{name}.", f"{name}["))
                )
                name = max(fitting, key=len, default=rest)
                keys.append(name)
                rest = rest[len(name) :]
                node = names[name].node if name in names else node
            rest = rest.removeprefix(".")
        return tuple(keys)


class _Bad:
    """Stands for a part that does not fit, while its neighbours are still looked at."""


_BAD = _Bad()


class Fitting:
    """One pass over one document. `errors` is complete when `fit` returns."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.errors: list[ConfigError] = []

    def fit(self, root: Node, kind: type[T]) -> T | None:
        """The struct, or None when `errors` says why not. An empty document is all defaults."""
        fitted = self._any(root, inspect.type_info(kind), "")
        self.errors.sort(key=lambda error: error.line)
        return None if self.errors else fitted

    def _fail(self, line: int, key: str, problem: str, hint: str = "") -> _Bad:
        self.errors.append(ConfigError(self.path, line, key, problem, hint))
        return _BAD

    def _any(self, node: Node, info: inspect.Type, key: str) -> Any:
        if isinstance(info, inspect.Metadata):
            return self._scalar(node, info, key)
        if isinstance(info, inspect.StructType):
            return self._struct(node, info, key)
        if isinstance(info, inspect.ListType):
            return self._list(node, info, key)
        if isinstance(info, inspect.VarTupleType | inspect.TupleType):
            return self._tuple(node, info, key)
        if isinstance(info, inspect.DictType):
            return self._dict(node, info, key)
        if isinstance(info, inspect.UnionType):
            return self._union(node, info, key)
        return self._scalar(node, info, key)

    def _struct(self, node: Node, info: inspect.StructType, key: str) -> Any:
        if node.value is None:
            node = Node(node.line, {})
        if not isinstance(node.value, dict):
            problem = f"expected keys and values, got {describe(node.value)}"
            return self._fail(node.line, key, problem, _instead(node.value, info))
        fields = {field.encode_name: field for field in info.fields}
        values: dict[str, Any] = {}
        for name, entry in node.value.items():
            if name in fields:
                values[name] = self._any(entry.node, fields[name].type, _under(key, name))
            else:
                self._fail(entry.line, _under(key, name), "unknown key", _nearest_key(name, info))
                values[name] = _BAD
        for name, field in fields.items():
            if field.required and name not in values:
                values[name] = self._fail(
                    node.line, _under(key, name), "is missing", f"give {words(field.type)}"
                )
        if any(value is _BAD for value in values.values()):
            return _BAD
        try:
            return info.cls(**values)
        except ValueError as problem:
            return self._fail(node.line, key, str(problem))

    def _tuple(self, node: Node, info: inspect.VarTupleType | inspect.TupleType, key: str) -> Any:
        """A list that stays as it is; of a fixed length where the type says so."""
        if isinstance(info, inspect.VarTupleType):
            items = self._list(node, inspect.ListType(info.item_type), key)
            return items if items is _BAD else tuple(items)
        count = len(info.item_types)
        if not isinstance(node.value, list) or len(node.value) != count:
            return self._fail(node.line, key, f"expected a list of {count}, got {describe(node.value)}")
        kinds = zip(node.value, info.item_types, strict=True)
        pair = [
            self._any(item, kind, key + _index(node.value, place)) for place, (item, kind) in enumerate(kinds)
        ]
        return _BAD if any(item is _BAD for item in pair) else tuple(pair)

    def _list(self, node: Node, info: inspect.ListType, key: str) -> Any:
        if node.value is None:
            return []
        if not isinstance(node.value, list):
            hint = (
                f"write [{node.value}]"
                if isinstance(node.value, str | int | float)
                else "start each item with '- '"
            )
            return self._fail(node.line, key, f"expected a list, got {describe(node.value)}", hint)
        items = [
            self._any(item, info.item_type, key + _index(node.value, place))
            for place, item in enumerate(node.value)
        ]
        return _BAD if any(item is _BAD for item in items) else items

    def _dict(self, node: Node, info: inspect.DictType, key: str) -> Any:
        if node.value is None:
            return {}
        if not isinstance(node.value, dict):
            return self._fail(node.line, key, f"expected names and values, got {describe(node.value)}")
        values = {
            name: self._any(entry.node, info.value_type, _under(key, name))
            for name, entry in node.value.items()
        }
        return _BAD if any(value is _BAD for value in values.values()) else values

    def _union(self, node: Node, info: inspect.UnionType, key: str) -> Any:
        members = [member for member in info.types if not isinstance(member, inspect.NoneType)]
        if node.value is None and len(members) < len(info.types):
            return None
        if len(members) == 1:
            return self._any(node, members[0], key)
        for member in members:
            if isinstance(member, inspect.ListType) and isinstance(node.value, list):
                return self._list(node, member, key)
            if _scalar_fits(node.value, member) and not isinstance(node.value, list | dict):
                return self._scalar(node, member, key)
        return self._fail(
            node.line, key, f"expected {words(info)}, got {describe(node.value)}", _why(node, info)
        )

    def _scalar(self, node: Node, info: inspect.Type, key: str) -> Any:
        if not _scalar_fits(node.value, info):
            problem = f"expected {words(info)}, got {describe(node.value)}"
            return self._fail(node.line, key, problem, _why(node, info))
        kind = _unwrapped(info)
        return kind.cls(node.value) if isinstance(kind, inspect.EnumType) else node.value


def words(info: inspect.Type) -> str:
    """What a value of a field looks like, in an admin's words: `a number of seconds above 0`."""
    if isinstance(info, inspect.Metadata):
        unit = (info.extra_json_schema or {}).get("title")
        plain = words(info.type)
        return plain.replace("a number", f"a number of {unit}", 1) if unit else plain
    if isinstance(info, inspect.IntType | inspect.FloatType):
        return ("a whole number" if isinstance(info, inspect.IntType) else "a number") + _bounds(info)
    if isinstance(info, inspect.EnumType):
        return "one of " + ", ".join(member.value for member in info.cls)
    if isinstance(info, inspect.ListType):
        return "a list of texts" if isinstance(info.item_type, inspect.StrType) else "a list"
    if isinstance(info, inspect.UnionType):
        members = [member for member in info.types if not isinstance(member, inspect.NoneType)]
        if len(members) == 1:
            return words(members[0])
        return " or ".join(
            dict.fromkeys(words(member) for member in members if not isinstance(member, inspect.IntType))
        )
    return {inspect.BoolType: "true or false", inspect.StrType: "text"}.get(type(info), "keys and values")


def describe(value: object) -> str:
    """A value in the words of an error: `'ten'`, `the number 5`, `a list`, `nothing`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    return "a list" if isinstance(value, list) else "keys and values"


def nearest(name: str, names: Iterator[str] | list[str]) -> str:
    """'' or a hint that names the candidate which looks most like `name`."""
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.7)
    return f"did you mean '{close[0]}'?" if close else ""


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    low = (
        f" above {info.gt:g}"
        if info.gt is not None
        else f" of at least {info.ge:g}"
        if info.ge is not None
        else ""
    )
    high = f", at most {info.le:.12g}" if info.le is not None else ""
    return low + high


def _unwrapped(info: inspect.Type) -> inspect.Type:
    return info.type if isinstance(info, inspect.Metadata) else info


def _scalar_fits(value: object, info: inspect.Type) -> bool:
    kind = _unwrapped(info)
    if isinstance(kind, inspect.BoolType):
        return isinstance(value, bool)
    if isinstance(kind, inspect.StrType):
        return isinstance(value, str)
    if isinstance(kind, inspect.EnumType):
        return isinstance(value, str) and value in [member.value for member in kind.cls]
    if isinstance(kind, inspect.IntType):
        return isinstance(value, int) and not isinstance(value, bool) and _within(value, kind)
    if isinstance(kind, inspect.FloatType):
        return isinstance(value, int | float) and not isinstance(value, bool) and _within(value, kind)
    return False


def _within(value: float, info: inspect.IntType | inspect.FloatType) -> bool:
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        return False
    return (
        math.isfinite(value)
        and (info.gt is None or value > info.gt)
        and (info.ge is None or value >= info.ge)
        and (info.le is None or value <= info.le)
    )


def _why(node: Node, info: inspect.Type) -> str:
    """The hint behind a value that does not fit: the usual reasons."""
    value, kind = node.value, _unwrapped(info)
    if value is None:
        return "remove the key to have the default"
    if isinstance(kind, inspect.StrType) and isinstance(value, bool | int | float):
        return "put it in quotes"
    if isinstance(kind, inspect.EnumType) and isinstance(value, str):
        return nearest(value, [member.value for member in kind.cls])
    if isinstance(kind, inspect.IntType | inspect.FloatType) and isinstance(value, str):
        return _why_no_number(value)
    return ""


def _why_no_number(text: str) -> str:
    digits = text.replace(",", ".", 1)
    if "," in text and _is_number(digits):
        return f"with a point: {digits}"
    if _is_number(text):
        return "without quotes"
    if text[:1].isdigit() and text[-1:].isalpha():
        return "give the number alone, without a unit"
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _under(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _index(items: list[Node], place: int) -> str:
    """`[node17]` for an item that has a name, `[2]` (counted from 0) for one that has none."""
    value = items[place].value
    name = value["name"].node.value if isinstance(value, dict) and "name" in value else None
    return f"[{name}]" if isinstance(name, str) else f"[{place}]"


def _instead(value: object, info: inspect.StructType) -> str:
    """How one writes the struct that a plain value stands in the place of."""
    if isinstance(value, str) and [field.encode_name for field in info.fields if field.required] == ["name"]:
        return f"write {{name: {value}}}"
    return f"known here: {', '.join(field.encode_name for field in info.fields)}"


def _nearest_key(name: str, info: inspect.StructType) -> str:
    """What was probably meant by an unknown key: one here, or one that belongs a level deeper."""
    names = [field.encode_name for field in info.fields]
    if name.isdecimal():
        return "a decimal comma? numbers have a point"
    if hint := nearest(name, names):
        return hint
    for field in info.fields:
        if isinstance(field.type, inspect.StructType) and name in [
            sub.encode_name for sub in field.type.fields
        ]:
            return f"it belongs below '{field.encode_name}'"
    return f"known here: {', '.join(names)}"
