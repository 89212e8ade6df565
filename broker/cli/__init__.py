"""`xce-broker`: one module per subcommand, loaded only when it is named.

Each `cli/NAME.py` has `SUMMARY` (one line) and `run(argv) -> exit code`, and reads its own options. An error
that a person can do something about leaves as a message on stderr and an exit code, never as a traceback.
"""

import importlib
import sys
from collections.abc import Sequence

COMMANDS = (
    "run",
    "status",
    "hosts",
    "supply",
    "types",
    "pools",
    "hold",
    "drain",
    "watch",
    "snapshot",
    "key",
)
"""In the order of `--help`. A command's module has its name."""

USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        print(_help(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else USAGE
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        print(f"xce-broker: no command {name!r}; see xce-broker --help", file=sys.stderr)
        return USAGE
    code: int = importlib.import_module(f"{__name__}.{name}").run(rest)
    return code


def _help() -> str:
    lines = ["usage: xce-broker COMMAND ...", "", "commands:"]
    for name in COMMANDS:
        try:
            summary = importlib.import_module(f"{__name__}.{name}").SUMMARY
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
            continue  # not part of this installation
        lines.append(f"  {name:<10}{summary}")
    return "\n".join([*lines, "", "xce-broker COMMAND --help explains one of them."])
