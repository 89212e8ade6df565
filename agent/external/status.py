"""`xce-reporter status`: the same as `xce-agent status`, of the external reporter of this machine."""

from collections.abc import Sequence

from xce.agent.cli import status

SUMMARY = "what the reporters and the link are doing, and what is wrong"
SOCKET = "/run/xce-reporter/agent.sock"


def run(argv: Sequence[str]) -> int:
    """Ask and print."""
    given = ["--socket", SOCKET] if "--socket" not in argv else []
    return status.run([*given, *argv])
