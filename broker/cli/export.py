"""`xce-broker export`: all facts as JSON lines, for people and programs that have no store."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from xce.broker.cli import COMMANDS
from xce.broker.cli.options import GOOD, Example, UsageError, carry_out
from xce.broker.cli.options import parser as command_parser
from xce.broker.cli.statedir import configuration_option, place_of, whole_copy
from xce.broker.store import StoreError, json_lines
from xce.broker.store.sqlite import facts_of

SUMMARY = COMMANDS["export"]
ABOUT = """
One line for each durable change, in order: revision, what changed, who gave the order, when. After 200,000
changes the first line is a checkpoint: all that those before it have come to. To be run on the
broker's host, as root or as its user; with --from anywhere.
"""


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "export",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker export > facts.jsonl", "as of now"),
            Example(
                "xce-broker export --from /srv/backup/xce.db | grep '\"host.drained\"'", "who drained what"
            ),
        ],
    )
    made.add_argument(
        "--from", dest="copy", type=Path, metavar="FILE", help="a copy that `xce-broker backup` made"
    )
    configuration_option(made)
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    copy = options.copy
    if copy is None:
        place = place_of(options)
        whole_copy(options, place)
        copy = place.copy
    try:
        facts = facts_of(copy)
    except StoreError as error:
        raise UsageError(str(error)) from error
    for line in json_lines(facts):
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
    return GOOD
