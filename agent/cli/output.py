"""How the agent's commands print: aligned tables, spans of time in words, JSON. Nothing heavy is imported.

On a terminal rich draws the tables in colour; elsewhere they are plain, one row a line, an empty cell as `-`
so that columns can be counted. Text from scripts cannot move the cursor.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

STYLES = {
    "synced": "green",
    "available": "green",
    "waiting": "green",
    "running": "green",
    "ok": "green",
    "taken": "green",
    "connecting": "yellow",
    "greeting": "yellow",
    "draining": "yellow",
    "joining": "cyan",
    "stopping": "yellow",
    "backoff": "yellow",
    "warning": "yellow",
    "not-applicable": "dim",
    "disconnected": "red",
    "silent": "red",
    "lost": "red",
    "refused": "red",
    "quarantined": "bold red",
    "abandoned": "bold red",
    "problem": "bold red",
}
"""By the first word of a cell."""


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under headers (no headers: just columns)."""
    shown = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich(headers, shown)
    else:
        sys.stdout.write("".join(f"{line}\n" for line in plain(headers, shown)))


def plain(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a plain table."""
    lines = [*([list(headers)] if headers else []), *([cell or "-" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def print_json(thing: Any) -> None:
    """Print as JSON, indented on a terminal."""
    print(json.dumps(thing, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))


def fail(program: str, message: str) -> None:
    """Say on stderr why a command ends."""
    print(f"{program}: {message}", file=sys.stderr)


def printable(text: str) -> str:
    """Text with everything escaped that could do something to a terminal."""
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


def _rich(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - half of what `status` costs
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(box=None, pad_edge=False, show_header=bool(headers), header_style="bold")
    for header in headers or rows[0]:
        drawn.add_column(header)
    for row in rows:
        drawn.add_row(*(Text(cell, style=STYLES.get(cell.partition(" ")[0], "")) for cell in row))
    Console().print(drawn)
