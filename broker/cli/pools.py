"""`xce-broker pools`: what pools have, what they have borrowed, and what is reported of them."""

import argparse
from collections.abc import Sequence

from xce.broker import views
from xce.broker.cli import COMMANDS, output
from xce.broker.cli.connect import connect
from xce.broker.cli.options import GOOD, Example, carry_out, json_option
from xce.broker.cli.options import parser as command_parser
from xce.broker.cli.select import selector
from xce.model import human

SUMMARY = COMMANDS["pools"]
ABOUT = """
BASE and BORROWED come from resources.yaml and `xce-broker pool set`. REPORTED is what the pool's reporter
measured (a licence server's free count), shown as it was reported. A reporter that fails makes it unknown,
never 0.
"""
HEADERS = (
    *("POOL", "RESOURCE", "BASE", "BORROWED", "TOTAL", "REPORTED"),
    *("AGE", "REPORTER", "STATE", "HOLDS", "CAUSE"),
)


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "pools",
        SUMMARY,
        ABOUT,
        [Example("xce-broker pools", "all pools"), Example("xce-broker pools matlab --json", "one of them")],
    )
    made.add_argument("pattern", nargs="*", help="names of pools, as patterns; default: all")
    json_option(made)
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    with connect(options) as client:
        mirror = client.snapshot(detail=True)
    wanted = selector(options.pattern)
    rows = [row for row in views.pool_rows(mirror) if wanted(row.pool)]
    if options.json:
        output.json(rows)
        return GOOD
    output.table(
        HEADERS,
        [
            (
                row.pool,
                row.resource,
                *(
                    output.value(None if n is None else views.whole(n))
                    for n in (row.base, row.borrowed, row.total)
                ),
                output.value(row.reported, row.unit) or (row.presence.value if row.presence else ""),
                human.span(row.age_s),
                row.reporter,
                row.state,
                output.holds(row.holds),
                row.cause,
            )
            for row in rows
        ],
        none="no such pool" if options.pattern else "no pools",
    )
    return GOOD
