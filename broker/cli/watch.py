"""`xce-broker watch`: what changes, as it changes."""

import argparse
import sys
from collections.abc import Sequence

import msgspec

from xce.broker import claim_rows
from xce.broker.cli import COMMANDS, changes
from xce.broker.cli.connect import connect
from xce.broker.cli.follow import events
from xce.broker.cli.options import GOOD, Example, UsageError, carry_out, count, json_option, positive
from xce.broker.cli.options import parser as command_parser
from xce.broker.cli.select import require_known, selector
from xce.broker.client import Changed, Event, Fresh, LinkNews
from xce.broker.mirror import Mirror, replace_views
from xce.model import human
from xce.model.message import BindingView, ClaimView, Delta, LocationView

SUMMARY = COMMANDS["watch"]
ABOUT = """
First a snapshot is taken, then each change of the map follows, with the number of its turn in the change
stream; changes of one turn have one number:

  #1042 host:node1 mem 812 → 799 MB
  #1043 host:node1 lic_free 12 → unknown (exit status 3)
  #1043 host:node2 state available → lost

When changes were missed (the broker was restarted, or this command was too slow) a new snapshot is taken, and
that is said on stderr. With --json each line is an object with `event`: `fresh` (the whole map), `changed` (a
delta as in docs/protocol.md) or `link` (the link went down or came up).
"""


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "watch",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker watch", "everything"),
            Example("xce-broker watch --location 'host:gpu*' mem 'lic_*'", "some resources of some hosts"),
            Example("xce-broker watch --seconds 60 --json > changes", "a minute of everything"),
        ],
    )
    made.add_argument("resource", nargs="*", help="only readings of these, as patterns; default: everything")
    made.add_argument("--location", action="append", default=[], help="only locations of this pattern")
    made.add_argument("--count", type=count, metavar="N", help="end after N lines")
    made.add_argument("--seconds", type=positive, default=None, help="end after so long")
    json_option(made, "print one JSON object a line, unfiltered")
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    if options.json and (options.resource or options.location):
        raise UsageError("--json prints everything", "leave out the names; jq can choose")
    printer = _Json() if options.json else _Lines(options)
    with connect(options) as client:
        watch = client.watch()
        for event in events(watch, options.seconds):
            for line in printer.lines(event, watch.mirror) if watch.mirror else ():
                print(line, flush=True)
                printer.printed += 1
                if printer.printed == options.count:
                    return GOOD
    return GOOD


class _Json:
    """Events as they are."""

    printed = 0

    def lines(self, event: Event, mirror: Mirror) -> list[str]:
        match event:
            case Fresh():
                thing: dict[str, object] = {
                    "event": "fresh",
                    "reason": event.reason,
                    "position": mirror.position,
                    "revision": mirror.revision,
                    "broker_ms": mirror.broker_ms,
                    "locations": mirror.whole(),
                    "claims": mirror.claims,
                    "bindings": mirror.bindings,
                }
            case Changed():
                thing = {"event": "changed", "delta": event.delta}
            case LinkNews():
                thing = {"event": "link", "up": event.up, "text": event.text}
            case _:
                return []
        return [msgspec.json.encode(thing).decode()]


class _Lines:
    """Events in words."""

    printed = 0

    def __init__(self, options: argparse.Namespace) -> None:
        self._resource, self._location = selector(options.resource), selector(options.location)
        self._all, self._everywhere = not options.resource, not options.location
        self._unchecked: argparse.Namespace | None = options
        self._before: dict[str, LocationView] = {}
        self._claims: dict[str, ClaimView] = {}
        self._bindings: dict[str, BindingView] = {}

    def lines(self, event: Event, mirror: Mirror) -> list[str]:
        match event:
            case Fresh():
                self._before = dict(mirror.locations)
                self._claims, self._bindings = dict(mirror.claims), dict(mirror.bindings)
                if self._unchecked is not None:  # later one of them may have gone, for good reason
                    require_known(self._unchecked.resource, self._unchecked.location, mirror)
                    self._unchecked = None
                if event.reason:
                    print(f"changes were missed: {human.printable(event.reason)}", file=sys.stderr)
                print(f"#{mirror.position.sequence} {changes.summary(mirror)}", file=sys.stderr)
            case LinkNews():
                print(human.printable(event.text), file=sys.stderr)
            case Changed(delta=delta):
                found = [
                    f"#{delta.position.sequence} {human.printable(f'{key} {text}'.strip())}"
                    for key, resource, text in changes.of_delta(delta, self._before, mirror.types)
                    if self._location(key) and (self._all or (resource and self._resource(resource)))
                ]
                found += self._of_claims(delta)
                for key in {*delta.removed, *delta.values, *delta.locations}:
                    if key in mirror.locations:
                        self._before[key] = mirror.locations[key]
                    else:
                        self._before.pop(key, None)
                return found
        return []

    def _of_claims(self, delta: Delta) -> list[str]:
        """Lines of claims, unless only some locations or readings are wanted."""
        lines = [
            f"#{delta.position.sequence} "
            + human.printable(f"claim:{claim} {binding} {text}".replace("  ", " "))
            for claim, binding, text in claim_rows.changes(delta, self._claims, self._bindings)
            if self._all and self._everywhere
        ]
        replace_views(self._claims, delta.claims)
        replace_views(self._bindings, delta.bindings)
        return lines
