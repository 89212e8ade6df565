"""`xce-broker instances`: what hosts have that is not alike, who has it, and whether it may be chosen."""

import argparse
from collections.abc import Sequence

from xce.broker import instance_rows
from xce.broker.cli import COMMANDS, output
from xce.broker.cli.connect import connect
from xce.broker.cli.options import GOOD, TROUBLE, Example, carry_out, json_option
from xce.broker.cli.options import parser as command_parser
from xce.broker.cli.select import require, selector
from xce.broker.client import Client
from xce.broker.mirror import Mirror
from xce.broker.views import natural
from xce.model.instance import Instance
from xce.model.supply import LocationKind, location

SUMMARY = COMMANDS["instances"]
ABOUT = """
First the inventories: each is what one reporter of a host has found, as a whole, and its generation is what a
choice names. From one that is not complete nothing may be chosen.

Then the instances, each above its parts (a GPU and its MIG slices, a NIC and its ports). HOLDERS are the
bindings because of which it may not be chosen: its own, or one of a part of it, or of what it is a part of;
then the id of that is named. What is bound or quarantined and in no inventory is shown too. All that is known
of one is told by `xce-agent inventory ID` on the host, or with --json.
"""
INVENTORY_HEADERS = ("HOST", "REPORTER", "GENERATION", "COMPLETE", "INSTANCES")
HEADERS = (
    *("HOST", "INSTANCE", "KIND", "PART OF", "WHAT", "NUMA", "PCI", "NAMES"),
    *("HEALTH", "HOLDERS", "REASON"),
)


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "instances",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker instances node7", "all that one host has"),
            Example("xce-broker instances 'gpu*' --kind gpu --kind mig", "GPUs and slices of some hosts"),
            Example("xce-broker instances --problems", "what is ill or quarantined anywhere"),
        ],
    )
    made.add_argument("pattern", nargs="*", help="host names, as a pattern or range; default: all")
    made.add_argument("--kind", action="append", default=[], help="only of this kind; repeatable")
    made.add_argument("--problems", action="store_true", help="only what needs attention; exit 1 if any")
    json_option(made, "print JSON instead of tables, with all attributes")
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    with connect(options) as client:
        mirror = client.snapshot()
        hosts = _hosts(mirror, options.pattern)
        _fetch(client, mirror, hosts)
    inventories = instance_rows.inventory_rows(mirror, hosts)
    rows = [
        row
        for row in instance_rows.instance_rows(mirror, hosts)
        if (not options.kind or row.instance.kind in options.kind)
        and (row.is_problem or not options.problems)
    ]
    if options.json:
        output.json({"inventories": inventories, "instances": rows})
    else:
        if not options.problems:
            output.table(INVENTORY_HEADERS, map(_inventory_cells, inventories), none="no inventories")
            print()
        none = "no instances with problems" if options.problems else "no instances"
        output.table(HEADERS, map(_cells, rows), none=none)
    return TROUBLE if options.problems and rows else GOOD


def _hosts(mirror: Mirror, patterns: Sequence[str]) -> list[str]:
    """Those that are meant, in their order."""
    prefix = location(LocationKind.HOST, "")
    known = [key.removeprefix(prefix) for key in mirror.locations if key.startswith(prefix)]
    require("host", patterns, known, "xce-broker hosts lists them")
    return sorted(filter(selector(patterns), known), key=natural)


def _fetch(client: Client, mirror: Mirror, hosts: Sequence[str]) -> None:
    """The bodies of their inventories, into the mirror; host by host, as an answer has its limit."""
    for key, reporters in mirror.wanted(location(LocationKind.HOST, host) for host in hosts).items():
        mirror.keep(client.inventories({key: reporters}))


def _inventory_cells(row: instance_rows.InventoryRow) -> tuple[str, ...]:
    return (row.host, row.reporter, str(row.generation), "yes" if row.complete else "no", str(row.count))


def _cells(row: instance_rows.InstanceRow) -> tuple[str, ...]:
    one = row.instance
    return (
        *(row.host, one.id, one.kind, one.parent),
        _what(one),
        *(_text(one, name) for name in ("numa", "pci")),
        ",".join(dict.fromkeys(filter(None, (_text(one, name) for name in ("rdma", "nets"))))),
        row.health,
        ", ".join(
            f"{who.binding} ({who.claim})" + (f" has {who.instance}" if who.instance != one.id else "")
            for who in row.holders
        ),
        row.reason,
    )


def _what(one: Instance) -> str:
    """What it is among its kind: a slice by its profile, a port by its rate, all else by its product."""
    rate = " ".join(
        filter(None, (output.value(one.attributes.get("gbps"), "Gb/s"), _text(one, "fabric_kind")))
    )
    return _text(one, "profile") or (rate if "port" in one.attributes else _text(one, "product"))


def _text(one: Instance, attribute: str) -> str:
    return output.value(one.attributes.get(attribute))
