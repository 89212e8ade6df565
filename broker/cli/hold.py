"""`xce-broker hold`: reasons not to use a location, each with its owner."""

import argparse
from collections.abc import Sequence

from xce.broker.cli import COMMANDS, output
from xce.broker.cli.connect import connect
from xce.broker.cli.options import GOOD, Example, UsageError, carry_out, json_option
from xce.broker.cli.options import parser as command_parser
from xce.broker.client import Client
from xce.broker.views import hold_rows
from xce.model.message import HoldAdd, HoldRelease
from xce.model.supply import split_location

SUMMARY = COMMANDS["hold"]
ABOUT = """
A location (host:NAME, group:NAME, pool:NAME, storage:NAME) may be chosen only while it has no hold. Each hold
has an owner, and only the owner or an admin ends it. Ours is owned by the name of our key; with --label one
owner can place several.
"""


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "hold",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker hold", "all holds"),
            Example("xce-broker hold pool:matlab --reason 'licence server moves' --label move", "place one"),
            Example("xce-broker hold --end pool:matlab", "end the only one there"),
            Example("xce-broker hold --end host:node17 --owner reporter:node_health", "end this one"),
        ],
    )
    made.add_argument("location", nargs="?", default="", help="host:NAME, pool:NAME, ...; none: list")
    made.add_argument("--reason", default="", help="for those who look later; needed to hold")
    made.add_argument("--label", default="", help="what tells several holds of one owner apart")
    made.add_argument("--end", action="store_true", help="end a hold instead")
    made.add_argument("--owner", default="", help="whose hold to end; needed if there are several")
    json_option(made, "list as JSON")
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    if options.location:
        try:
            split_location(options.location)
        except ValueError as error:
            raise UsageError(str(error)) from error
    elif options.end or options.reason:
        raise UsageError("which location?", "host:NAME, group:NAME, pool:NAME or storage:NAME")
    if options.location and not options.end and not options.reason:
        raise UsageError("a hold needs a reason", "--reason 'why'")
    with connect(options) as client:
        if not options.location:
            _list(client, options)
        elif options.end:
            _end(client, options.location, options.owner)
        else:
            done = client.ask(
                HoldAdd(id="", location=options.location, reason=options.reason, label=options.label)
            )
            print(f"{options.location} held, revision {done.revision}")
    return GOOD


def _list(client: Client, options: argparse.Namespace) -> None:

    rows = hold_rows(client.snapshot())
    if options.json:
        output.json(rows)
    else:
        cells = [(row.location, row.owner, row.reason, row.ends, row.since) for row in rows]
        output.table(("LOCATION", "OWNER", "REASON", "ENDS", "SINCE"), cells, none="no holds")


def _end(client: Client, location: str, owner: str) -> None:

    if not owner:
        view = client.snapshot([location]).locations.get(location)
        owners = [hold.owner for hold in view.holds] if view else []
        if view is None:
            raise UsageError(f"there is no {location}", "xce-broker hold lists what is held")
        if len(owners) != 1:
            found = f"{len(owners)} holds" if owners else "no hold"
            raise UsageError(f"{location} has {found}", f"--owner {' | '.join(owners)}" if owners else "")
        owner = owners[0]
    done = client.ask(HoldRelease(id="", location=location, owner=owner))
    print(f"{location} no longer held by {owner}, revision {done.revision}")
