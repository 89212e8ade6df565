"""`xce-broker restore`: back to a copy that `xce-broker backup` made."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from xce.broker.cli import COMMANDS
from xce.broker.cli.options import GOOD, Example, UsageError, carry_out
from xce.broker.cli.options import parser as command_parser
from xce.broker.cli.statedir import configuration_option, keep, owner_of, place_of
from xce.broker.store import Damaged, InUse, StoreError
from xce.broker.store.files import restore

SUMMARY = COMMANDS["restore"]
ABOUT = """
What was confirmed after the copy was made is forgotten by the broker, and controllers take everything anew.
What claims made since then have on their nodes is quarantined. Keys revoked and tokens used since then are
good again: revoke them anew; hosts that joined since then join once more.
The broker must not run. The files of before are kept beside the new ones, as facts.db.damaged-TIME; a copy
that is damaged is refused and changes nothing. To be run on the broker's host, as root or as its user.
"""


def parser() -> argparse.ArgumentParser:
    """The command's options and help."""
    made = command_parser(
        "restore",
        SUMMARY,
        ABOUT,
        [
            Example("systemctl stop xce-broker", "first"),
            Example("xce-broker restore /srv/backup/xce.db", "then start it again"),
        ],
        connects=False,
    )
    made.add_argument("file", type=Path, help="a copy that `xce-broker backup` made")
    configuration_option(made)
    return made


def run(argv: Sequence[str]) -> int:
    """Carry the command out."""
    return carry_out(parser(), _body, argv)


def _body(options: argparse.Namespace) -> int:
    if not options.file.is_file():
        raise UsageError(f"cannot use {options.file}: there is no such file")
    place = place_of(options, make=True)
    brought = place.directory / "facts.brought"
    keep(options.file, brought)
    try:
        owner = place.directory.stat()
        if os.geteuid() == 0:
            os.chown(brought, owner.st_uid, owner.st_gid)
        with owner_of(place.directory):
            revision = restore(place.directory, brought)
    except InUse as error:
        raise UsageError(str(error), "end it first: systemctl stop xce-broker") from error
    except StoreError as error:
        # What the store says to do is to restore a copy: of a copy that is damaged itself it is no help.
        words, hint = str(error), ""
        if isinstance(error, Damaged):
            words, hint = error.what, "nothing was changed: take another copy"
        raise UsageError(words.replace(str(brought), str(options.file)), hint) from error
    finally:
        brought.unlink(missing_ok=True)
    print(f"the store in {place.directory} is that of revision {revision} now; start the broker")
    return GOOD
