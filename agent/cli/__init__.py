"""`xce-agent`: one module per subcommand, loaded only when it is named.

Each `cli/NAME.py` has `SUMMARY` (one line) and `run(argv) -> exit code`, and reads its own options. An error
that a person can do something about leaves as a message on stderr and an exit code, never as a traceback: it
is a `CommandError`, which `dispatch` prints.
Nothing is imported here that `status` would have to pay for.
"""

import importlib
import sys
from collections.abc import Sequence

from xce.model import VERSION
from xce.wire.ending import carried_out

COMMANDS = (
    "run",
    "status",
    "inventory",
    "topology",
    "discovery",
    "reporter",
    "explain",
    "claim",
    "csi",
    "doctor",
    "join",
    "key",
    "removal",
)
"""In the order of `--help`. A command's module has its name."""

GOOD, TROUBLE, USAGE, NOT_RUNNING, ENDED = 0, 1, 2, 3, 4
"""Exit codes of all commands; `ENDED`: what was waited for will never be."""


class CommandError(Exception):
    """Ends a command with the message, and with the exit code of its class."""

    code = TROUBLE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit code."""
    return dispatch("xce-agent", __name__, COMMANDS, list(sys.argv[1:] if argv is None else argv))


def dispatch(program: str, package: str, commands: Sequence[str], arguments: list[str]) -> int:
    """Run the subcommand that `arguments` name, from its module in `package`."""
    name = " ".join([program, *arguments[:1]])
    return carried_out(name, lambda: _carry_out(program, package, commands, arguments))


def _carry_out(program: str, package: str, commands: Sequence[str], arguments: list[str]) -> int:
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        print(_help(program, package, commands), file=sys.stdout if arguments else sys.stderr)
        return GOOD if arguments else USAGE
    if arguments[0] == "--version":
        print(f"{program} {VERSION}")
        return GOOD
    name, rest = arguments[0], arguments[1:]
    if name not in commands:
        print(f"{program}: no command {name!r}; see {program} --help", file=sys.stderr)
        return USAGE
    try:
        code: int = importlib.import_module(f"{package}.{name}").run(_spelled_out(rest))
    except CommandError as error:
        print(f"{program} {name}: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return 130
    return code


def _spelled_out(arguments: list[str]) -> list[str]:
    """`--help` for `-h`, before any `--`: what is behind it belongs to another command."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return ["--help" if word == "-h" else word for word in arguments[:end]] + arguments[end:]


def _help(program: str, package: str, commands: Sequence[str]) -> str:
    lines = [f"usage: {program} COMMAND ...", "", "commands:"]
    lines += [f"  {name:<12}{importlib.import_module(f'{package}.{name}').SUMMARY}" for name in commands]
    return "\n".join([*lines, "", f"{program} COMMAND --help explains one of them."])
