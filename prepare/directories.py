"""Directories of users on shared volumes, as errands (see `errand`): made, marked, and taken away again.

Several nodes may have the directories of one job. Whoever makes one writes on it whose it is (`tags`), and is
the one who removes it; another node that has it too says so on it, and is waited for. A directory of another
node, or one that nobody of us has made, is never removed. Where the file system keeps no attributes, the
journal alone knows, and nodes do not know of each other. What is above those directories and empty goes with
the last of them, whichever node has made it.
"""

import contextlib
import errno
import os
import time
import zlib
from collections.abc import Callable, Collection

from xce.linux import beneath
from xce.prepare import projects
from xce.prepare.errand import DIRECTORY, LOOKED_AT, opened, other_place, place_of
from xce.prepare.step import Evidence
from xce.prepare.tags import OTHERS, Mark, Owner

_TRIES = 20
"""Another node may remove an empty directory at the moment in which something is made in it."""
_PAUSE_S = 0.001
"""After the first of them, and more after each."""


def look(*, root: str, elements: list[str], parts: list[str], new: bool) -> Evidence:
    """Which directories `share` is to make, and which of them are there; `new`: none of an earlier run."""
    with opened(beneath.open_root(root)) as top:
        if new and (number := _attempt(top, elements)) > 1:
            elements = [*elements, f"attempt-{number}"]
        wanted = ["/".join(elements[:count]) for count in range(1, len(elements) + 1)]
        wanted += [f"{wanted[-1]}/{part}" for part in parts]
        new_ones = [path for path in wanted if not _is_there(top, path)]
        return {"elements": elements, "new": new_ones, "home": place_of(top)}


def _is_there(top: int, path: str) -> bool:
    try:
        os.close(beneath.open_beneath(top, path))
    except FileNotFoundError:
        return False
    return True


