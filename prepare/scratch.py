"""Scratch: a directory of the user's own that cannot become larger than asked, gone with the binding.

In memory it is a tmpfs of that size. On a scratch root it is what the file system there offers: a directory
with a project quota (XFS, ext4, f2fs), a subvolume with a limit (btrfs), else an ext4 file system in a file
of that size, whose space is set aside when it is made. The admin can name one of them. How it is limited is
in the evidence, with what was read back.
"""

import errno
import os
import zlib
from typing import Any

import msgspec

from xce.linux import loopdevice, proc
from xce.linux.beneath import NOT_FINISHED
from xce.linux.mountinfo import Mount
from xce.model.profile import Limit
from xce.prepare.handler import ERRAND_S, At, Done, Note, Outcome, Plain, StepFailed, Wait
from xce.prepare.mountpoints import make_point, marked
from xce.prepare.mounts import (
    IsOurs,
    Whose,
    ask,
    changed,
    found,
    having,
    is_remote,
    named,
    need_visible,
    take_off,
    take_off_early,
)
from xce.prepare.quota import DATA, FREEING
from xce.prepare.step import Evidence, Scratch
from xce.prepare.user import look_up

_LEFT_S = 1.0
_SOURCE = "xce-scratch"
MEMORY = "memory"
WORDS = {
    MEMORY: "tmpfs",
    Limit.FILE: "ext4 in a file",
    Limit.PROJECT: "project quota of {type}",
    Limit.QGROUP: "qgroup of {type}",
}


class Progress(msgspec.Struct):
    """What was seen of a scratch directory last."""

    old: bool = False
    """One from before is in its place, and goes first."""
    used: int | None = None
    """Bytes."""
    problem: str = ""


