"""How the files of a node's journal of claims are called; for those, too, who only look if there is one."""

import os
from pathlib import Path

FILE = "claims.sqlite"
HEAD = "claims.head"
"""How many strokes were written to it."""


def exists(directory: str) -> bool:
    """Whether a node with this state directory has, or had, a journal."""
    return any(os.path.exists(f"{directory}/{name}") for name in (FILE, HEAD))


def aside(directory: str) -> str:
    """Where a damaged one is put: a path that nothing has."""
    number = 1
    while os.path.exists(path := f"{directory}/{FILE}.damaged-{number}") or os.path.exists(f"{path}-wal"):
        number += 1
    return path


def damaged(directory: str) -> list[Path]:
    """Those that were set aside, by their names."""
    return sorted(Path(directory).glob(f"{FILE}.damaged-*"))
