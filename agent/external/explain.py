"""`xce-reporter explain RESOURCE`: as `xce-agent explain`, of the external reporter of this machine."""

from collections.abc import Sequence

from xce.agent.cli import client, explain

SUMMARY = "where a value comes from, and why the broker does not take it"


def run(argv: Sequence[str]) -> int:
    """Ask and print."""
    return explain.run(argv, "xce-reporter explain", client.EXTERNAL)
