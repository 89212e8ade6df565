"""`xce-broker snapshot`: the map at one moment, as a controller gets it."""

import argparse
from collections.abc import Sequence

from xce.broker.cli import COMMANDS, output
from xce.broker.cli.connect import connect
from xce.broker.cli.options import GOOD, Example, UsageError, carry_out, json_option
from xce.broker.cli.options import parser as command_parser
from xce.broker.cli.select import LOCATIONS
from xce.model.instance import Inventory

SUMMARY = COMMANDS["snapshot"]
ABOUT = """
The revision counts durable changes. The position (epoch, incarnation, sequence) is the place in the change
stream after which `xce-broker watch` or a controller goes on. The quality says how much of the map is fresh.
"""


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "snapshot",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker snapshot", "number and quality"),
            Example("xce-broker snapshot host:node17 pool:matlab --json", "two locations, whole"),
        ],
    )
    made.add_argument("location", nargs="*", help="only these (host:NAME, pool:NAME, ...); default: all")
    made.add_argument("--inventories", action="store_true", help="with the bodies of inventories (JSON)")
    json_option(made, "print all of it as JSON")
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    if options.inventories and not options.json:
        raise UsageError("--inventories is for JSON", "add --json")
    bodies: dict[str, dict[str, Inventory]] = {}
    with connect(options) as client:
        mirror = client.snapshot(options.location, detail=True)
        if strange := [name for name in options.location if name not in mirror.locations]:
            raise UsageError(f"there is no location {strange[0]!r}", LOCATIONS)
        if options.inventories:
            for location, reporters in mirror.wanted().items():
                bodies |= client.inventories({location: reporters})
    place, quality = mirror.position, mirror.quality
    if options.json:
        output.json(
            {
                "revision": mirror.revision,
                "position": place,
                "broker_ms": mirror.broker_ms,
                "taken_at": mirror.taken_at,
                "quality": quality,
                "types": list(mirror.types.values()),
                "locations": mirror.whole(),
                **({"inventories": bodies} if options.inventories else {}),
            }
        )
        return GOOD
    output.fields(
        [
            ("revision", str(mirror.revision)),
            ("position", f"{place.sequence} (epoch {place.epoch}, incarnation {place.incarnation})"),
            ("taken at", mirror.taken_at),
            ("locations", str(len(mirror.locations))),
            ("types", str(len(mirror.types))),
            *output.quality(quality),
        ]
    )
    return GOOD
