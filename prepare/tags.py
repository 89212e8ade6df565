"""Whose a thing is, written on it: an extended attribute of control groups, directories and files.

Only root can read or write it. The agent's id comes from the machine and from its directory of claims: an
agent that has lost all it knew finds its things again, and another one, on this host or on one with the same
file system, never takes them for its own. Where a file system keeps no attributes, names must do. A mount has
none: the point that it covers bears the mark, with what is mounted there.
"""

import contextlib
import errno
import hashlib
import os
import shlex
import stat
import time
from enum import Enum, auto
from typing import NamedTuple

from xce.linux import proc

ATTRIBUTE = "trusted.xce.owner"
_USER = "trusted.xce.user."
"""And the agent's id: of what is another agent's, and this one has too."""
GOING = "trusted.xce.going"
"""Of what is being removed: who does that."""
OTHERS = "it is of another agent"
"""Beginning of the words."""
_NO_NAME = "no agent has written its name on it"
_STRANGERS = f"it was there before, and {_NO_NAME}: move it out of the way, or remove it"
_UNREADABLE = "cannot read whose it is"
_HELD = "trusted.xce.agent"
"""On a directory of claims: the process that works there, and when it was started."""
_ENDING_S = 2.0
"""In which a process that was killed is gone."""
_NEVER = "trusted.xce.never"
"""Is written nowhere."""
_ABOUT = 3
"""Fields before it."""
_KEEPS_NONE = {errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EROFS}


class Mark(Enum):
    """What is written on a thing."""

    OURS = auto()
    OTHERS = auto()
    """Another agent's, or it cannot be read."""
    NOBODYS = auto()
    """Nothing, though something could be."""
    UNKNOWN = auto()
    """Nothing can be written there."""


class Owner(NamedTuple):
    """An agent. Travels to children as a list."""

    id: str
    boot: str = ""

    def take(
        self, thing: str | int, binding: str, about: str = "", *, recorded: bool = False, made: bool = False
    ) -> dict[str, str]:
        """Write on it that it is ours; what evidence has to say of that. Raises OSError: it is `foreign`.

        `about`: what else is to be known of it. `made`: we have just made it, so nobody has written on it.
        """
        text = " ".join([self.id, binding, self.boot, *([about] if about else [])])
        if not made:
            written = _written(thing)
            if written == text:
                return {}
            if words := self._foreign(thing, written, recorded=recorded):
                raise OSError(errno.EEXIST, words, _name(thing))
        try:
            os.setxattr(thing, ATTRIBUTE, os.fsencode(text))
        except OSError as error:
            if error.errno not in _KEEPS_NONE:
                raise
            words = f"known by its name alone: cannot be written on {_name(thing)}: {error.strerror}"
            return {"owner": words}
        return {}

    def first(self, thing: int, binding: str, about: str) -> dict[str, str]:
        """Write on it that it is ours unless anybody has; what evidence has to say if that cannot be."""
        return _put(thing, ATTRIBUTE, f"{self.id} {binding} {self.boot} {about}", os.XATTR_CREATE)

    def use(self, thing: int, binding: str, about: str) -> dict[str, str]:
        """Write on what is another's that we have it too; what evidence has to say if that cannot be."""
        return _put(thing, f"{_USER}{self.id}", f"{binding} {about}", 0)

    def leave(self, thing: int) -> None:
        """Take that back."""
        with contextlib.suppress(OSError):
            os.removexattr(thing, f"{_USER}{self.id}")

    def users(self, thing: int) -> list[str]:
        """Other agents that have it too, in words."""
        try:
            names = [one for one in os.listxattr(thing) if one.startswith(_USER)]
        except OSError:
            return []
        found = []
        for name in names:
            if (agent := name.removeprefix(_USER)) != self.id:
                with contextlib.suppress(OSError):
                    binding, _, host = os.fsdecode(os.getxattr(thing, name)).partition(" ")
                    words = f"{OTHERS}, {agent} on {host[:200]}, has it too, for {binding[:200]}"
                    found.append(_shown(words) + _way_out(thing, "setfattr", "-x", name))
        return found

    def going(self, thing: int, *, going: bool) -> None:
        """Write on what is ours that it is being removed, or that it stays after all.

        Whoever begins to have it writes that first and then looks for this; whoever removes it writes this
        first and then looks for `users`: one of them sees the other.
        """
        with contextlib.suppress(OSError):
            if going:
                os.setxattr(thing, GOING, self.id.encode())
            else:
                os.removexattr(thing, GOING)

    def goes(self, thing: int) -> str:
        """Why nobody can have it: another agent is removing it; ''."""
        try:
            agent = os.fsdecode(os.getxattr(thing, GOING))
        except OSError:
            return ""
        if agent == self.id:
            return ""
        words = _shown(f"it is being removed by another agent, {agent[:200]}")
        return words + _way_out(thing, "setfattr", "-x", GOING)

    def refused(self, thing: int) -> str:
        """Why it is not to be removed: it is another agent's, or one has it too; ''."""
        found, words = self.whose(thing)
        if found is Mark.OTHERS:
            return words + _way_out(thing, "rm", "-r")
        return next(iter(self.users(thing)), "")

    def refuse_foreign(self, thing: str, *, recorded: bool) -> None:
        """Nothing is done with what is `foreign`. Raises OSError."""
        if words := self.foreign(thing, recorded=recorded):
            raise OSError(errno.EEXIST, words, thing)

    def lacking(self, thing: str) -> str:
        """Why it does not carry our name, though it could; '' if it does."""
        found, words = self.whose(thing)
        return words if found in {Mark.NOBODYS, Mark.OTHERS} else ""

    def foreign(self, thing: str, *, recorded: bool) -> str:
        """Why it is not for us to use, end or remove: another agent's, or a stranger's; ''.

        Not a stranger's is what is `recorded` as made by us, and what is empty: we may have been interrupted
        before we could mark it, and nobody loses anything. A link always is: we make none.
        """
        try:
            return self._foreign(thing, _written(thing), recorded=recorded)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"{_UNREADABLE}: {error.strerror}"

    def _foreign(self, thing: str | int, written: str | None, *, recorded: bool) -> str:
        if written:
            return "" if self._wrote(written) else _words(written)
        unmarked = written == "" and not recorded and not _is_empty(thing)
        return _STRANGERS if unmarked or _is_link(thing) else ""

    def whose(self, thing: str | int) -> tuple[Mark, str]:
        """What is written on it; and why it is not ours, in words."""
        try:
            written = _written(thing)
        except FileNotFoundError:
            return Mark.UNKNOWN, ""
        except OSError as error:
            return Mark.OTHERS, f"{_UNREADABLE}: {error.strerror}"
        if written is None:
            return Mark.UNKNOWN, ""
        if not written:
            return Mark.NOBODYS, _NO_NAME
        return (Mark.OURS, "") if self._wrote(written) else (Mark.OTHERS, _words(written))

    def about(self, thing: str) -> str:
        """What else we have written on it. Raises OSError."""
        fields = (_written(thing) or "").split(" ", _ABOUT)
        return fields[_ABOUT] if fields[0] == self.id and len(fields) > _ABOUT else ""

    def _wrote(self, text: str) -> bool:
        return text.split(" ", 1)[0] == self.id


