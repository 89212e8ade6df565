"""`xce-broker types`: the resource types that hold in the cluster."""

import argparse
from collections.abc import Sequence

from xce.broker.cli import COMMANDS, output
from xce.broker.cli.connect import connect
from xce.broker.cli.options import GOOD, Example, carry_out, json_option
from xce.broker.cli.options import parser as command_parser
from xce.broker.cli.select import require, selector
from xce.model import human

SUMMARY = COMMANDS["types"]
ABOUT = """
The types of resources.yaml, those that are built in, and those that reporters have declared. A reporter can
only report names that have a type. TTL is how old a value may become; `-` means the interval and time-out of
its reporter.
"""


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "types",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker types", "all types"),
            Example("xce-broker types 'lic*' --json", "everything that is known of some"),
        ],
    )
    made.add_argument("name", nargs="*", help="names, as patterns; default: all")
    json_option(made)
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    with connect(options) as client:
        mirror = client.snapshot(["host:-"])  # the head of a snapshot has the types; no location is wanted
    wanted = selector(options.name)
    require("resource type", options.name, mirror.types, "xce-broker types lists them")
    rows = sorted((kind for kind in mirror.types.values() if wanted(kind.name)), key=lambda kind: kind.name)
    if options.json:
        output.json(rows)
        return GOOD
    output.table(
        ("NAME", "KIND", "UNIT", "SCOPE", "INTERVAL", "TTL", "REPORTER", "FLAGS", "DESCRIPTION"),
        [
            (
                kind.name,
                kind.kind.value,
                kind.unit,
                kind.scope.value,
                human.span(kind.interval),
                human.span(kind.ttl),
                kind.reporter,
                ",".join(
                    filter(None, ("consumable" * kind.consumable, kind.order.value * (kind.order != "none")))
                ),
                kind.description,
            )
            for kind in rows
        ],
        none="no such type" if options.name else "no types",
    )
    return GOOD
