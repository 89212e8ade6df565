"""`xce-reporter status`: the same as `xce-agent status`, of the external reporter of this machine."""

from collections.abc import Sequence

from xce.agent.cli import client, status

SUMMARY = "what the reporters and the link are doing, and what is wrong"


def run(argv: Sequence[str]) -> int:
    """Ask and print."""
    return status.run(argv, "xce-reporter status", client.EXTERNAL)
