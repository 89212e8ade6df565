"""`xce-broker token new | list | revoke`: tokens with which hosts and programs join by themselves."""

import argparse
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from xce.broker.cli import COMMANDS, output
from xce.broker.cli.connect import connect
from xce.broker.cli.options import (
    GOOD,
    Example,
    UsageError,
    carry_out,
    connection,
    json_option,
    patterns,
    verbs,
)
from xce.broker.cli.options import parser as command_parser
from xce.model.message import KeyAdd, KeyRevoke, KeysRequest, KeyView
from xce.model.role import Role
from xce.wire import keys, token
from xce.wire.token import Token
from xce.wire.trust import next_to

SUMMARY = COMMANDS["token"]
ABOUT = """
A token is one line of text that lets one peer join once, until its time is over: the new peer makes its own
key, and the broker accepts it for the role and the names that the token is for. The secret half of the peer's
key never leaves its host. A token holds the broker's public key, so a joining host cannot be led astray.

Keep a token as you would a password: hand it over in a file with mode 0600, not on a command line.
"""
_VERBS = {
    "new": "make a token and print it, or write it to a file",
    "list": "list tokens that are still good, and those that were used",
    "revoke": "let nobody join with a token any more",
}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "token",
        SUMMARY,
        ABOUT,
        [
            Example("xce-broker token new --hosts node17 --out node17.token", "for one host, good for a day"),
            Example(
                "xce-broker token new --hosts 'node*' --lifetime 1h --admit", "no admin has to look again"
            ),
            Example("xce-broker token new --role controller --hosts sched1", "for a controller named sched1"),
            Example("xce-broker token list", "what is out there"),
        ],
        connects=False,
    )
    new, listing, revoke = verbs(made, _VERBS).values()
    new.add_argument(
        "--hosts", required=True, metavar="PATTERNS", help="names that may join, comma between them"
    )
    new.add_argument("--role", default="agent", choices=["agent", "reporter", "provider", "controller"])
    new.add_argument(
        "--lifetime", default="24h", metavar="TIME", help="90s, 30m, 24h (default), 7d; at most 31d"
    )
    new.add_argument("--admit", action="store_true", help="the host is admitted, whatever `discovered` says")
    new.add_argument(
        "--out", type=Path, metavar="FILE", help="write it there, mode 0600, and print nothing of it"
    )
    revoke.add_argument("name", help="the token's name, as `list` shows it")
    revoke.add_argument("--reason", required=True, help="for those who look later")
    json_option(listing)
    for verb in (new, listing, revoke):
        connection(verb)
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    bodies = {"new": _new, "list": _list, "revoke": _revoke}
    return carry_out(parser(), lambda options: bodies[options.verb](options), argv)


def lifetime(text: str) -> float:
    """Seconds of `30m`, `24h`, `7d`."""
    found = re.fullmatch(r"(\d{1,7})([smhd])", text)
    if not found or not 0 < (seconds := int(found[1]) * _UNITS[found[2]]) <= 31 * 86400:
        raise UsageError(f"--lifetime {text!r}", "a number and s, m, h or d, at most 31d: 30m, 24h, 7d")
    return float(seconds)


def _new(options: argparse.Namespace) -> int:
    hosts = list(patterns(options.hosts))
    seconds = lifetime(options.lifetime)
    broker, following = keys.load(options.broker_key, secret=False).public, _following(options.broker_key)
    name = f"token-{secrets.token_hex(4)}"
    pair = keys.new(name, Role.JOINER)
    text = token.text_of(Token(name, pair.secret, broker, following)) + "\n"
    if options.out is not None:
        _write(options.out, text)
    try:
        with connect(options) as client:
            done = client.ask(
                KeyAdd(
                    id="",
                    name=name,
                    role=Role.JOINER,
                    public=pair.public.decode(),
                    hosts=hosts,
                    grants=options.role,
                    lifetime_s=seconds,
                    admit=options.admit,
                )
            )
    except BaseException:
        if options.out is not None:
            options.out.unlink(missing_ok=True)  # nobody may take it for a token that is good
        raise
    if options.out is None:
        print(text, end="")
    else:
        names = ",".join(hosts)
        print(f"{options.out}  mode 0600  {name}, for {options.role} {names}, revision {done.revision}")
    return GOOD


def _following(broker_key: Path) -> bytes:
    """The key that the broker is about to have: a token that is made now is good before and after."""
    path = Path(next_to(str(broker_key)))
    return keys.load(path, secret=False).public if path.exists() else b""


def _write(path: Path, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise UsageError(f"cannot write {path}: it exists already", "another --out") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _list(options: argparse.Namespace) -> int:
    with connect(options) as client:
        rows: list[KeyView] = [key for key in client.ask(KeysRequest(id="")).keys if key.role == Role.JOINER]
    if options.json:
        output.json(rows)
    else:
        output.table(
            ("NAME", "FOR", "NAMES", "UNTIL", "ADMITS", "ENDED"),
            [
                (
                    row.name,
                    row.grants,
                    ",".join(row.hosts),
                    row.until,
                    "yes" if row.admit else "no",
                    row.revoked,
                )
                for row in rows
            ],
            none="no tokens",
        )
    return GOOD


def _revoke(options: argparse.Namespace) -> int:
    with connect(options) as client:
        done = client.ask(KeyRevoke(id="", name=options.name, reason=options.reason))
    print(f"token {options.name} revoked, revision {done.revision}")
    return GOOD
