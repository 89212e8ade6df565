"""`xce-broker pool set`: change what a pool has."""

import argparse
from collections.abc import Sequence

from xce.broker.cli import COMMANDS, output
from xce.broker.cli.connect import connect
from xce.broker.cli.options import GOOD, Example, UsageError, carry_out, connection, json_option
from xce.broker.cli.options import parser as command_parser
from xce.model.message import PoolSet

SUMMARY = COMMANDS["pool"]
ABOUT = """
The amount is durable and wins over resources.yaml. What is not given stays as it is.
"""


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "pool",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker pool set matlab lic_matlab --base 20", "twenty licences of our own"),
            Example("xce-broker pool set matlab lic_matlab --borrowed 5", "and five lent by another site"),
        ],
        connects=False,
    )
    verbs = made.add_subparsers(dest="verb", required=True, metavar="set")
    verb = verbs.add_parser("set", help=SUMMARY)
    connection(verb)
    verb.add_argument("pool")
    verb.add_argument("resource")
    verb.add_argument("--base", type=float, metavar="AMOUNT", help="what the pool has itself")
    verb.add_argument("--borrowed", type=float, metavar="AMOUNT", help="what it has from elsewhere")
    verb.add_argument("--op-id", default="", metavar="ID", help="same id, same answer, for retries")
    json_option(verb, "print JSON")
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    if options.base is None and options.borrowed is None:
        raise UsageError("nothing to set", "give --base, --borrowed, or both")
    with connect(options) as client:
        done = client.ask(
            PoolSet(
                id=options.op_id,
                pool=options.pool,
                resource=options.resource,
                base=options.base,
                borrowed=options.borrowed,
            )
        )
    text = f"pool:{options.pool} {options.resource} set, revision {done.revision}"
    output.done(
        text, as_json=options.json, pool=options.pool, resource=options.resource, revision=done.revision
    )
    return GOOD
