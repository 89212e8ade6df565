"""`xce-reporter explain RESOURCE`: as `xce-agent explain`, of the external reporter of this machine."""

from collections.abc import Sequence

from xce.agent.cli import GOOD, client, explain

SUMMARY = "where a value comes from, and why the broker does not take it"


def run(argv: Sequence[str]) -> int:
    """Ask and print."""
    if "--help" in argv:
        print(explain.USAGE_TEXT.replace("xce-agent", "xce-reporter").replace("agent", "reporter"))
        return GOOD
    try:
        return explain.run(argv, external=True)
    except client.NotRunning as error:
        raise client.NotRunning(client.of_reporter(str(error))) from None
