"""`xce-agent reporter reset NAME`: forget its failures and run it again soon."""

from collections.abc import Sequence

from xce.agent.cli import GOOD, TROUBLE, client
from xce.agent.cli.options import Options, UsageError
from xce.model import human

SUMMARY = "forget a reporter's failures and run it again soon"
PROGRAM = "xce-agent reporter reset"


def run(argv: Sequence[str]) -> int:
    """Tell the running agent; 0 when it will run them."""
    if "--help" in argv:
        print(f"usage: {PROGRAM} [--socket PATH | --config FILE] NAME ...\n\n{SUMMARY}")
        return GOOD
    options = Options(argv, values=["--socket", "--config"])
    if not options.arguments:
        raise UsageError("expected the NAME of a reporter")
    path = client.socket_path(options.get("--socket"), options.get("--config"))
    code = GOOD
    for name in options.arguments:
        kept = client.ask(path, op="reset", reporter=name)["kept"]
        print(human.printable(f"{name}: {kept or 'will run again soon'}"))
        code = TROUBLE if kept else code
    return code
