"""How commands print: aligned tables, JSON, ages and values in words. No command has a format of its own.

On a terminal tables are coloured, empty columns are left out, and words are folded (rich); elsewhere they are
plain, one row a line, nothing cut off but values that are longer than `VALUE_CHARS`. Text from outside
cannot move the cursor.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from xce.model import human
from xce.model.message import Quality
from xce.model.supply import Hold
from xce.model.value import Value

VALUE_CHARS = 60
WORDY = {
    "VALUE",
    "HOLDS",
    "CAUSE",
    "REASON",
    "REPORTERS",
    "DESCRIPTION",
    "READINGS",
    "GROUPS",
    "HOSTS",
    "INSTANCES",
    "HOLDERS",
    "FOUND",
    "WHAT TO DO",
}
"""Columns that may be folded on a terminal. A name in two pieces cannot be copied, nor searched for."""
_STYLES = {
    "available": "green",
    "value": "green",
    "joining": "cyan",
    "expected": "cyan",
    "draining": "yellow",
    "stale": "yellow",
    "unknown": "yellow",
    "never-seen": "yellow",
    "lost": "bold red",
    "released": "dim",
    "not-applicable": "dim",
    "ready": "green",
    "pending": "cyan",
    "preparing": "cyan",
    "releasing": "yellow",
    "failed": "bold red",
    "ok": "green",
    "warning": "yellow",
    "problem": "bold red",
}
"""By the exact text of a cell."""

Cell: TypeAlias = str


def table(headers: Sequence[str], rows: Iterable[Sequence[Cell]], *, none: str) -> None:
    """Print rows under headers; `none` is printed to stderr instead when there are none."""
    shown = [[human.printable(cell) for cell in row] for row in rows]
    if not shown:
        print(none, file=sys.stderr)
    elif sys.stdout.isatty():
        _rich(headers, shown)
    else:
        print("\n".join(human.table(headers, shown)))


def json(thing: Any) -> None:
    """Print anything of ours as JSON, indented on a terminal."""
    text = msgspec.json.encode(thing)
    print((msgspec.json.format(text, indent=2) if sys.stdout.isatty() else text).decode())


def done(text: str, *, as_json: bool, **said: object) -> None:
    """Say that an order was carried out: in words, or what a program wants of it."""
    if as_json:
        json(said)
    else:
        print(text)


def aside(text: str) -> None:
    """Say something beside the output, on stderr."""
    print(human.printable(text), file=sys.stderr, flush=True)


def fields(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line."""
    shown = [(name, human.printable(text)) for name, text in pairs]
    width = max((len(name) for name, _ in shown), default=0)
    for name, text in shown:
        print(f"{name.ljust(width)}  {text or '-'}")


def value(reading: Value | None, unit: str = "") -> str:
    """A value as people read it, with its unit; '' for none."""
    match reading:
        case None:
            return ""
        case bool():
            text = "true" if reading else "false"
        case float():
            text = f"{reading:.6g}"
        case list():
            text = ",".join(reading) or "(none)"
        case _:
            text = str(reading)
    if len(text) > VALUE_CHARS:
        text = f"{text[: VALUE_CHARS - 1]}…"
    return f"{text} {unit}" if unit else text


def holds(of_location: Sequence[Hold]) -> str:
    """Holds in one cell: owner and reason of each."""
    return "; ".join(f"{hold.owner} ({hold.reason})" if hold.reason else hold.owner for hold in of_location)


def quality(of: Quality) -> list[tuple[str, str]]:
    """How good the map is, as fields."""
    counts = {
        "value": of.value,
        "stale": of.stale,
        "unknown": of.unknown,
        "never-seen": of.never_seen,
        "not-applicable": of.not_applicable,
    }
    hosts = {**of.hosts, **({"rejoining": of.rejoining} if of.rejoining else {})}
    return [
        ("readings", ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"),
        ("hosts", ", ".join(f"{count} {name}" for name, count in hosts.items() if count) or "none"),
    ]


def _rich(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - 40 ms that only a terminal is worth
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    columns = [column for column in zip(headers, *rows, strict=True) if any(column[1:])]
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for header, *_ in columns:
        grid.add_column(header, overflow="fold", no_wrap=header not in WORDY)
    for row in zip(*(cells for _, *cells in columns), strict=True):
        grid.add_row(*(Text(cell, _STYLES.get(cell, "")) for cell in row))
    console = Console()
    console.width = max(console.width, human.width(columns, WORDY))
    console.print(grid)
