"""Numbers of projects that are ours to give, and their limits, for scratch and for shared directories.

Whether a number is in use is the file system's to say, whoever uses it: one of which it knows a file or a
limit is given to nobody. Those of admins are small; ours are in two ranges, so that what is written down for
a scratch before anything is made is never met by a shared directory, which takes one and uses it in one go.
"""

import errno
import time
from collections.abc import Collection

from xce.linux import quota

SCRATCH = range(0x58430000, 0x58438000)
SHARED = range(0x58438000, 0x58440000)
SLACK = 1 << 16
"""A limit is rounded up to whole blocks."""
_SHORT_S = 0.5
NOT_KEPT = "it does not keep to project quotas (mount option prjquota)"


def of(directory: int, numbers: range) -> int:
    """The project of an open directory, if it is one of `numbers`; 0 if not."""
    try:
        number = quota.project(directory).id if quota.enforced(directory) else 0
    except OSError:  # no file system with projects
        return 0
    return number if number in numbers else 0


def free(fd: int, numbers: range, start: int, held: Collection[int] = ()) -> int:
    """A number that nobody has, from `start` on around the range. Raises OSError."""
    for number in range(start, start + len(numbers)):
        project = numbers[number % len(numbers)]
        if project not in held and quota.account(fd, project).free:
            return project
    raise OSError(errno.ENOSPC, "no project number is free")


def assign(directory: int, number: int) -> None:
    """Let an open directory, and what will be made in it, belong to a project, unless it does already."""
    if quota.project(directory) != (number, True):
        quota.assign(directory, number)


def keep_to(directory: int, size: int, start: int) -> int:
    """Limit an open directory of a shared volume; its number, which it keeps. Raises OSError."""
    if not quota.enforced(directory):
        raise OSError(errno.EOPNOTSUPP, NOT_KEPT)
    number = of(directory, SHARED) or free(directory, SHARED, start)
    assign(directory, number)  # first: a crash leaves no number behind that has a limit and no file
    quota.limit(directory, number, size)
    seen = quota.account(directory, number).limit
    if not is_limit(seen, size):
        raise OSError(errno.EIO, f"the limit of project {number} is {seen} bytes and not {size}")
    return number


def is_limit(seen: int, size: int) -> bool:
    """Whether a limit that was read back is the one that was set."""
    return size <= seen < size + SLACK


def lift(fd: int, number: int) -> None:
    """Take the limit off a project of which no file is left.

    The directory that had the number was its user's, who could write another's on it.
    """
    if number and not settled(fd, number, _SHORT_S).inodes:
        quota.limit(fd, number, 0)


def settled(fd: int, number: int, seconds: float) -> quota.Account:
    """What is counted of a project whose files were removed: some file systems count them off a bit later."""
    until = time.monotonic() + seconds
    while (seen := quota.account(fd, number)).inodes and time.monotonic() < until:
        time.sleep(0.01)
    return seen
