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
            Example("xce-broker hold --end pool:matlab --label move", "end the one with this label"),
            Example("xce-broker hold --end host:node17 --owner reporter:node_health", "end this one"),
        ],
    )
    made.add_argument("location", nargs="?", default="", help="host:NAME, pool:NAME, ...; none: list")
    made.add_argument("--reason", default="", help="for those who look later; needed to hold")
    made.add_argument("--label", default="", help="what tells several holds of one owner apart")
    made.add_argument("--end", action="store_true", help="end a hold instead")
    made.add_argument("--owner", default="", help="whose hold to end; needed if there are several")
    json_option(made, "print JSON")
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    if options.location:
        try:
            split_location(options.location)
        except ValueError as error:
            hint = f"host:{options.location}, if the host is meant" if ":" not in options.location else ""
            raise UsageError(str(error), hint) from error
    elif options.end or options.reason or options.label or options.owner:
        raise UsageError("which location?", "host:NAME, group:NAME, pool:NAME or storage:NAME")
    _check_meaning(options)
    with connect(options) as client:
        if not options.location:
            _list(client, options)
        elif options.end:
            _end(client, options)
        else:
            done = client.ask(
                HoldAdd(id="", location=options.location, reason=options.reason, label=options.label)
            )
            text = f"{options.location} held, revision {done.revision}"
            output.done(text, as_json=options.json, location=options.location, revision=done.revision)
    return GOOD


def _list(client: Client, options: argparse.Namespace) -> None:

    rows = hold_rows(client.snapshot())
    if options.json:
        output.json(rows)
    else:
        cells = [(row.location, row.owner, row.reason, row.ends, row.since) for row in rows]
        output.table(("LOCATION", "OWNER", "REASON", "ENDS", "SINCE"), cells, none="no holds")


def _check_meaning(options: argparse.Namespace) -> None:
    """No option is passed over."""
    if not options.location:
        return
    if options.end and options.reason:
        raise UsageError("the end of a hold takes no reason", "leave out --reason")
    if options.end and options.owner and options.label:
        raise UsageError("--owner names a hold with its label", "leave out --label")
    if not options.end and options.owner:
        raise UsageError(
            "a hold is owned by whoever places it", "leave out --owner; --label tells ours apart"
        )
    if not options.end and not options.reason:
        raise UsageError("a hold needs a reason", "--reason 'why'")


def _end(client: Client, options: argparse.Namespace) -> None:
    location, owner = options.location, options.owner or _only_owner(client, options.location, options.label)
    done = client.ask(HoldRelease(id="", location=location, owner=owner))
    text = f"{location} no longer held by {owner}, revision {done.revision}"
    output.done(text, as_json=options.json, location=location, owner=owner, revision=done.revision)


def _only_owner(client: Client, location: str, label: str) -> str:
    """Whose hold is meant when nobody says so: that of the only one there is, or with this label."""
    view = client.snapshot([location]).locations.get(location)
    if view is None:
        raise UsageError(f"there is no {location}", "xce-broker hold lists what is held")
    owners = [hold.owner for hold in view.holds]
    meant = [owner for owner in owners if not label or owner.endswith(f"/{label}")]
    if len(meant) == 1:
        return meant[0]
    found = f"{len(meant)} holds" if meant else "no hold"
    named = f" with the label {label}" if label else ""
    raise UsageError(f"{location} has {found}{named}", f"--owner {' | '.join(owners)}" if owners else "")
