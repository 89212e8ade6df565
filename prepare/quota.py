"""Directories that cannot become larger than asked, as errands (see `errand`): of a project, or a subvolume.

`ROOT/DIRECTORY` is root's, and has the limit: it belongs to a project of its own, or is such a subvolume.
`ROOT/DIRECTORY/data` is the user's, who gets to it through its mount alone. The number of a project is ours
from the moment that it is written down; the file system itself knows those that are in use.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable

from xce.linux import beneath, btrfs, loopdevice, mountapi, quota
from xce.prepare import projects
from xce.prepare.errand import DIRECTORY, LOOKED_AT, opened, other_place, place_of, unlink
from xce.prepare.step import Evidence
from xce.prepare.tags import Owner

DATA = "data"
FREEING = "its space is being freed"
_FLUSHED_TRIES, _FLUSHED_S = 25, 0.02
"""After the last mount of a file was taken off, until its loop device is free."""
_SETTLED_S = 1.0
"""After files were removed, until the file system has counted them off."""


def offer(*, root: str, directory: str, start: int, held: list[int]) -> Evidence:
    """What the file system of a scratch root can do, and why not the rest; how a mount will look; a project.

    Of a project in use, or `held`, nothing is taken; one that the directory has from before stays.
    """
    with opened(os.open(root, DIRECTORY)) as top:
        seen = place_of(top)
        no_projects = "" if quota.enforced(top) else projects.NOT_KEPT
        volumes = btrfs.trouble(top) if seen["type"] == "btrfs" else "it is not btrfs"
        return {
            "ways": {"project": no_projects, "qgroup": volumes},
            "type": seen["type"],
            "device": seen["device"],
            "root": f"{seen['root'].rstrip('/')}/{directory}/{DATA}",
            "real": os.path.realpath(root),
            "home": seen,
            "number": 0 if no_projects else _project(top, directory, start, held),
        }


def _project(top: int, directory: str, start: int, held: list[int]) -> int:
    before = _number_of(top, directory)
    if before in projects.SCRATCH and before not in held:
        return before
    return projects.free(top, projects.SCRATCH, start, held)


def room(
    *,
    root: str,
    directory: str,
    way: str,
    number: int,
    size: int,
    uid: int,
    gid: int,
    new: bool,
    owner: list[str],
    binding: str,
) -> Evidence:
    """A directory with a limit; as `measure`. `new`: not if there is an `old` one, to be cleared first."""
    Owner(*owner).refuse_foreign(f"{root}/{directory}", recorded=not new)
    with opened(os.open(root, DIRECTORY)) as top:
        if new and _is_there(top, directory):
            return {"old": True}
        with opened(_made(top, directory, way)) as home:
            said = Owner(*owner).take(home, binding, recorded=not new)
            number = number if way == "project" else btrfs.number(home)
            _limit(home, way, number, size)
            with opened(beneath.make_directory(home, DATA, 0o700)) as data:
                for place in (home, data) if way == "project" else ():
                    projects.assign(place, number)
                if os.fstat(data).st_uid != uid and os.fstat(data).st_uid == os.geteuid():
                    os.fchown(data, uid, gid)
    seen = measure(root=root, directory=directory, way=way, number=number, size=size)
    if seen["problem"]:
        raise OSError(errno.EIO, seen["problem"])
    return seen | said


def _is_there(top: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=top, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _made(top: int, directory: str, way: str) -> int:
    if way == "qgroup":
        with contextlib.suppress(FileExistsError):
            btrfs.create(top, directory)
            os.chmod(directory, 0o700, dir_fd=top)
    return beneath.make_directory(top, directory, 0o700)


def _limit(fd: int, way: str, number: int, size: int) -> None:
    account: Callable[[int, int], quota.Account | btrfs.Account]
    account, limit = (quota.account, quota.limit) if way == "project" else (btrfs.account, btrfs.limit)
    if not projects.is_limit(account(fd, number).limit, size):
        limit(fd, number, size)


def measure(*, root: str, directory: str, way: str, number: int, size: int) -> Evidence:
    """Number, limit and use of a directory as the kernel has them, and what is not as it should be."""
    with (
        opened(os.open(root, DIRECTORY)) as top,
        opened(os.open(directory, DIRECTORY, dir_fd=top)) as home,
        opened(os.open(DATA, DIRECTORY, dir_fd=home)) as data,
    ):
        problem = ""
        account: quota.Account | btrfs.Account
        if way == "project":
            account = quota.account(home, number)
            strays = [place for place in (home, data) if quota.project(place) != (number, True)]
            problem = f"it is not of project {number} any more" if strays else ""
        else:
            account = btrfs.account(home, number)
            inner = btrfs.within(home, number)
            problem = f"there are {len(inner)} subvolumes in it, which have no limit" if inner else ""
            if btrfs.number(home) != number:
                problem = f"it is not subvolume {number} any more"
        if not projects.is_limit(account.limit, size):
            problem = f"its limit is {account.limit} bytes and not {size}"
        return {"number": number, "limited_to": account.limit, "used": account.used, "problem": problem}


def clear(
    *,
    root: str,
    image: str,
    directory: str,
    number: int,
    owner: list[str],
    home: Evidence | None = None,
    made: str = "",
) -> Evidence:
    """Remove whatever is there of a scratch: file, directory, subvolume, limit; what is `left`, and why.

    What is foreign stays; `made` is ours by the journal, whatever became of its mark. Nothing is there, and
    it may lie below what covers its root: `home` was that. For a child: it waits until the file system has
    counted off what is gone.
    """
    own = Owner(*owner)
    with opened(os.open(root, DIRECTORY)) as top:
        hidden = home and not (_is_there(top, directory) or (image and _is_there(top, image)))
        if hidden and (words := other_place(top, home or {})):
            return {"left": [[directory if number else image, words]]}
    if image and not own.foreign(f"{root}/{image}", recorded=image == made):
        if device := _writer(f"{os.path.realpath(root)}/{image}"):
            return {"left": [[image, f"{device} has not written all of it yet"]]}
        unlink(root=root, name=image)
    if own.foreign(f"{root}/{directory}", recorded=directory == made):
        return {"left": []}
    with opened(os.open(root, DIRECTORY)) as top:
        number = number or _number_of(top, directory)
        left, volumes = _remove(top, directory)
        return {"left": left or _counted_off(top, number, volumes)}


def _writer(image: str) -> str:
    """The loop device that has a file still, though nothing of it is mounted: it may be at work."""
    for _ in range(_FLUSHED_TRIES):
        if not (device := loopdevice.having(image)):
            break
        time.sleep(_FLUSHED_S)
    return device


def _remove(top: int, directory: str) -> tuple[list[list[str]], list[int]]:
    """A directory of ours with all in it: what is left, and the subvolumes that were destroyed."""
    try:
        home = os.open(directory, DIRECTORY, dir_fd=top)
    except FileNotFoundError:
        return [], []
    with opened(home):
        if mountapi.place(home).mount != mountapi.place(top).mount:
            return [[directory, "a file system is mounted on it"]], []
        if volume := btrfs.number(home):
            return [], _destroy(top, volume)
    return [list(one) for one in beneath.remove_tree(top, directory, budget=LOOKED_AT)], []


def _destroy(top: int, volume: int) -> list[int]:
    """A subvolume, and those within. Its limit goes first: to remove one from within needs room."""
    if not btrfs.trouble(top):
        btrfs.limit(top, volume, 0)
    volumes = [*btrfs.within(top, volume), volume]
    for number in volumes:
        btrfs.destroy(top, number)
    return volumes


def _counted_off(top: int, number: int, volumes: list[int]) -> list[list[str]]:
    """Wait a moment until nothing is counted of what was removed, and forget it; what is left."""
    if number in projects.SCRATCH:
        if not quota.enforced(top):
            return []
        quota.limit(top, number, 0)
        seen = projects.settled(top, number, _SETTLED_S)
        words = f"{seen.used} bytes in {seen.inodes} files are still counted of project {number}"
        return [] if seen.free else [["", words]]
    waiting = {*volumes, number} - {0}
    until = time.monotonic() + _SETTLED_S
    while waiting and not btrfs.trouble(top):
        waiting = {volume for volume in waiting if not btrfs.forget(top, volume)}
        if time.monotonic() >= until:
            return [["", FREEING]] if waiting else []
        if waiting:
            btrfs.begin_freeing(top)
            time.sleep(0.05)
    return []


def _number_of(top: int, directory: str) -> int:
    """The project of a directory of ours, or its subvolume; 0 if it has neither, or is not there."""
    try:
        with opened(os.open(directory, DIRECTORY, dir_fd=top)) as home:
            return projects.of(home, projects.SCRATCH) or btrfs.number(home)
    except OSError:
        return 0


ERRANDS: dict[str, Callable[..., Evidence]] = {
    "offer": offer,
    "room": room,
    "measure": measure,
    "clear": clear,
}