def owner(directory: str) -> Owner:
    """The agent whose directory of claims this is."""
    place = f"{proc.machine_id() or os.uname().nodename}\0{os.path.realpath(directory)}"
    return Owner(hashlib.blake2b(os.fsencode(place), digest_size=8).hexdigest(), proc.boot_id())


def hold(directory: str) -> None:
    """Write on a directory of claims that this process works there. Raises OSError: another one does.

    Two agents with one directory would have the same id, and each would take the other's things for its own.
    """
    until = time.monotonic() + _ENDING_S
    while holder := _holder(directory):
        if time.monotonic() > until:
            words = (
                f"pid {holder} works there: another agent needs claims.directory and claims.cgroup of its own"
            )
            raise OSError(errno.EBUSY, words, directory)
        time.sleep(0.02)
    us = proc.process(os.getpid())
    with contextlib.suppress(OSError):  # a file system without attributes: then nobody can tell
        os.setxattr(directory, _HELD, f"{os.getpid()} {us.started if us else 0}".encode())


def let_go(directory: str) -> None:
    """This process does not work there any more; may be called twice."""
    with contextlib.suppress(OSError, ValueError):
        if os.getxattr(directory, _HELD).decode("ascii").split()[:1] == [str(os.getpid())]:
            os.removexattr(directory, _HELD)


def _holder(directory: str) -> int:
    """Another process that works there, 0 if none does."""
    try:
        pid, _, started = os.getxattr(directory, _HELD).decode("ascii").partition(" ")
        found = proc.process(int(pid)) if int(pid) != os.getpid() else None
    except (OSError, ValueError):
        return 0
    return found.pid if found and found.state != "Z" and str(found.started) == started else 0


def _written(thing: str | int) -> str | None:
    """What is there; '' if nothing is; None if nothing can be."""
    try:
        if isinstance(thing, int):
            return os.fsdecode(os.getxattr(thing, ATTRIBUTE))
        return os.fsdecode(os.getxattr(thing, ATTRIBUTE, follow_symlinks=False))
    except OSError as error:
        if error.errno == errno.ENODATA:
            return "" if _keeps(thing) else None
        if error.errno == errno.EOPNOTSUPP:
            return None
        raise


def _keeps(thing: str | int) -> bool:
    """Whether we may write there: to others than root the kernel says that nothing is written anywhere."""
    try:
        if isinstance(thing, int):
            os.removexattr(thing, _NEVER)
        else:
            os.removexattr(thing, _NEVER, follow_symlinks=False)
    except OSError as error:
        return error.errno not in _KEEPS_NONE
    return True


def _name(thing: str | int) -> str:
    return thing if isinstance(thing, str) else os.readlink(f"/proc/self/fd/{thing}")


def _is_empty(thing: str | int) -> bool:
    """A directory without entries, a file without contents."""
    found = os.fstat(thing) if isinstance(thing, int) else os.lstat(thing)
    if stat.S_ISDIR(found.st_mode):
        return not os.listdir(thing)
    return stat.S_ISREG(found.st_mode) and not found.st_size


def _is_link(thing: str | int) -> bool:
    return isinstance(thing, str) and os.path.islink(thing)


def _shown(text: str) -> str:
    """What a mark says, as text: anybody's root may have written it."""
    return text.encode(errors="replace").decode()


def _way_out(thing: int, *command: str) -> str:
    """Where a node has left its marks: nobody but an admin can know that it does not come back."""
    done = shlex.join([*command, _name(thing)])
    return f" (if that one is gone for good: {_shown(done)})"


def _words(written: str) -> str:
    agent, _, rest = _shown(written[:200]).partition(" ")
    return f"{OTHERS}, {agent}, for {rest.partition(' ')[0] or 'nobody'}"


def _put(thing: int, name: str, text: str, flags: int) -> dict[str, str]:
    try:
        os.setxattr(thing, name, os.fsencode(text), flags)
    except FileExistsError:
        return {}
    except OSError as error:
        if error.errno not in _KEEPS_NONE:
            raise
        return {"owner": f"cannot be written on it: {error.strerror}"}
    return {}
