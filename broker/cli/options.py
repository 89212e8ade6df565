"""What all commands share: options, which broker is meant, exit codes, and how an error leaves.

Which broker, in this order: `--broker`; the environment's XCE_BROKER; the local socket that broker.yaml
names, if it may be opened; the broker's port on this host with the admin's key.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from xce.broker.session import BrokerRefused, BrokerUnreachable
from xce.model.hostlist import pattern_problem
from xce.wire.keys import KeyFileError

CONFIGURATION = Path("/etc/xce/broker.yaml")
KEYS = Path("/etc/xce/keys")
GOOD, TROUBLE, USAGE, UNREACHABLE, ENDED, INTERRUPTED = 0, 1, 2, 3, 4, 130
"""Exit codes. Trouble: the broker said no, or what was shown needs somebody. Ended: what was waited for will
never be."""

EXIT_STATUS = """\
exit status:
  0  good
  1  refused by the broker, or what is shown needs attention
  2  wrong usage, or a file that cannot be used
  3  the broker cannot be reached"""

Body = Callable[[argparse.Namespace], int]


class UsageError(Exception):
    """The command cannot be carried out as it was given."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Example(NamedTuple):
    """One line of the help's examples."""

    command: str
    what: str


def parser(
    name: str,
    summary: str,
    about: str,
    examples: Sequence[Example],
    *,
    connects: bool = True,
    exit_status: str = EXIT_STATUS,
) -> argparse.ArgumentParser:
    """The parser of one subcommand, with a help text that is complete enough to be its man page."""
    width = max((len(example.command) for example in examples), default=0)
    lines = [f"  {example.command.ljust(width)}  # {example.what}" for example in examples]
    made = argparse.ArgumentParser(
        prog=f"xce-broker {name}",
        description=f"{summary}.\n\n{about.strip()}",
        epilog="\n".join(["examples:", *lines, "", exit_status]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if connects:
        connection(made)
    return made


def connection(made: argparse.ArgumentParser) -> None:
    """Add the options that say which broker is meant."""
    group = made.add_argument_group("which broker")
    group.add_argument(
        "--broker",
        metavar="ENDPOINT",
        default=os.environ.get("XCE_BROKER", ""),
        help="tcp://HOST:PORT or ipc://PATH; default: $XCE_BROKER, else the broker of this host",
    )
    group.add_argument(
        "--key", metavar="FILE", type=Path, default=KEYS / "admin.key", help="our key; default: %(default)s"
    )
    group.add_argument(
        "--broker-key",
        metavar="FILE",
        type=Path,
        default=KEYS / "broker.pub",
        help="the broker's public key; default: %(default)s",
    )
    group.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=positive,
        default=5.0,
        help="for each answer of the broker; default: %(default)g",
    )


def verbs(made: argparse.ArgumentParser, what: Mapping[str, str]) -> dict[str, argparse.ArgumentParser]:
    """Add verbs, each with what it does; their parsers, in this order. The one given is `options.verb`."""
    under = made.add_subparsers(dest="verb", required=True, metavar="|".join(what))
    return {verb: under.add_parser(verb, help=text, description=text) for verb, text in what.items()}


def json_option(made: argparse.ArgumentParser, what: str = "print JSON instead of a table") -> None:
    """Add `--json`."""
    made.add_argument("--json", action="store_true", help=what)


def patterns(text: str) -> tuple[str, ...]:
    """Patterns of host names with commas between them; raises `UsageError` for one that fits no name."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    problems = [problem for pattern in found if (problem := pattern_problem(pattern))]
    if problems or not found:
        raise UsageError(problems[0] if problems else "--hosts names no host", "--hosts 'node1,gpu*'")
    return found


def positive(text: str) -> float:
    """A number above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


def count(text: str) -> int:
    """A whole number above 0."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def carry_out(made: argparse.ArgumentParser, body: Body, argv: Sequence[str]) -> int:
    """Parse, do, and turn errors into words on stderr and an exit code; those of the output are `main`'s."""
    options = made.parse_args(list(argv))
    try:
        return body(options)
    except BrokerUnreachable as error:
        return complain(made, error.message, error.hint, UNREACHABLE)
    except BrokerRefused as error:
        return complain(made, error.message, error.hint, TROUBLE)
    except UsageError as error:
        return complain(made, str(error), error.hint, USAGE)
    except KeyFileError as error:
        hint = "give --key and --broker-key" if hasattr(options, "broker_key") else ""
        return complain(made, str(error), hint, USAGE)
    except KeyboardInterrupt:
        return INTERRUPTED


def complain(made: argparse.ArgumentParser, message: str, hint: str, code: int) -> int:
    """Say what is wrong and what to do; gives back `code`."""
    print(f"{made.prog}: {message}", file=sys.stderr)
    if hint:
        print(f"  hint: {hint}", file=sys.stderr)
    return code