class ScratchHandler(Plain[Scratch]):
    """See the module."""

    def key(self, step: Scratch) -> str:
        """Those on disk are one thing, so that no project is given to two."""
        return "scratch" if step.root else f"mount:{step.point}"

    def describe(self, step: Scratch) -> str:
        """One line."""
        where = step.root or "memory"
        return f"scratch of {step.bytes >> 20} MiB in {where} on {step.point} for {step.user}"

    def look(self, step: Scratch, evidence: Evidence, at: At) -> Note | Wait | None:
        """How it will be limited, and whose it will be."""
        if "way" in evidence:
            return look_up(step.user, evidence, at)
        if not step.root:
            there = _memory(at.node.proc)
            if there is not None and step.bytes > there:
                words = f"this host has {there >> 20} MiB of memory, swap included"
                raise StepFailed(f"cannot make {self.describe(step)}: {words}")
            return Note({**evidence, "way": MEMORY})
        held = [peer.evidence["number"] for peer in at.peers if peer.evidence.get("number")]
        arguments = {
            "root": step.root,
            "directory": directory_of(step),
            "start": zlib.crc32(step.name.encode()),
            "held": held,
        }
        try:
            offered = ask(at, "offer", arguments, remote=is_remote(step.root, at))
        except OSError as error:
            raise self._failed(step, error) from error
        if offered is None:
            return Wait(ERRAND_S, f"looking at {step.root}")
        way = way_of(step, offered["ways"])
        if way == Limit.FILE:
            image = f"{offered['real']}/{image_of(step)}"
            instead = {"instead": offered["ways"]} if step.limit == Limit.AUTO else {}
            return Note({**evidence, "way": way, "image": image, "home": offered["home"], **instead})
        return Note({**evidence, "way": way} | {key: offered[key] for key in _OFFERED})

    def do(self, step: Scratch, evidence: Evidence, at: At) -> Outcome:
        """Make and mount it, or take what is there."""
        need_visible(at)
        way = _way(step, evidence)
        there = found(step.point, _ours(step, evidence), at)
        try:
            if way in _QUOTAS:
                made = self._room(step, evidence, at, new=there is None and "mount" not in evidence)
                if isinstance(made, Wait):
                    return made
                kept = ("number", "limited_to", "owner")
                evidence = {**evidence, **{key: made[key] for key in kept if key in made}}
                at.node.mark("scratch.room-made")
            if there is None:
                evidence = evidence | make_point(step.point, _about(step, evidence), evidence, at)
                at.node.mark("scratch.point-made")
                if (said := self._mount(step, evidence, at)) is None:
                    return Wait(ERRAND_S, f"making {self.describe(step)}")
                evidence = {**evidence, **said}
                at.node.mark("scratch.mounted")
                there = found(step.point, _ours(step, evidence), at)
        except OSError as error:
            raise self._failed(step, error) from error
        if there is None:
            raise StepFailed(f"the mount on {step.point} is not in the mount table")
        limit = WORDS[way].format(**evidence)
        said = marked(step.point, _about(step, evidence), evidence, at)
        return Done({**evidence, **there, **said, "limit": limit, "bytes": step.bytes})

    def _room(self, step: Scratch, evidence: Evidence, at: At, *, new: bool) -> Evidence | Wait:
        """What keeps to the limit; one that is there from before, in a new one's place, goes first."""
        held = at.kept(Progress)
        if held.old:
            outcome = self._clear(step, evidence, at)
            if isinstance(outcome, Wait):
                return outcome
            held.old = False
        arguments = _room(step, evidence, new=new) | _whose(at)
        made = ask(at, "room", arguments, remote=is_remote(step.root, at))
        if made is None:
            return Wait(ERRAND_S, f"making {self.describe(step)}")
        if "old" in made:
            held.old = True
            return Wait(0, f"removing an old {step.root}/{directory_of(step)}")
        return made

    def _mount(self, step: Scratch, evidence: Evidence, at: At) -> Evidence | None:
        arguments: dict[str, Any]
        uid, gid, way = evidence["uid"], evidence["gid"], _way(step, evidence)
        if way in _QUOTAS:
            home = f"{step.root}/{directory_of(step)}"
            arguments = {"source": home, "path": DATA, "point": step.point, "read_only": False}
            return ask(at, "bind", arguments, remote=is_remote(step.root, at))
        if way == Limit.FILE:
            arguments = {"root": step.root, "name": image_of(step), "bytes": step.bytes, "point": step.point}
            arguments |= {"uid": uid, "gid": gid, "new": "mount" not in evidence, **_whose(at)}
            return ask(at, "loop", arguments, remote=True)
        options = {"source": f"{_SOURCE}:{step.name}", "size": str(step.bytes), "mode": "0700"}
        options |= {"uid": str(uid), "gid": str(gid)}
        arguments = {"type": "tmpfs", "options": options, "point": step.point}
        return ask(at, "make", arguments, remote=False)

    def _failed(self, step: Scratch, error: OSError) -> StepFailed:
        words = error.strerror
        if isinstance(error, FileNotFoundError) and step.root:
            words = f"there is no directory {step.root}: make it, or correct the profile's scratch"
        elif error.errno == errno.EFBIG:
            words = f"no file of {step.root} can be so large"
        elif isinstance(error, FileExistsError):
            words = f"{error.strerror}: {error.filename}"
        return StepFailed(f"cannot make {self.describe(step)}: {words}")

    def observe(self, step: Scratch, evidence: Evidence, at: At) -> str:
        """Compare with the mount table, and a limit with what the file system says of it."""
        problem = changed(evidence, at, read_only=False)
        if problem or _way(step, evidence) not in _QUOTAS:
            return problem
        arguments = _place(step, evidence) | {"way": evidence["way"], "size": step.bytes}
        seen = ask(at, "measure", arguments, remote=is_remote(step.root, at))
        held = at.kept(Progress)
        if seen is None:
            return held.problem
        held.used, held.problem = seen["used"], seen["problem"]
        return f"{step.root}/{directory_of(step)}: {seen['problem']}" if seen["problem"] else ""

    def quiesce(self, step: Scratch, evidence: Evidence, at: At) -> Outcome:
        """Nobody is left who could use it."""
        if not evidence.keys() & {"way", "mount"}:
            return Done()
        return take_off_early(step.point, _ours(step, evidence), evidence, at, whose=Whose.BINDING)

    def undo(self, step: Scratch, evidence: Evidence, at: At) -> Outcome:
        """Take it off; what was in it goes with it."""
        if not evidence.keys() & {"way", "mount"}:
            return Done()  # nothing was made yet
        outcome = take_off(step.point, _ours(step, evidence), evidence, at, whose=Whose.BINDING)
        if not step.root or not isinstance(outcome, Done):
            return outcome
        return self._clear(step, evidence, at)

    def _clear(self, step: Scratch, evidence: Evidence, at: At) -> Done | Wait:
        name_of = directory_of if _way(step, evidence) in _QUOTAS else image_of
        arguments = _place(step, evidence) | {"image": image_of(step), "owner": list(at.node.owner)}
        arguments |= {"home": evidence.get("home"), "made": name_of(step) if "mount" in evidence else ""}
        gone = ask(at, "clear", arguments, remote=True)
        if gone is None:
            return Wait(ERRAND_S, f"removing {step.root}/{directory_of(step)}")
        if gone["left"]:
            path, why = gone["left"][0]
            seconds = 0 if why == NOT_FINISHED else _LEFT_S
            words = f"{step.root}/{path or directory_of(step)}: {why}"
            return Wait(seconds, words, blocker=seconds > 0 and why != FREEING)
        return Done()


