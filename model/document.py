"""Configuration text into structs: a strict reading of YAML, every error with its file, line and key.

The only importer of PyYAML (about 2 MB and 20 ms: import this module where a file is read, not at the top).
Pure: the caller reads the file. What is read is the part of YAML that people agree on:

- `true` and `false` are the booleans. `yes`, `no`, `on`, `off` and their like are refused without quotes,
  since half of all readers take them for booleans; so is a number with a leading zero.
- Everything else is text, a decimal number, a list or keys with values. No tags, no merge keys (`<<`), one
  document per file, no key twice. Anchors and aliases are read, within `NODES` in all.
- A key without a value is the default for lists and sections, and an error for anything else.
"""

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import yaml

from xce.model.refusal import ConfigError, ConfigRefused
from xce.model.schema import Document, Entry, Fitting, Node, Plain
from xce.model.value import LARGEST_INTEGER

T = TypeVar("T")

NODES = 1_000_000
"""Values in one document, aliases counted each time they are used."""
DEPTH = 24

_NULL = {"", "~", "null"}
_TRAPS = {
    **dict.fromkeys(("yes", "on", "true"), "true"),
    **dict.fromkeys(("no", "off", "false"), "false"),
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_BRACKETS = re.compile(r"[\[{,]\s*[\w.-]*\w\[[0-9]")
_PLAIN = "plain"


def load(
    text: str,
    path: str,
    kind: type[T],
    *,
    nodes: int = NODES,
    check: Callable[[T], Mapping[str, str]] | None = None,
) -> T:
    """The struct that `text` describes; `path` is for messages. Raises `ConfigRefused` with every error.

    `nodes` bounds the number of values in it. `check` says what the shape cannot: key to problem.
    """
    found = load_placed(text, path, kind, nodes=nodes)
    if check is not None and (problems := check(found.value)):
        raise ConfigRefused(found.errors(problems))
    return found.value


def given(read: Callable[[], bytes], path: str, kind: type[T], refused: Callable[[str], Exception]) -> T:
    """The struct in a file that a command was given; what is wrong with it as the caller's exception."""
    try:
        return load(read().decode(), path, kind)
    except (OSError, UnicodeDecodeError, ConfigRefused) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise refused(f"cannot use {path}: {words}") from error


def load_placed(text: str, path: str, kind: type[T], *, nodes: int = NODES) -> Document[T]:
    """Like `load`, with the places kept for checks across files (`model.site`)."""
    root, errors = _read(text.removeprefix("\ufeff"), path, nodes)
    fitting = Fitting(path)
    value = fitting.fit(root, kind) if root is not None else None
    told = {error.line for error in errors}
    errors += [error for error in fitting.errors if error.line not in told]
    errors.sort(key=lambda error: error.line)
    if errors or value is None or root is None:
        raise ConfigRefused(errors)
    return Document(value, path, root)


def _read(text: str, path: str, nodes: int) -> tuple[Node | None, list[ConfigError]]:
    try:
        top = yaml.compose(text, Loader=_Loader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return None, [ConfigError(path, line, "", f"the character {chr(error.character)!r} is not allowed")]
    except yaml.MarkedYAMLError as error:
        return None, [_syntax(error, text, path)]
    except (yaml.YAMLError, RecursionError):
        return None, [ConfigError(path, 0, "", "cannot be read as YAML: nested too deeply")]
    reading = _Reading(path, nodes)
    root = reading.node(top, "", 0) if top is not None else Node(1, None)
    return root, reading.errors


def _syntax(error: yaml.MarkedYAMLError, text: str, path: str) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    lines = text.splitlines() or [""]
    line = min(mark.line + 1, len(lines)) if mark else 1
    wrong = lines[line - 1]
    problem = error.problem or error.context or "not YAML"
    hint = ""
    if "\t" in wrong[: len(wrong) - len(wrong.lstrip())]:
        problem, hint = "a tab in the indentation", "use spaces"
    elif _BRACKETS.search(wrong):
        hint = "a range inside [ ] or { } needs quotes: 'node[1-3]'"
    elif "mapping values" in problem:
        hint = "check the indentation, and put text with ': ' in it in quotes"
    elif "another document" in problem or "single document" in str(error.context):
        problem, hint = "a second document starts here", "one document per file"
    elif "did not find expected" in problem or "but found" in problem:
        hint = "check the indentation, and that brackets and quotes are closed"
    return ConfigError(path, line, "", f"cannot be read as YAML: {problem}", hint)


def _resolve(_loader: object, kind: type[yaml.Node], _value: str, implicit: tuple[bool, bool] | bool) -> str:
    """Marks a scalar without quotes and tag as plain, so that `_plain` decides what it is."""
    if kind is yaml.ScalarNode and isinstance(implicit, tuple) and implicit[0]:
        return _PLAIN
    return ""


_Base: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc, valid-type]  # one of two bases, chosen by how PyYAML was built
    """PyYAML's reader with its own idea of plain values taken away."""

    resolve = _resolve


class _Reading:
    """Turns PyYAML's nodes into ours; goes on after an error."""

    def __init__(self, path: str, nodes: int) -> None:
        self.path, self.nodes = path, nodes
        self.errors: list[ConfigError] = []
        self.left = nodes

    def node(self, node: yaml.Node, key: str, depth: int) -> Node:
        line = node.start_mark.line + 1
        self.left -= 1
        if depth > DEPTH or self.left < 0:
            if self.left >= 0 or self.left == -1:
                limit = f"nested deeper than {DEPTH}" if depth > DEPTH else f"more than {self.nodes} values"
                self._fail(line, key, limit)
            self.left = min(self.left, 0) - 1
            return Node(line, None)
        if node.tag not in {"", _PLAIN}:
            self._fail(line, key, f"the tag {node.tag} is not read here", "put text in quotes instead")
        if isinstance(node, yaml.ScalarNode):
            return Node(line, self._scalar(node, line, key))
        if isinstance(node, yaml.SequenceNode):
            items = [self.node(item, f"{key}[{place}]", depth + 1) for place, item in enumerate(node.value)]
            return Node(line, items)
        return Node(line, self._mapping(node, key, depth))

    def _mapping(self, node: yaml.Node, key: str, depth: int) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        for name_node, value_node in node.value:
            line = name_node.start_mark.line + 1
            name = name_node.value
            if not isinstance(name, str):
                self._fail(line, key, "a key must be text")
                continue
            place = f"{key}.{name}" if key else name
            if name == "<<" and name_node.tag == _PLAIN:
                self._fail(line, place, "merge keys are not read here", "write the keys out")
            elif name in entries:
                self._fail(line, place, f"is written twice, first in line {entries[name].line}", "remove one")
            else:
                entries[name] = Entry(line, self.node(value_node, place, depth + 1))
        return entries

    def _scalar(self, node: yaml.ScalarNode, line: int, key: str) -> Plain:
        text = node.value
        if node.tag != _PLAIN:
            return str(text)
        if text in _NULL:
            return None
        if text in {"true", "false"}:
            return bool(text == "true")
        if meant := _TRAPS.get(text.lower()):
            self._fail(
                line, key, f"{text} can be read in two ways", f"write {meant}, or '{text}' for the word"
            )
            return str(text)
        if _LEADING_ZERO.fullmatch(text):
            number = text.lstrip("+-0") or "0"
            self._fail(
                line, key, f"{text} can be read in two ways", f"write {number}, or '{text}' for the text"
            )
            return str(text)
        return self._number(text, line, key)

    def _number(self, text: str, line: int, key: str) -> int | float | str:
        if _INTEGER.fullmatch(text):
            if len(text) > 20 or abs(int(text)) > LARGEST_INTEGER:
                self._fail(line, key, f"{text[:40]} does not fit in 64 bits")
                return 0
            return int(text)
        return float(text) if _FLOAT.fullmatch(text) else text

    def _fail(self, line: int, key: str, problem: str, hint: str = "") -> None:
        self.errors.append(ConfigError(self.path, line, key, problem, hint))
