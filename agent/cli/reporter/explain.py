"""`xce-agent reporter explain RESOURCE`: the same as `xce-agent explain`."""

from collections.abc import Sequence

from xce.agent.cli import explain

SUMMARY = "the same as `xce-agent explain`"


def run(argv: Sequence[str]) -> int:
    """Ask and print."""
    return explain.run(argv, "xce-agent reporter explain")
