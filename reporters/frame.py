"""One line of a reporter's output into a frame, or into the reason why not.

Pure, and raises nothing for any bytes: what cannot be read is a `Refusal` that keeps the text. A line that
does not parse is refused whole; no name is ever taken out of it. What a name or value *means* is not known
here: `contract.py` checks frames against types.
"""

import json
import re
from typing import Any

import msgspec

from xce.model.value import LARGEST_INTEGER

TEXT = 200
"""Characters kept of a text that was refused."""
NEAR = 64
"""Characters around an error in which its usual reason is looked for."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Caps on what one reporter prints. They are part of the contract, not settings."""

    frame_bytes: int = 256 << 10
    elim_bytes: int = 64 << 10
    values: int = 1024
    """Of one frame."""
    names: int = 4096
    """Of all frames of one run together."""
    conditions: int = 64
    refusals: int = 64
    """Kept with their text; more are only counted."""


LIMITS = Limits()


class Refusal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that was printed and not taken."""

    reason: str
    name: str = ""
    """The resource, instance or condition; '' when it is the whole line."""
    text: str = ""
    """What was printed, escaped and cut."""
    line: int = 0
    """Counted from 1 in the run (persistent: since the start); 0 when there is no line."""

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        name = f"{self.name}: " if self.name else ""
        return f"{place}{name}{self.reason}" + (f": {self.text}" if self.text else "")


class Frame(msgspec.Struct, kw_only=True):
    """What one line says, not yet checked against types."""

    values: dict[str, object] = {}
    instances: list[object] | None = None
    """None: the frame says nothing about instances."""
    complete: bool = True
    """Whether `instances` is the whole inventory."""
    conditions: list[object] | None = None
    refusals: list[Refusal] = []
    """Names that occur twice in the line."""
    notes: list[str] = []
    tokens: bool = False
    """Values are words of an elim line, still to be turned into the type's kind."""
    line: int = 0


class Unfit(msgspec.Struct, frozen=True):
    """Stands for a number that JSON can write and nobody can keep."""

    text: str
    reason: str


class TooLong(msgspec.Struct, frozen=True):
    """A line that was not kept because it passed the limit."""

    head: bytes
    limit: int


def parse_line(line: bytes | TooLong, number: int = 0, limits: Limits = LIMITS) -> Frame | Refusal | None:
    """The frame in one line of output (without or with its end of line); None for a blank line."""
    if isinstance(line, TooLong) or len(line) > limits.frame_bytes:
        limit = limits.frame_bytes if isinstance(line, bytes) else line.limit
        head = line if isinstance(line, bytes) else line.head
        reason = f"longer than {limit} bytes, the limit of one line"
        return Refusal(reason=reason, text=escape(head[:TEXT].decode(errors="replace"), 60), line=number)
    notes = []
    if line.startswith(b"\xef\xbb\xbf"):
        line = line[3:]
        notes.append("starts with a byte-order mark, which was skipped: save the script without it")
    try:
        text = line.decode().strip()
    except UnicodeDecodeError as error:
        shown = escape(line.decode(errors="backslashreplace"))
        return Refusal(reason=f"not UTF-8 at byte {error.start + 1}", text=shown, line=number)
    if not text:
        return None
    document = _decode(text)
    if isinstance(document, str):
        return Refusal(reason=document, text=escape(text), line=number)
    frame = _full(document) if "xce" in document else _short(document)
    if isinstance(frame, str):
        return Refusal(reason=frame, text=escape(text), line=number)
    if len(frame.values) > limits.values:
        reason = f"{len(frame.values)} values, more than {limits.values} in one frame"
        return Refusal(reason=reason, text=escape(text, 60), line=number)
    frame.notes = notes + frame.notes
    frame.line = number
    frame.refusals = [msgspec.structs.replace(refusal, line=number) for refusal in frame.refusals]
    return frame