def _memory(proc_root: str) -> int | None:
    """Bytes that a tmpfs of this host could ever hold; None: the kernel does not say."""
    try:
        sizes = proc.memory(proc_root)
        return sizes["MemTotal"] + sizes.get("SwapTotal", 0)
    except (OSError, KeyError):
        return None


def way_of(step: Scratch, ways: dict[str, str]) -> str:
    """How a scratch is limited, by what its file system offers: in `ways` is for each why not, or ''."""
    if step.limit == Limit.FILE:
        return step.limit
    if step.limit == Limit.AUTO:
        return next((way for way in _QUOTAS if not ways[way]), Limit.FILE.value)
    if why := ways[step.limit]:
        raise StepFailed(f"scratch root {step.root} is to have limits by {step.limit}, but {why}")
    return step.limit


def image_of(step: Scratch) -> str:
    """The file; its name says whose it is."""
    return f"xce-{step.name}.img"


def directory_of(step: Scratch) -> str:
    """The directory or subvolume."""
    return f"xce-{step.name}.dir"


_QUOTAS = (Limit.PROJECT.value, Limit.QGROUP.value)
_OFFERED = ("type", "device", "root", "number", "home")


def _way(step: Scratch, evidence: Evidence) -> str:
    """As it was written down; before there was a choice, it was a file."""
    return str(evidence.get("way", Limit.FILE.value if step.root else MEMORY))


def _place(step: Scratch, evidence: Evidence) -> dict[str, Any]:
    return {"root": step.root, "directory": directory_of(step), "number": evidence.get("number", 0)}


def _whose(at: At) -> dict[str, Any]:
    return {"owner": list(at.node.owner), "binding": at.binding}


def _room(step: Scratch, evidence: Evidence, *, new: bool) -> dict[str, Any]:
    given = {key: evidence[key] for key in ("way", "uid", "gid")}
    return _place(step, evidence) | given | {"size": step.bytes, "new": new}


def _image(step: Scratch, evidence: Evidence) -> str:
    return str(evidence.get("image") or f"{os.path.realpath(step.root)}/{image_of(step)}")


def _about(step: Scratch, evidence: Evidence) -> str:
    """What the mark of its point says of the mount."""
    way = _way(step, evidence)
    if way in _QUOTAS:
        return f"{evidence['device']} {evidence['root']}"
    return f"tmpfs {_SOURCE}:{step.name}" if way == MEMORY else f"ext4 {_image(step, evidence)}"


def _ours(step: Scratch, evidence: Evidence) -> IsOurs:
    way = _way(step, evidence)
    if way == MEMORY:
        return named(_SOURCE, step.name)
    if way in _QUOTAS:
        return having(device=evidence["device"], root=evidence["root"])
    image = _image(step, evidence)

    def is_ours(mount: Mount) -> bool:
        return mount.kind == "ext4" and loopdevice.backing(mount.device) == image

    return is_ours
