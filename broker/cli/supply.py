"""`xce-broker supply`: what is where, how old it is, and why it is not there."""

import argparse
from collections.abc import Sequence

from xce.broker import views
from xce.broker.cli import COMMANDS, output
from xce.broker.cli.connect import connect
from xce.broker.cli.options import GOOD, TROUBLE, Example, carry_out, json_option
from xce.broker.cli.options import parser as command_parser
from xce.broker.cli.select import require, require_known, selector
from xce.broker.mirror import Mirror
from xce.model import human
from xce.model.value import Presence

SUMMARY = COMMANDS["supply"]
ABOUT = """
One line for each resource at each location (host, host group, pool, storage). PRESENCE says why there is a
value or none:

  value           good, and not older than its time to live
  stale           not refreshed in time, nobody knows why
  unknown         its reporter said so, or failed
  never-seen      declared here, and nothing was heard yet
  not-applicable  its reporter said that it means nothing here

AGE is the age of the value, or how long it has been absent. SOURCE and STATE are those of the location.
"""


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "supply",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker supply mem 'tmp*' --host 'node[01-16]'", "two resources of 16 hosts"),
            Example("xce-broker supply --problems", "all that is not as it should be; exit 1 if any"),
            Example("xce-broker supply --location 'pool:*'", "what pools have"),
            Example("xce-broker supply --json | jq '.[] | select(.age_s > 60)'", "for scripts"),
        ],
    )
    made.add_argument("resource", nargs="*", help="names of resources, as patterns; default: all")
    made.add_argument("--host", action="append", default=[], help="only hosts of this pattern or range")
    made.add_argument(
        "--location", action="append", default=[], help="only locations of this pattern (pool:*, host:a*)"
    )
    made.add_argument(
        "--presence",
        action="append",
        choices=[presence.value for presence in Presence],
        default=[],
        help="only readings of this presence; repeatable",
    )
    made.add_argument("--problems", action="store_true", help="only what needs attention; exit 1 if any")
    json_option(made)
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    resources, hosts, places = map(selector, (options.resource, options.host, options.location))
    with connect(options) as client:
        mirror = client.snapshot(detail=True)
    _known(options, mirror)
    rows = [
        row
        for row in views.supply_rows(mirror)
        if resources(row.resource)
        and places(row.location)
        and (not options.host or (row.location.startswith("host:") and hosts(row.location[5:])))
        and (not options.presence or row.presence in options.presence)
        and (row.is_problem or not options.problems)
    ]
    if options.json:
        output.json(rows)
    else:
        output.table(
            (
                "RESOURCE",
                "LOCATION",
                "VALUE",
                "PRESENCE",
                "AGE",
                "SOURCE",
                "STATE",
                "REPORTER",
                "HOLDS",
                "CAUSE",
            ),
            [
                (
                    row.resource,
                    row.location,
                    output.value(row.value, row.unit),
                    row.presence.value,
                    human.span(row.age_s),
                    row.source,
                    row.state,
                    row.reporter,
                    output.holds(row.holds),
                    row.cause,
                )
                for row in rows
            ],
            none="no problems" if options.problems else "nothing is supplied",
        )
    return TROUBLE if options.problems and rows else GOOD


def _known(options: argparse.Namespace, mirror: Mirror) -> None:
    require_known(options.resource, options.location, mirror)
    hosts = [key[5:] for key in mirror.locations if key.startswith("host:")]
    require("host", options.host, hosts, "xce-broker hosts lists them")
