"""`xce-broker quarantine list | set | clear`: instances that exist and may not be used."""

import argparse
from collections.abc import Sequence

from xce.broker.claim_rows import QuarantineRow, quarantine_rows
from xce.broker.cli import COMMANDS, output
from xce.broker.cli.connect import connect
from xce.broker.cli.options import GOOD, Example, carry_out, connection, json_option, verbs
from xce.broker.cli.options import parser as command_parser
from xce.model.message import ClaimsRequest, QuarantineClear, QuarantineSet

SUMMARY = COMMANDS["quarantine"]
ABOUT = """
An instance is quarantined when a node gave it back in a state in which nobody may use it, when the release of
its binding was forced, when a node has it bound and nobody knows for whom, or by hand. It is not chosen, and
neither is what it is a part of, until it is cleared.
"""
_VERBS = {
    "list": "list what is quarantined, with reasons",
    "set": "quarantine an instance",
    "clear": "let an instance be used again",
}


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "quarantine",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker quarantine list", "all of it"),
            Example("xce-broker quarantine set node7 GPU-1f3a --reason 'fails under load'", "by hand"),
            Example("xce-broker quarantine clear node7 GPU-1f3a --reason 'passed dcgmi diag'", "back to use"),
        ],
        connects=False,
    )
    for verb, under in verbs(made, _VERBS).items():
        if verb == "list":
            under.add_argument("--host", default="", help="only of this host")
        else:
            under.add_argument("host")
            under.add_argument("instance")
            under.add_argument("--reason", required=True, help="for those who look later")
        json_option(under, "print JSON")
        connection(under)
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    with connect(options) as client:
        if options.verb == "list":
            return _list(
                options, quarantine_rows(client.ask(ClaimsRequest(id="", host=options.host)).quarantined)
            )
        order = QuarantineSet if options.verb == "set" else QuarantineClear
        done = client.ask(order(id="", host=options.host, instance=options.instance, reason=options.reason))
    if options.json:
        output.json({"revision": done.revision})
    else:
        words = "quarantined" if options.verb == "set" else "may be used again"
        print(f"{options.instance} on {options.host} {words}, revision {done.revision}")
    return GOOD


def _list(options: argparse.Namespace, rows: Sequence[QuarantineRow]) -> int:
    if options.json:
        output.json(rows)
    else:
        cells = [
            (row.host, row.instance, row.kind, row.reason, row.by, row.binding, row.since) for row in rows
        ]
        headers = ("HOST", "INSTANCE", "KIND", "REASON", "BY", "BINDING", "SINCE")
        output.table(headers, cells, none="nothing is quarantined")
    return GOOD
