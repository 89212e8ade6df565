"""`xce-broker drain`: nothing new on a host, until the drain is ended."""

import argparse
from collections.abc import Sequence

from xce.broker.cli import COMMANDS, output, select
from xce.broker.cli.connect import connect
from xce.broker.cli.options import GOOD, Example, UsageError, carry_out, json_option
from xce.broker.cli.options import parser as command_parser
from xce.broker.views import host_rows
from xce.model.message import HostDrain, HostUndrain

SUMMARY = COMMANDS["drain"]
ABOUT = """
A draining host keeps what runs and is chosen for nothing new. The drain is durable and stays over restarts of
host and broker, whatever happens to its connection. Holds are something else: they can be placed by others
beside it, and each must be taken away by itself.
"""


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "drain",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker drain", "which hosts are drained, and why"),
            Example("xce-broker drain node17 --reason 'fan 3 is dead'", "drain one"),
            Example("xce-broker drain --end 'node[01-16]'", "let sixteen be used again"),
        ],
    )
    made.add_argument("host", nargs="*", help="names or ranges; none: list")
    made.add_argument("--reason", default="", help="for those who look later; needed to drain")
    made.add_argument("--end", action="store_true", help="end the drain instead")
    json_option(made, "print JSON")
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    if options.host and not options.end and not options.reason:
        raise UsageError("a drain needs a reason", "--reason 'why'")
    if options.end and not options.host:
        raise UsageError("which host's drain should end?")
    if options.end and options.reason:
        raise UsageError("the end of a drain takes no reason", "leave out --reason")
    if options.reason and not options.host:
        raise UsageError("which host?", "xce-broker drain HOST --reason 'why'")
    names = select.hosts(options.host)
    with connect(options) as client:
        if not names:
            rows = [row for row in host_rows(client.snapshot()) if row.drained or row.state == "draining"]
            if options.json:
                output.json(rows)
            else:
                cells = [(row.host, row.state, ",".join(row.conditions), row.drained) for row in rows]
                output.table(("HOST", "STATE", "CONDITIONS", "REASON"), cells, none="no host is drained")
        for name in names:
            order = (
                HostUndrain(id="", host=name)
                if options.end
                else HostDrain(id="", host=name, reason=options.reason)
            )
            what = "drain ended" if options.end else "drained"
            revision = client.ask(order).revision
            output.done(
                f"host:{name} {what}, revision {revision}", as_json=options.json, host=name, revision=revision
            )
    return GOOD