class Lines:
    """Cuts a stream of chunks into lines. Keeps at most one unfinished line, no longer than the limit."""

    def __init__(self, limit: int = LIMITS.frame_bytes) -> None:
        self.limit = limit
        self._rest = bytearray()
        self._skipping = False
        """Inside a line that was already given out as `TooLong`."""

    def feed(self, chunk: bytes) -> list[bytes | TooLong]:
        """The lines that end in `chunk`, and `TooLong` as soon as the unfinished one passes the limit."""
        pieces = chunk.split(b"\n")
        if not self._rest and not self._skipping and len(chunk) <= self.limit:  # nearly always
            self._rest += pieces.pop()
            return list(pieces)
        lines: list[bytes | TooLong] = []
        for piece in pieces[:-1]:
            lines += self._add(piece)
            if not self._skipping:
                lines.append(bytes(self._rest))
            self._rest.clear()
            self._skipping = False
        return lines + self._add(pieces[-1])

    def end(self) -> list[bytes | TooLong]:
        """What is left when the stream ends without an end of line."""
        self._skipping = False
        if not self._rest:
            return []
        rest, self._rest = bytes(self._rest), bytearray()
        return [rest]

    def _add(self, piece: bytes) -> list[bytes | TooLong]:
        if self._skipping:
            return []
        self._rest += piece[: self.limit + 1]
        if len(self._rest) <= self.limit:
            return []
        head = bytes(self._rest[: min(TEXT, self.limit)])
        self._rest.clear()
        self._skipping = True
        return [TooLong(head, self.limit)]


def lines_of(output: bytes, limit: int) -> list[bytes | TooLong]:
    """The lines of an output that is whole; the last one may lack its end."""
    if len(output) > limit:
        lines = Lines(limit)
        return lines.feed(output) + lines.end()
    pieces = output.split(b"\n")
    if not pieces[-1]:
        pieces.pop()
    return list(pieces)


