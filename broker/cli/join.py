"""`xce-broker join`: make a controller or provider known to a broker, with a token."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from xce.broker.cli import COMMANDS
from xce.broker.cli.options import GOOD, TROUBLE, UNREACHABLE, Example, UsageError, carry_out, complain
from xce.broker.cli.options import parser as command_parser
from xce.wire import joining
from xce.wire.ask import Denied, NoAnswer

SUMMARY = COMMANDS["join"]
ABOUT = """
Makes a key, has the broker accept it for the role and the name that the token is for, and writes NAME.key and
broker.pub: what a controller connects with. The token is used up; the key's secret half never leaves this
host. It may be repeated when it was broken off. A host joins with `xce-agent join`, an external reporter with
`xce-reporter join`.
"""


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "join",
        SUMMARY,
        ABOUT,
        [
            Example(
                "xce-broker join broker1 --token sched1.token --name sched1", "sched1.key, broker.pub here"
            )
        ],
        connects=False,
    )
    made.add_argument(
        "address", metavar="BROKER", help="HOST, HOST:PORT or tcp://HOST:PORT; 7400 unless given"
    )
    made.add_argument("--token", required=True, metavar="FILE", help="`-` reads it from standard input")
    made.add_argument("--name", required=True, help="one that the token is for")
    made.add_argument(
        "--role", default="controller", choices=["controller", "provider"], help="as the token's"
    )
    made.add_argument(
        "--directory", type=Path, default=Path(), help="where to write; default: the current one"
    )
    made.add_argument("--timeout", type=float, default=10, metavar="SECONDS", help="default: %(default)s")
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    key: Path = options.directory / f"{options.name}.key"
    try:
        endpoint = joining.endpoint_of(options.address)
        put = joining.asking(endpoint, options.timeout)
        joining.join(put, joining.token_of(options.token), options.name, options.role, key)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    except Denied as denied:
        return complain(parser(), str(denied), denied.hint, TROUBLE)
    except NoAnswer as failed:
        hint = joining.HINTS.get(failed.state, "")
        return complain(parser(), str(failed), hint, TROUBLE if failed.refused else UNREACHABLE)
    print(f"{options.name} has joined {endpoint}: {key}, {key.with_name('broker.pub')}")
    return GOOD
