"""Scratch: a directory of the user's own that cannot become larger than asked, gone with the binding.

In memory it is a tmpfs of that size; on a scratch root it is an ext4 file system in a file of that size, and
its space is set aside when it is made. Quotas of projects are not used: they want a file system that was made
and mounted for them, this works on any.
"""

import os
from typing import Any

from xce.linux import loopdevice
from xce.linux.mountinfo import Mount
from xce.prepare.mounts import IsOurs, ask, changed, found, having, make_point, need_visible, take_off
from xce.prepare.owner import look_up
from xce.prepare.step import (
    ERRAND_S,
    At,
    Done,
    Evidence,
    Note,
    Outcome,
    Plain,
    Scratch,
    StepFailed,
    Wait,
)

_SOURCE = "xce-scratch"


class ScratchHandler(Plain[Scratch]):
    """See the module."""

    def key(self, step: Scratch) -> str:
        """The mount point."""
        return f"mount:{step.point}"

    def describe(self, step: Scratch) -> str:
        """One line."""
        where = step.root or "memory"
        return f"scratch of {step.bytes >> 20} MiB in {where} on {step.point} for {step.user}"

    def look(self, step: Scratch, evidence: Evidence, at: At) -> Note | Wait | None:
        """Whose it will be."""
        return look_up(step.user, evidence, at)

    def do(self, step: Scratch, evidence: Evidence, at: At) -> Outcome:
        """Make and mount it, or take what is there."""
        need_visible(at)
        if (there := found(step.point, _ours(step), at)) is None:
            make_point(step.point)
            at.node.mark("scratch.point-made")
            try:
                made = self._make(step, evidence, at)
            except OSError as error:
                raise StepFailed(f"cannot make {self.describe(step)}: {error.strerror}") from error
            if made is None:
                return Wait(ERRAND_S, f"making {self.describe(step)}")
            at.node.mark("scratch.mounted")
            there = found(step.point, _ours(step), at)
        if there is None:
            raise StepFailed(f"the mount on {step.point} is not in the mount table")
        limit = "ext4 in a file" if step.root else "tmpfs"
        return Done({**evidence, **there, "limit": limit, "bytes": step.bytes})

    def _make(self, step: Scratch, evidence: Evidence, at: At) -> Evidence | None:
        arguments: dict[str, Any]
        uid, gid = evidence["uid"], evidence["gid"]
        if step.root:
            arguments = {"root": step.root, "name": image_of(step), "bytes": step.bytes, "point": step.point}
            arguments |= {"uid": uid, "gid": gid, "new": "mount" not in evidence}
            return ask(at, "loop", arguments, remote=True)
        options = {"source": _SOURCE, "size": str(step.bytes), "mode": "0700"}
        options |= {"uid": str(uid), "gid": str(gid)}
        arguments = {"type": "tmpfs", "options": options, "point": step.point}
        return ask(at, "make", arguments, remote=False)

    def observe(self, step: Scratch, evidence: Evidence, at: At) -> str:
        """Compare with the mount table."""
        return changed(evidence, at, read_only=False)

    def undo(self, step: Scratch, evidence: Evidence, at: At) -> Outcome:
        """Take it off; what was in it goes with it."""
        outcome = take_off(step.point, _ours(step), evidence, at)
        if not step.root or not isinstance(outcome, Done):
            return outcome
        gone = ask(at, "unlink", {"root": step.root, "name": image_of(step)}, remote=True)
        return Wait(ERRAND_S, f"removing {step.root}/{image_of(step)}") if gone is None else Done()


def image_of(step: Scratch) -> str:
    """The file; its name says whose it is."""
    return f"xce-{step.name}.img"


def _ours(step: Scratch) -> IsOurs:
    if not step.root:
        return having(kind="tmpfs", source=_SOURCE)
    image = os.path.realpath(step.root) + "/" + image_of(step)

    def is_ours(mount: Mount) -> bool:
        return mount.kind == "ext4" and loopdevice.backing(mount.device) == image

    return is_ours
