"""`xce-agent discovery release|resume|read`: what an admin tells the probe."""

from collections.abc import Sequence

from xce.agent.cli import GOOD, client
from xce.agent.cli.options import Options, UsageError

SUMMARY = "give up the vendor's library, take it again, or read the devices now"
PROGRAM = "xce-agent discovery"
HELP = """
  release   before a driver upgrade, a GPU reset or a change of MIG by hand: when this ends, no process of the
            agent holds a handle of the library. What was known of the devices stays until it is too old
            (discovery.unknown_after); then it is unknown, and nothing of it is offered.
  resume    the library is asked again; a new one is loaded by a new process.
  read      read the devices now.
"""
ANSWER_S = 300.0
"""A probe that does not answer is ended, in as much peace as `discovery.grace` gives it."""
DISCOVERY = "discovery"
_OPERATIONS = {"release": "discovery-release", "resume": "discovery-resume", "read": "reset"}
_DONE = {
    "release": "released: nothing of the library is open",
    "resume": "resumed",
    "read": "reads now",
}


def run(argv: Sequence[str]) -> int:
    """Tell the running agent; 0 when it has done so."""
    if "--help" in argv:
        print(f"usage: {PROGRAM} [--socket PATH | --config FILE] release|resume|read\n\n{SUMMARY}\n{HELP}")
        return GOOD
    options = Options(argv, values=["--socket", "--config"])
    if len(options.arguments) != 1 or options.arguments[0] not in _OPERATIONS:
        raise UsageError("expected release, resume or read")
    order = options.arguments[0]
    path = client.socket_path(options.get("--socket"), options.get("--config"))
    client.ask(path, within_s=ANSWER_S, op=_OPERATIONS[order], reporter=DISCOVERY)
    print(_DONE[order])
    return GOOD