def _attempt(top: int, elements: list[str]) -> int:
    """Which run of a job this is: 1 if there is nothing of it yet."""
    try:
        job = beneath.open_beneath(top, "/".join(elements), os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return 1
    with opened(job):
        numbers = [name.removeprefix("attempt-") for name in os.listdir(job) if name.startswith("attempt-")]
    return max([1, *(int(number) for number in numbers if number.isdecimal())]) + 1


class _Maker:
    """Makes the directories of one binding."""

    def __init__(
        self, uid: int, gid: int, owner: Owner, binding: str, host: str, new: Collection[str]
    ) -> None:
        self.uid, self.gid, self.owner, self.binding, self.host = uid, gid, owner, binding, host
        self.new = set(new)
        """As it was written down, before a crash maybe."""
        self.made: list[str] = []
        self.said: dict[str, str] = {}

    def directory(self, parent: int, name: str, here: str) -> int:
        """A directory of the user's; what is there already must be one."""
        new = True
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
            self.made.append(here)
        except FileExistsError:
            new = False
        fd = os.open(name, DIRECTORY, dir_fd=parent)
        try:
            self._give(fd, here, new=new)
            if new or here in self.new:
                self.said |= self.owner.first(fd, self.binding, self.host)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _give(self, fd: int, here: str, *, new: bool) -> None:
        """To its user. One of root's is given while nothing is in it: as we, or another node, make it."""
        if os.fstat(fd).st_uid == self.uid:
            return
        used = bool(os.listdir(fd))
        found = os.fstat(fd)
        if found.st_uid == self.uid:
            return  # another node has given it just now, and made something in it
        if used or not (new or found.st_uid == os.geteuid()):
            words = f"it is there and belongs to uid {found.st_uid}, not to {self.uid}"
            raise OSError(errno.EEXIST, words, here)
        try:
            os.fchown(fd, self.uid, self.gid)
        except PermissionError as error:
            words = f"cannot give to {self.uid} (root squashed?)"
            raise OSError(error.errno, words, here) from error

    def refuse_going(self, top: int, elements: list[str]) -> None:
        """What another node removes just now, nobody gets. Comes after our marks, see `Owner.going`."""
        for count in range(1, len(elements) + 1):
            with opened(_beneath(top, elements[:count], os.O_RDONLY)) as fd:
                if words := self.owner.goes(fd):
                    raise OSError(errno.EBUSY, words, "/".join(elements[:count]))
                if self.owner.whose(fd)[0] is Mark.OURS:  # we had begun to, and need it again
                    self.owner.going(fd, going=False)

    def told(self, fd: int) -> Evidence:
        """Whose the last of them is. `agent`: by whose mark it may be removed; '': by the journal alone."""
        found, words = self.owner.whose(fd)
        if found is Mark.OTHERS:
            words = "; ".join([words, *self.owner.use(fd, self.binding, self.host).values()])
        elif found is Mark.NOBODYS and not self.said:
            words += ": it stays after the release"
        elif found is not Mark.OURS:
            why = self.said.get("owner", "its file system keeps no attributes")
            return {"agent": "", "owner": f"known by the journal alone: {why}"}
        return {"agent": self.owner.id, **({"owner": words} if words else {})}


def share(
    *,
    root: str,
    elements: list[str],
    parts: list[str],
    uid: int,
    gid: int,
    new: list[str],
    owner: list[str],
    binding: str,
    host: str,
    size: int = 0,
) -> Evidence:
    """Directories for a user, one below the other, and `parts` in the last; all or none of those missing.

    `size` limits the last with all that will be made in it: its project is told.
    """
    for last in range(_TRIES - 1, -1, -1):
        maker = _Maker(uid, gid, Owner(*owner), binding, host, new)
        try:
            with opened(beneath.open_root(root)) as top:
                return _share(top, elements, parts, size, maker)
        except OSError as error:
            with opened(beneath.open_root(root)) as top:
                _unmake(top, maker.made)
            if not (last and isinstance(error, FileNotFoundError)):
                raise
        time.sleep(_PAUSE_S * (_TRIES - last))  # not in step with the other
    raise AssertionError("the last try returns or raises")


def _share(top: int, elements: list[str], parts: list[str], size: int, maker: _Maker) -> Evidence:
    at, here = os.dup(top), ""
    try:
        for element in elements:
            here = f"{here}/{element}" if here else element
            below = maker.directory(at, element, here)
            os.close(at)
            at = below
        number = projects.keep_to(at, size, zlib.crc32(here.encode())) if size else 0
        for part in parts:
            with opened(maker.directory(at, part, f"{here}/{part}")) as directory:
                if number:
                    projects.assign(directory, number)
        told = maker.told(at)
        try:
            maker.refuse_going(top, elements)
        except OSError:
            maker.owner.leave(at)
            raise
        return told | ({"project": number} if size else {})
    finally:
        os.close(at)


def unshare(*, root: str, elements: list[str], new: list[str], owner: list[str]) -> Evidence:
    """Remove what `share` made, as far as nothing is in it and no other node has come first."""
    own = Owner(*owner)
    with opened(beneath.open_root(root)) as top:
        with contextlib.suppress(OSError), opened(_beneath(top, elements, os.O_RDONLY)) as last:
            own.leave(last)
        _unmake(top, new, lambda fd: own.whose(fd)[0] is not Mark.OTHERS)
    return {}


def remove(
    *, root: str, elements: list[str], owner: list[str], agent: str, home: Evidence | None = None
) -> Evidence:
    """Remove the tree at the end of `elements`, then those above it that are empty; what is left, and why.

    Not if `stays` says why it is not ours; what is `shared` is left as long as other nodes have something of
    it. `agent`: who has marked it, '' if marks do not count. `home`: the volume on which it was made, which
    may be away. Of what its user has moved away, nothing is ours any more; a link or file in its place
    stays, and goes as such if marks do not count.
    """
    own = Owner(*owner)._replace(**({"id": agent} if agent else {}))
    with opened(beneath.open_root(root)) as top:
        if words := _away(top, elements, home):
            return {"left": [[elements[-1], words]]}
        try:
            parent = _beneath(top, elements[:-1])
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return {"left": []}
            raise
        with opened(parent):
            if not agent:
                with contextlib.suppress(OSError):  # a directory, most of the time
                    os.unlink(elements[-1], dir_fd=parent)
            if (held := _held(parent, elements[-1], own, by_mark=bool(agent))) is not None:
                return held
            number = _project(parent, elements[-1])
            left = beneath.remove_tree(parent, elements[-1], budget=LOOKED_AT, refuse=own.refused)
            if not left:
                projects.lift(parent, number)
        if not left:
            above = ["/".join(elements[:count]) for count in range(1, len(elements))]
            _unmake(top, above, lambda fd: not agent or own.whose(fd)[0] is not Mark.NOBODYS)
        shared = bool(left) and all(why.startswith(OTHERS) for _, why in left)
        if shared:  # it stays for now, and who needs it may have it meanwhile
            with contextlib.suppress(OSError), opened(_beneath(top, elements, os.O_RDONLY)) as there:
                own.going(there, going=False)
        return {"left": [list(one) for one in left], "shared": shared}


def _away(top: int, elements: list[str], home: Evidence | None) -> str:
    """Why nothing is there, where that is because the volume is not; ''."""
    try:
        return other_place(top, home) if home and not _is_there(top, "/".join(elements)) else ""
    except OSError:
        return ""  # a link in its place


def _held(parent: int, name: str, own: Owner, *, by_mark: bool) -> Evidence | None:
    """Why a directory is not to be removed, or not yet; None if it is."""
    try:
        fd = os.open(name, DIRECTORY, dir_fd=parent)
    except OSError as error:
        if by_mark and error.errno in (errno.ENOTDIR, errno.ELOOP):
            return {"left": [], "stays": "no agent has made it: it is no directory", "others": False}
        return None  # gone, or not to be removed for another reason
    with opened(fd):
        found, words = own.whose(fd)
        if found is Mark.OTHERS:
            own.leave(fd)
        if found is Mark.OTHERS or (found is Mark.NOBODYS and by_mark):
            return {"left": [], "stays": words, "others": words.startswith(OTHERS)}
        own.going(fd, going=True)
        if not (users := own.users(fd)):
            return None
        own.going(fd, going=False)
        return {"left": [[name, users[0]]], "shared": True}


def _unmake(top: int, made: list[str], may: Callable[[int], bool] | None = None) -> None:
    """Remove directories that were made, the last first, as long as they are empty and they `may` go."""
    for path in reversed(made):
        above, _, name = path.rpartition("/")
        with (
            contextlib.suppress(OSError),
            opened(_beneath(top, above.split("/") if above else [])) as parent,
        ):
            if may is not None:
                with opened(os.open(name, DIRECTORY, dir_fd=parent)) as directory:
                    if not may(directory):
                        continue
            number = _project(parent, name)
            os.rmdir(name, dir_fd=parent)
            projects.lift(parent, number)


def _beneath(top: int, elements: list[str], how: int = os.O_PATH) -> int:
    return beneath.open_beneath(top, "/".join(elements), how | os.O_DIRECTORY) if elements else os.dup(top)


def _project(parent: int, name: str) -> int:
    """The project that limits a directory of a shared volume; 0: none."""
    try:
        with opened(os.open(name, DIRECTORY, dir_fd=parent)) as directory:
            return projects.of(directory, projects.SHARED)
    except OSError:
        return 0


ERRANDS: dict[str, Callable[..., Evidence]] = {
    "look": look,
    "share": share,
    "unshare": unshare,
    "remove": remove,
}
