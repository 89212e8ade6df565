"""How commands say things to people: spans of time, tables without colour, text that cannot harm a terminal.

Pure, and imports nothing heavy: `xce-agent status` must be quick.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

FOLDED_CHARS = 20
"""What a column that may be folded gets at least; a terminal that is too narrow then breaks whole lines."""


def printable(text: str) -> str:
    """`text` with everything escaped that could do more on a terminal than be seen."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def span(seconds: float | None) -> str:
    """A span of time as a person says it: `250 ms`, `12 s`, `5 min`, `3 h`, `2 d`; '' for None."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    for unit, size, below in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 48 * 3600)):
        if seconds < below:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def ago(seconds: float | None) -> str:
    """`12 s ago`; '' for None."""
    return "" if seconds is None else f"{span(seconds)} ago"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a plain table, whose columns can be counted: an empty cell is `-`. Headers may be none."""
    lines = [*([list(headers)] if headers else []), *([cell or "-" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def width(columns: Iterable[Sequence[str]], folded: AbstractSet[str]) -> int:
    """Of a table in which only columns with these headers, which come first in each, are folded."""
    widths = [FOLDED_CHARS if column[0] in folded else max(map(len, column)) for column in columns]
    return sum(widths) + 2 * (len(widths) - 1)


def condition(name: str, reason: str) -> str:
    """What a reporter wants people to know."""
    return f"{name}: {reason}" if reason else f"{name}, without a reason"
