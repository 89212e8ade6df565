"""`xce-broker run`: the broker itself, in the foreground, as systemd wants it."""

import argparse
from collections.abc import Sequence
from pathlib import Path

SUMMARY = "run the broker in the foreground"


def run(argv: Sequence[str]) -> int:
    """Serve until TERM or INT; 0 after a clean stop, 1 when it could not start."""
    parser = argparse.ArgumentParser(prog="xce-broker run", description=SUMMARY)
    parser.add_argument("--config", type=Path, default=Path("/etc/xce/broker.yaml"), metavar="FILE")
    parser.add_argument(
        "--start-empty",
        action="store_true",
        help="accept that a damaged store is lost, with every drain, hold and key; its files are kept aside",
    )
    options = parser.parse_args(list(argv))
    from xce.broker import daemon  # noqa: PLC0415 - zmq and SQLite are not needed for --help

    return daemon.run(options.config, start_empty=options.start_empty)
