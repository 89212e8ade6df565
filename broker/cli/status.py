"""`xce-broker status`: the broker about itself."""

import argparse
from collections.abc import Sequence

from xce.broker.cli import COMMANDS, output
from xce.broker.cli.connect import connect
from xce.broker.cli.options import GOOD, TROUBLE, Example, carry_out, json_option
from xce.broker.cli.options import parser as command_parser
from xce.model import human
from xce.model.message import StatusRequest

SUMMARY = COMMANDS["status"]
ABOUT = """
Ends with exit status 1 if anything needs an admin, so that a monitor can run it. Counters count from the
start of the broker.
"""


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "status",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker status", "is all well?"),
            Example("xce-broker status --peers", "and who is connected"),
        ],
    )
    made.add_argument("--peers", action="store_true", help="list connected peers too")
    json_option(made)
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    with connect(options) as client:
        status = client.ask(StatusRequest(id="", peers=options.peers))
    code = TROUBLE if status.trouble else GOOD
    if options.json:
        output.json(status)
        return code
    for text in status.trouble:
        print(f"needs attention: {human.printable(text)}")
    peers = ", ".join(f"{count} {role}" for role, count in sorted(status.roles.items()))
    output.fields(
        [
            ("broker", f"{status.software}, pid {status.pid}, up {human.span(status.uptime_s)}"),
            ("revision", str(status.revision)),
            ("position", f"{status.sequence} (epoch {status.epoch}, incarnation {status.incarnation})"),
            ("peers", peers or "none"),
            ("watchers", str(status.watchers)),
            *output.quality(status.quality),
            ("claims", _states(status.claims)),
            ("bindings", _states(status.bindings)),
            *([("quarantined", f"{status.quarantined} instances")] if status.quarantined else []),
            *_counters(status.counters),
        ]
    )
    if options.peers:
        print()
        output.table(
            ("ROLE", "NAME", "ADDRESS", "CONNECTED", "KEY"),
            [
                (peer.role, peer.name, peer.address, human.span(peer.connected_s), peer.key)
                for peer in sorted(status.peers, key=lambda peer: (peer.role, peer.name))
            ],
            none="no peers",
        )
    return code


def _states(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"


def _counters(counters: dict[str, int]) -> list[tuple[str, str]]:
    """What the broker has counted; of its store's latency the mean."""
    shown = [(name, f"{count}") for name, count in sorted(counters.items()) if not name.startswith("commits")]
    if commits := counters.get("commits", 0):
        mean_ms = counters.get("commits.us", 0) / commits / 1000
        shown.append(("commits", f"{commits}, {mean_ms:.1f} ms each"))
    return shown
