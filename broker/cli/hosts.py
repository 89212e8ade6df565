"""`xce-broker hosts`: every host, its state, and why it may not be used."""

import argparse
from collections.abc import Sequence

from xce.broker import views
from xce.broker.cli import COMMANDS, output
from xce.broker.cli.connect import connect
from xce.broker.cli.options import GOOD, TROUBLE, Example, carry_out, json_option
from xce.broker.cli.options import parser as command_parser
from xce.broker.cli.select import require, selector
from xce.model.supply import HostState

SUMMARY = COMMANDS["hosts"]
TROUBLES, TROUBLE_CHARS = 3, 60
ABOUT = """
A host is usable when its state is `available` and it has no holds. Down is not drained: `lost` means that its
agent is silent, `draining` that somebody wants it so. INSTANCES counts its devices by kind and, where not all
are available, says how many are. READINGS counts its values, and what is not a value by its presence.
REPORTERS names those in trouble; `xce-agent status` on the host knows more.
"""


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "hosts",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker hosts", "all hosts"),
            Example("xce-broker hosts 'gpu*' --problems", "those of gpu* that need attention"),
            Example("xce-broker hosts --state lost --state draining", "what cannot be used"),
        ],
    )
    made.add_argument("pattern", nargs="*", help="host names, as a pattern or range")
    made.add_argument(
        "--state",
        action="append",
        choices=[state.value for state in HostState],
        default=[],
        help="only hosts in this state; repeatable",
    )
    made.add_argument("--problems", action="store_true", help="only hosts that need attention; exit 1 if any")
    json_option(made)
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    with connect(options) as client:
        mirror = client.snapshot(detail=True)
    wanted, every = selector(options.pattern), views.host_rows(mirror)
    require("host", options.pattern, (row.host for row in every), "xce-broker hosts lists them")
    rows = [
        row
        for row in every
        if wanted(row.host)
        and (not options.state or row.state in options.state)
        and (row.is_problem or not options.problems)
    ]
    if options.json:
        output.json(rows)
    else:
        output.table(
            (
                "HOST",
                "STATE",
                "CONDITIONS",
                "HOLDS",
                "SOURCE",
                "GROUPS",
                "INSTANCES",
                "READINGS",
                "REPORTERS",
            ),
            [
                (
                    row.host,
                    row.state,
                    ",".join(row.conditions),
                    _holds(row),
                    row.source,
                    ",".join(row.groups),
                    _instances(row.instances),
                    _readings(row.presences),
                    reporters(row),
                )
                for row in rows
            ],
            none="no hosts with problems" if options.problems else "no hosts",
        )
    return TROUBLE if options.problems and rows else GOOD


def _holds(row: views.HostRow) -> str:
    drained = [f"drained ({row.drained})"] if row.drained else []
    return "; ".join([*drained, *([output.holds(row.holds)] if row.holds else [])])


def _instances(counts: dict[str, tuple[int, int]]) -> str:
    """`7/8 gpu, 2 nic`: of so many so many are available."""
    return ", ".join(
        f"{every} {kind}" if available == every else f"{available}/{every} {kind}"
        for kind, (available, every) in counts.items()
    )


def _readings(presences: dict[str, int]) -> str:
    counts = [f"{presences.get('value', 0)} good"]
    counts += [f"{count} {name}" for name, count in sorted(presences.items()) if name != "value"]
    return ", ".join(counts)


def reporters(row: views.HostRow) -> str:
    """The beginning of each trouble: one host is one line, and `--json` has all of it."""
    trouble = [f"{name} {_beginning(text)}" for name, text in sorted(row.trouble.items())[:TROUBLES]]
    trouble += [f"{len(row.trouble) - TROUBLES} more"] if len(row.trouble) > TROUBLES else []
    return "; ".join(trouble) or f"{len(row.reporters)} good"


def _beginning(text: str) -> str:
    return text if len(text) <= TROUBLE_CHARS else f"{text[: TROUBLE_CHARS - 1]}…"
