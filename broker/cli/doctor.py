"""`xce-broker doctor`: what on this host would keep the broker from its work, with advice for each."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from xce.broker.cli import COMMANDS, output
from xce.broker.cli.options import CONFIGURATION, GOOD, TROUBLE, Example, carry_out, json_option
from xce.broker.cli.options import parser as command_parser

SUMMARY = COMMANDS["doctor"]
ABOUT = """
Looks at files, keys, ports, the store, limits, the clock, refused agents and tokens that were left, whether
the broker runs or not, and changes nothing. Root looks with the eyes of the user that the broker runs as.
"""
EXIT_STATUS = """\
exit status:
  0  no problem (there may be warnings)
  1  a problem was found
  2  wrong usage"""


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "doctor",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker doctor", "before the first start, and when something is wrong"),
            Example("xce-broker doctor --json", "for a monitor"),
        ],
        connects=False,
        exit_status=EXIT_STATUS,
    )
    made.add_argument(
        "--config", type=Path, default=CONFIGURATION, metavar="FILE", help="default: %(default)s"
    )
    json_option(made)
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    from xce.broker import checks  # noqa: PLC0415 - SQLite and the core are not needed for --help

    _become(checks.owner(checks.settings_of(options.config)))
    found = [(name, one) for name, check in checks.all_checks(options.config) for one in check()]
    if options.json:
        output.json(
            [
                {"level": one.level, "what": name, "text": one.text, "advice": one.advice}
                for name, one in found
            ]
        )
    else:
        rows = [(one.level, name, one.text, one.advice) for name, one in found]
        output.table(("", "CHECK", "FOUND", "WHAT TO DO"), rows, none="nothing found")
    return TROUBLE if any(one.level == "problem" for _, one in found) else GOOD


def _become(user: int) -> None:
    """For the rest of this process; a group of that number is the user's own where packages made it."""
    if os.geteuid() != 0 or user == 0:
        return
    import pwd  # noqa: PLC0415

    try:
        entry = pwd.getpwuid(user)
    except KeyError:
        return
    os.setgroups([])
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(user, user, user)
