"""How the agent's commands print: aligned tables, spans of time in words, JSON. Nothing heavy is imported.

On a terminal rich draws the tables in colour and folds sentences; elsewhere they are plain, one row a line,
an empty cell as `-` so that columns can be counted. Text from scripts cannot move the cursor.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from xce.model import human

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
WORDY = {"FOUND", "WHAT TO DO", "TROUBLE", "NOTE", "WHAT", "PROBLEM"}
"""Columns that may be folded on a terminal: a name or path in two pieces cannot be copied."""


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under headers (no headers: just columns)."""
    shown = [[human.printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich(headers, shown)
    else:
        sys.stdout.write("".join(f"{line}\n" for line in human.table(headers, shown)))


def print_json(thing: Any) -> None:
    """Print as JSON, indented on a terminal."""
    print(json.dumps(thing, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))


def fail(program: str, message: str) -> None:
    """Say on stderr why a command ends."""
    print(f"{program}: {message}", file=sys.stderr)


def _rich(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - half of what `status` costs
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(box=None, pad_edge=False, show_header=bool(headers), header_style="bold")
    for header in headers or rows[0]:
        drawn.add_column(header, overflow="fold", no_wrap=bool(headers) and header not in WORDY)
    for row in rows:
        drawn.add_row(*(Text(cell, style=STYLES.get(cell.partition(" ")[0], "")) for cell in row))
    console = Console()
    if headers:
        columns = zip(headers, *rows, strict=True)
        console.width = max(console.width, human.width(columns, WORDY))
    console.print(drawn)
