"""`xce-broker run`: the broker itself, in the foreground, as systemd wants it."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from xce.broker.cli import COMMANDS
from xce.broker.cli.options import CONFIGURATION, Example
from xce.broker.cli.options import parser as command_parser

SUMMARY = COMMANDS["run"]
ABOUT = """
Reads broker.yaml, and what that names: resources.yaml, hosts.yaml, the broker's key and the accepted keys.
HUP reads them again; a file that does not fit is refused whole, and what was good stays in force. TERM and
INT end it in order. Whatever ends it, what it has confirmed is kept, and after the next start hosts are
`rejoining` until they have been heard again. Messages go to stderr, readiness and the watchdog to systemd.
"""
EXIT_STATUS = """\
exit status:
  0  stopped by a signal
  1  could not start; the reason is on stderr
  2  wrong usage"""


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "run",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker run", "what the unit xce-broker.service does"),
            Example("xce-broker run --config ./broker.yaml", "try another configuration"),
        ],
        connects=False,
        exit_status=EXIT_STATUS,
    )
    made.add_argument(
        "--config", type=Path, default=CONFIGURATION, metavar="FILE", help="default: %(default)s"
    )
    made.add_argument(
        "--start-empty",
        action="store_true",
        help="accept that a damaged store is lost, with every drain, hold and key; its files are kept aside",
    )
    return made


def run(argv: Sequence[str]) -> int:
    """Serve until TERM or INT; 0 after a clean stop, 1 when it could not start."""
    options = parser().parse_args(list(argv))
    from xce.broker import daemon  # noqa: PLC0415 - SQLite and the core are not needed for --help

    return daemon.run(options.config, start_empty=options.start_empty)
