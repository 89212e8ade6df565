"""`xce-broker host add | admit | release`: which hosts should exist."""

import argparse
from collections.abc import Sequence

from xce.broker.cli import COMMANDS, output, select
from xce.broker.cli.connect import connect
from xce.broker.cli.options import (
    GOOD,
    Example,
    UsageError,
    carry_out,
    connection,
    json_option,
    positive,
    verbs,
)
from xce.broker.cli.options import parser as command_parser
from xce.model.message import HostAdd, HostAdmit, HostRelease

SUMMARY = COMMANDS["host"]
ABOUT = """
add      a host should exist; it is `expected` until its agent joins
admit    let in a host that joined and that nobody expected (condition `unknown-host`)
release  the host should no longer exist; its agent is refused from now on
"""

_VERBS = {
    "add": "hosts should exist",
    "admit": "let unexpected hosts in",
    "release": "hosts should no longer exist",
}


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "host",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker host add 'node[01-16]' --group rack1 --join-within 600", "sixteen to come"),
            Example("xce-broker host admit node17", "yes, it is ours"),
            Example("xce-broker host release node03 --reason 'sent back'", "gone for good"),
        ],
        connects=False,
    )
    for verb, under in verbs(made, _VERBS).items():
        connection(under)
        under.add_argument("host", nargs="+", help="names or ranges")
        if verb == "add":
            under.add_argument("--group", action="append", default=[], help="host group; repeatable")
            under.add_argument("--instance", default="", metavar="ID", help="the provisioner's id")
            under.add_argument("--template", default="", help="what it was made from")
            under.add_argument(
                "--join-within",
                type=positive,
                default=0.0,
                metavar="SECONDS",
                help="say never-joined after this long",
            )
        if verb == "release":
            under.add_argument("--reason", default="", help="for those who look later")
        json_option(under, "print JSON")
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    names = select.hosts(options.host)
    if len(names) > 1 and options.verb == "add" and options.instance:
        raise UsageError("--instance is the id of one host", "add the hosts one by one")
    with connect(options) as client:
        for name in names:
            match options.verb:
                case "add":
                    order: HostAdd | HostAdmit | HostRelease = HostAdd(
                        id="",
                        host=name,
                        groups=options.group,
                        instance=options.instance,
                        template=options.template,
                        join_within_s=options.join_within,
                    )
                case "admit":
                    order = HostAdmit(id="", host=name)
                case _:
                    order = HostRelease(id="", host=name, reason=options.reason)
            revision = client.ask(order).revision
            text = f"host:{name} {options.verb}: done, revision {revision}"
            output.done(text, as_json=options.json, host=name, revision=revision)
    return GOOD
