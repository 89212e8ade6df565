"""`xce-agent reporter`: what reporters there are, and everything that a person who writes one needs."""

from collections.abc import Sequence

from xce.agent.cli import dispatch

SUMMARY = "list, test, check, record and reset reporters"
COMMANDS = ("list", "test", "lint", "explain", "reset", "record")


def run(argv: Sequence[str]) -> int:
    """Run one of its commands."""
    return dispatch("xce-agent reporter", __name__, COMMANDS, [*argv])  # `list` is a module of ours here
