"""The broker as a process."""

from pathlib import Path


def run(config: Path) -> int:
    """Not here yet."""
    raise SystemExit(f"cannot run with {config} yet")
