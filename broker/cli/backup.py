"""`xce-broker backup`: a copy of all facts in one file, whether the broker runs or not."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from xce.broker.cli import COMMANDS
from xce.broker.cli.options import GOOD, Example, carry_out
from xce.broker.cli.options import parser as command_parser
from xce.broker.cli.statedir import configuration_option, keep, place_of, whole_copy

SUMMARY = COMMANDS["backup"]
ABOUT = """
Hosts, drains, holds, pools, claims, types and keys: everything that the broker has confirmed. Readings are
not in it, they come anew. The broker goes on while it writes the copy. To be run on its host, as root or as
its user; the file is SQLite's, of mode 0600.
"""


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "backup",
        SUMMARY,
        ABOUT,
        [Example("xce-broker backup /srv/backup/xce.db", "each night, from a timer")],
    )
    made.add_argument(
        "file", type=Path, help="where to write; what is there is replaced when the copy is whole"
    )
    configuration_option(made)
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    place = place_of(options)
    revision = whole_copy(options, place)
    keep(place.copy, options.file)
    print(f"revision {revision} is in {options.file}")
    return GOOD
