"""`xce-broker`: one module per subcommand, loaded only when it is named.

Each `cli/NAME.py` has `SUMMARY` (one line), `parser()` (options, and help that is complete enough for a man
page) and `run(argv) -> exit code`. An error that a person can do something about leaves as a message on
stderr and an exit code, never as a traceback: `options.py`.
"""

import importlib
import sys
from collections.abc import Sequence

from xce.model import VERSION
from xce.wire.ending import carried_out

COMMANDS = {
    "run": "run the broker in the foreground",
    "status": "show the broker: peers, numbers, counters, and what needs an admin",
    "hosts": "list hosts with state, holds, readings and reporters",
    "host": "add, admit or release hosts",
    "drain": "drain hosts, end a drain, or list drained hosts",
    "hold": "hold a location, end a hold, or list holds",
    "supply": "list resources by location: value, presence, age, source, reporter, cause",
    "instances": "list the GPUs, slices, NICs and other instances of hosts, with who has them",
    "types": "list resource types",
    "pools": "list pools: base, borrowed, and what their reporters say",
    "pool": "set a pool's amount of a resource",
    "claim": "make, bind, show, follow and release claims",
    "provide": "play the provider of claims, with delays and faults, by the rules of a file",
    "quarantine": "list what may not be used, put something there, or clear it",
    "doctor": "check this host: files, keys, ports, store, limits, refused agents, tokens",
    "watch": "follow the changes, one line each",
    "snapshot": "take a snapshot and show its number and quality, or all of it as JSON",
    "key": "make, accept, revoke and list the keys of peers",
    "backup": "write a copy of everything durable to a file",
    "restore": "put a copy in the place of the broker's store",
    "export": "print everything durable as JSON lines",
    "token": "make, list and revoke tokens with which hosts join by themselves",
    "join": "make a controller or provider known to a broker, with a token",
}
"""In the order of `--help`, with what each does. A command's module has its name."""

GOOD, USAGE = 0, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return carried_out(" ".join(["xce-broker", *arguments[:1]]), lambda: _carry_out(arguments))


def _carry_out(arguments: list[str]) -> int:
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        print(overview(), file=sys.stdout if arguments else sys.stderr)
        return GOOD if arguments else USAGE
    if arguments[0] == "--version":
        print(f"xce-broker {VERSION}")
        return GOOD
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        print(f"xce-broker: no command {name!r}; see xce-broker --help", file=sys.stderr)
        return USAGE
    code: int = importlib.import_module(f"{__name__}.{name}").run(rest)
    return code


def overview() -> str:
    """What `--help` prints; it loads no command."""
    lines = ["usage: xce-broker COMMAND ...", "", "commands:"]
    lines += [f"  {name:<12}{summary}" for name, summary in COMMANDS.items()]
    return "\n".join([*lines, "", "xce-broker COMMAND --help explains one of them, with examples."])
