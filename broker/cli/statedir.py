"""The broker's state directory, as an admin on its host works with it: as its owner, broker or not."""

import argparse
import os
import pwd
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xce.broker.cli.connect import chosen, of_this_host
from xce.broker.cli.options import CONFIGURATION, UsageError
from xce.broker.client import Client
from xce.broker.store import InUse, StoreError
from xce.broker.store.files import Place, sync_directory
from xce.broker.store.sqlite import SqliteStore
from xce.model.message import BackupRequest

COPY_S = 300.0
"""For the broker to write a copy."""
CLOSE_S = 10.0
SERVICE_USER = "xce-broker"
"""Whom the shipped unit runs the broker as."""


def configuration_option(made: argparse.ArgumentParser) -> None:
    """Add `--config`, which names the state directory."""
    made.add_argument(
        "--config", type=Path, default=CONFIGURATION, metavar="FILE", help="default: %(default)s"
    )


def place_of(options: argparse.Namespace, *, make: bool = False) -> Place:
    """The files of this host's broker; with `make`, also of one that has never run."""
    place = Place(Path(of_this_host(options.config).state_directory))
    if make and place.directory.parent.is_dir() and not os.path.lexists(place.directory):
        place.directory.mkdir(mode=0o750)
        if options.config == CONFIGURATION:
            give_to_service(place.directory)
    if not place.directory.is_dir():
        hint = f"run it on the broker's host, or give --config; {options.config} names the directory"
        raise UsageError(f"cannot use {place.directory}: there is no such directory", hint)
    return place


def whole_copy(options: argparse.Namespace, place: Place) -> int:
    """Write `place.copy`, by the running broker or where none runs by ourselves; gives its last revision."""
    if not place.base.exists():
        raise UsageError(f"there is no store in {place.directory}", "has its broker ever run?")
    try:
        with owner_of(place.directory):
            store = SqliteStore(place.directory)
            try:
                return store.backup()
            finally:
                store.close(CLOSE_S)
    except InUse:
        with Client(chosen(options, options.config), timeout=options.timeout) as client:
            return client.ask(BackupRequest(id=""), timeout=max(options.timeout, COPY_S)).revision
    except StoreError as error:
        raise UsageError(str(error)) from error


def give_to_service(path: Path) -> None:
    """The packaged broker has a user of its own: what root makes for it, it must be able to use."""
    try:
        user = pwd.getpwnam(SERVICE_USER)
    except KeyError:
        return
    if os.geteuid() == 0:
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


@contextmanager
def owner_of(path: Path) -> Iterator[None]:
    """As root, become its owner for a while: what is made there must be the broker's."""
    status, group = path.stat(), os.getegid()
    if os.geteuid() != 0 or status.st_uid == 0:
        yield
        return
    os.setegid(status.st_gid)
    os.seteuid(status.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)


def keep(source: Path, target: Path) -> None:
    """Copy a file durably, of mode 0600, in one step for whoever looks at `target`."""
    new = target.with_name(target.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as written, source.open("rb") as read:
            shutil.copyfileobj(read, written)
            written.flush()
            os.fsync(descriptor)
        new.replace(target)
        sync_directory(target.absolute().parent)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(target)) from error