def escape(text: str, limit: int = TEXT) -> str:
    """Text for showing: nothing in it can move a cursor or hide; cut with `...`."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    if cut.isprintable():
        return cut
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in cut
    )


def shown(value: object, limit: int = TEXT) -> str:
    """A parsed value as the JSON text that stands for it, escaped and cut."""
    if isinstance(value, str):
        value = value[: limit + 1]  # before the work of writing it
    elif isinstance(value, list):
        value = value[: limit + 1]
    try:
        text = json.dumps(value, ensure_ascii=False, default=_plain)
    except RecursionError:  # it was read with more of the stack left
        return "nested too deeply to be shown"
    return escape(text, limit)


class _Object(dict[str, Any]):
    """A JSON object that remembers which of its names it had twice, and all values of those."""

    repeated: dict[str, list[object]]


def _object(pairs: list[tuple[str, object]]) -> _Object:
    result = _Object(pairs)
    result.repeated = {}
    if len(result) != len(pairs):
        for name, value in pairs:
            result.repeated.setdefault(name, []).append(value)
        result.repeated = {name: values for name, values in result.repeated.items() if len(values) > 1}
    return result


def _integer(text: str) -> int | Unfit:
    if len(text) < 19 or (len(text) <= 20 and abs(int(text)) <= LARGEST_INTEGER):
        return int(text)
    return Unfit(escape(text, 60), "does not fit in 64 bits")


def _float(text: str) -> float | Unfit:
    number = float(text)
    return number if abs(number) <= 1.7976931348623157e308 else Unfit(escape(text, 60), "not a finite number")


def _constant(text: str) -> Unfit:
    return Unfit(text, "not a finite number; write null for unknown")


def _plain(value: object) -> str:
    return value.text if isinstance(value, Unfit) else repr(value)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
)


def _decode(text: str) -> _Object | str:
    """The object, or what is wrong."""
    if "\0" in text:
        return f"a NUL byte at column {text.index(chr(0)) + 1}"
    try:
        document = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        return _why(error, text)
    except RecursionError:
        return "nested too deeply"
    if isinstance(document, _Object):
        return document
    return "expected one JSON object" + (_NO_OBJECT if text[:1] != "[" else "")


_NO_OBJECT = ': {"NAME": VALUE, ...}'
_WORDS = {
    "Expecting value": "a value is missing or not JSON",
    "Expecting property name enclosed in double quotes": "expected a name in double quotes",
    "Expecting ',' delimiter": "expected a comma",
    "Expecting ':' delimiter": "expected a colon",
    "Extra data": "something follows the object",
    "Unterminated string starting at": "a string does not end",
    "Invalid control character at": "a control character inside a string",
}
_DECIMAL_COMMA = re.compile(r"[-+]?[0-9]+,[0-9]+(?=\s*[,}\]])")
_ELIM = re.compile(r"[0-9]+\s+[A-Za-z_]")


def _why(error: json.JSONDecodeError, text: str) -> str:
    """A JSON error in words, with the column and the usual reason."""
    if text[:1] not in "{[":
        hint = "; for LSF's `N name value` output set `mode: elim`" if _ELIM.match(text) else ""
        return "expected one JSON object" + _NO_OBJECT + hint
    problem = _WORDS.get(error.msg, error.msg[:1].lower() + error.msg[1:])
    hint = _usual_reason(text, error.pos)
    return f"not JSON at column {error.pos + 1}: {problem}" + (f"; {hint}" if hint else "")


def _usual_reason(text: str, place: int) -> str:
    # Only what is near: on a long line of digits the pattern looks at each of them from each of them.
    begin = max(0, place - NEAR)
    for match in _DECIMAL_COMMA.finditer(text[begin : place + NEAR]):
        if begin + match.start() <= place <= begin + match.end() + 1:
            return f"a decimal comma? {match[0]} must be {match[0].replace(',', '.')}, whatever the locale"
    before, here = text[:place].rstrip(), text[place:].lstrip()
    if not here:
        return "the line ends too early; one frame is one line"
    if here.startswith("'"):
        return "JSON has double quotes only"
    if before.endswith(":") and here[0] in ",}":
        return "write null for unknown"
    if before.endswith(",") and here[0] in "]}":
        return "a comma before the closing bracket"
    if re.match(r"(True|False|None|nan|inf|NA|-nan|-inf)\b", here):
        return "JSON has true, false and null, and no nan"
    return ""


def _short(document: _Object) -> Frame:
    return Frame(values=_unrepeated(document), refusals=_repeated(document))


def _unrepeated(document: _Object) -> dict[str, object]:
    if not document.repeated:
        return document
    return {name: value for name, value in document.items() if name not in document.repeated}


def _repeated(document: _Object) -> list[Refusal]:
    return [
        Refusal(
            name=escape(name, 63),
            reason=f"given {len(values)} times in one object",
            text=escape(", ".join(shown(value, 40) for value in values)),
        )
        for name, values in document.repeated.items()
    ]


def _full(document: _Object) -> Frame | str:
    """The frame of the full form, or why the line is refused whole."""
    if document.repeated:
        return f"'{escape(next(iter(document.repeated)), 63)}' occurs twice in the frame"
    version = document["xce"]
    if isinstance(version, bool) or version != 1:
        return f"frame of version {shown(version, 20)}; this agent reads version 1"
    values = document.get("values", _object([]))
    instances, conditions = document.get("instances"), document.get("conditions")
    complete = document.get("complete", True)
    if not isinstance(values, _Object):
        return "'values' must be an object"
    for name, part in (("instances", instances), ("conditions", conditions)):
        if part is not None and not isinstance(part, list):
            return f"'{name}' must be a list"
    if not isinstance(complete, bool):
        return "'complete' must be true or false"
    unknown = document.keys() - {"xce", "values", "instances", "complete", "conditions"}
    return Frame(
        values=_unrepeated(values),
        instances=instances,
        complete=complete,
        conditions=conditions,
        refusals=_repeated(values),
        notes=[f"the key '{escape(name, 63)}' means nothing here" for name in sorted(unknown)[:8]],
    )


def repeated_names(item: object) -> list[str]:
    """The names that an object inside a frame has twice (objects keep them from parsing)."""
    return list(item.repeated) if isinstance(item, _Object) else []
