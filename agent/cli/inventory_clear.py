"""`xce-agent inventory clear ID --reason TEXT`: an admin's word on an instance."""

from collections.abc import Sequence

from xce.agent.cli import GOOD, client, machine
from xce.agent.cli.options import Options, UsageError

SUMMARY = "forget a removed instance, or let one be used again"
PROGRAM = "xce-agent inventory clear"
HELP = """
An instance that was removed is forgotten, with its parts. One that is ill, on probation or quarantined may be
used again in spite of what is held against it; a fault that is still seen stays waived until it is gone.

ID is an id or the beginning of one, as the table shows it. Names (GPU3) move, and are not taken.
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
    ids = [one.id for one in machine.of_agent(path).instances]
    for id_ in [whole(text, ids) for text in options.arguments]:
        client.ask(path, op="inventory-clear", id=id_, reason=options.get("--reason"))
        print(f"{id_}: cleared")
    return GOOD


def whole(text: str, ids: Sequence[str]) -> str:
    """The id that is meant. Raises `UsageError`."""
    matching = [one for one in ids if one == text] or [one for one in ids if machine.abbreviates(text, one)]
    matching = [one for one in matching if not any(one.startswith(f"{other}/") for other in matching)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(f"{text!r} is the beginning of {len(matching)} ids: give the whole one")
    raise UsageError(f"no id begins with {text!r}; xce-agent inventory NAME shows the id")
