"""`xce-agent reporter reset NAME`: forget its failures and run it again soon."""

from collections.abc import Sequence

from xce.agent.cli import GOOD, client
from xce.agent.cli.options import Options, UsageError

SUMMARY = "forget a reporter's failures and run it again soon"
PROGRAM = "xce-agent reporter reset"


def run(argv: Sequence[str]) -> int:
    """Tell the running agent; 0 when it knows the reporter."""
    if "--help" in argv:
        print(f"usage: {PROGRAM} [--socket PATH | --config FILE] NAME ...\n\n{SUMMARY}")
        return GOOD
    options = Options(argv, values=["--socket", "--config"])
    if not options.arguments:
        raise UsageError("expected the NAME of a reporter")
    path = client.socket_path(options.get("--socket"), options.get("--config"))
    for name in options.arguments:
        client.ask(path, op="reset", reporter=name)
        print(f"{name}: will run again soon")
    return GOOD
