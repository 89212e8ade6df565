"""`xce-agent inventory clear ID --reason TEXT`: an admin's word on an instance."""

from collections.abc import Sequence

from xce.agent.cli import GOOD, client
from xce.agent.cli.options import Options, UsageError

SUMMARY = "forget a removed instance, or let one be used again"
PROGRAM = "xce-agent inventory clear"
HELP = """
An instance that was removed is forgotten, with its parts. One that is ill, on probation or quarantined may be
used again in spite of what is held against it; a fault that is still seen stays waived until it is gone.
"""


def run(argv: Sequence[str]) -> int:
    """Tell the running agent; 0 when it has done so."""
    if "--help" in argv:
        print(f"usage: {PROGRAM} [--socket PATH | --config FILE] ID ... --reason TEXT\n\n{SUMMARY}\n{HELP}")
        return GOOD
    options = Options(argv, values=["--socket", "--config", "--reason"])
    if not options.arguments:
        raise UsageError("expected the ID of an instance")
    if not options.get("--reason").strip():
        raise UsageError("expected --reason TEXT: it is logged and shown")
    path = client.socket_path(options.get("--socket"), options.get("--config"))
    for id_ in options.arguments:
        client.ask(path, op="inventory-clear", id=id_, reason=options.get("--reason"))
        print(f"{id_}: cleared")
    return GOOD
