"""`xce-reporter status`: the same as `xce-agent status`, of the external reporter of this machine."""

from collections.abc import Sequence

from xce.agent.cli import GOOD, status

SUMMARY = "what the reporters and the link are doing, and what is wrong"


def run(argv: Sequence[str]) -> int:
    """Ask and print."""
    if "--help" in argv:
        print(status.USAGE_TEXT.replace("xce-agent", "xce-reporter").replace("agent", "reporter"))
        return GOOD
    return status.run(argv, external=True)
