"""Volumes that are devices: a device file for the consumer's user, in a file system that holds nothing else.

The plugin's own file may lie where device files do not work, and belongs to root. Ours is made of the number
that the step of the volume has verified. It keeps nobody from writing: that is the device filter's, and
filter and file come from the same evidence.
"""

import os
import stat

from xce.prepare import names
from xce.prepare.handler import ERRAND_S, At, Done, Note, Outcome, Plain, StepFailed, Wait
from xce.prepare.mountpoints import make_point, marked
from xce.prepare.mounts import (
    Whose,
    ask,
    changed,
    found,
    named,
    need_visible,
    take_off,
    take_off_early,
)
from xce.prepare.step import Block, Csi, Evidence
from xce.prepare.user import look_up

_SOURCE = "xce-volume"
_FILE = "device"


def device_of(step: Block) -> str:
    """The device file."""
    return f"{step.point}/{_FILE}"


def number_of(step: Block, at: At) -> tuple[int, int]:
    """The number that was read at the volume's target."""
    for other, evidence in at.earlier:
        if isinstance(other, Csi) and other.target == step.target:
            major, _, minor = str(evidence["number"]).partition(":")
            return int(major), int(minor)
    raise StepFailed(f"internal error: nothing publishes {step.target}")


class BlockHandler(Plain[Block]):
    """See the module."""

    def key(self, step: Block) -> str:
        """The mount point."""
        return f"mount:{step.point}"

    def describe(self, step: Block) -> str:
        """One line."""
        return f"device {step.name} in {step.point} for {step.user}{' read-only' if step.read_only else ''}"

    def look(self, step: Block, evidence: Evidence, at: At) -> Note | Wait | None:
        """Whose it will be."""
        return look_up(step.user, evidence, at)

    def do(self, step: Block, evidence: Evidence, at: At) -> Outcome:
        """Make it, or take what is there."""
        need_visible(at)
        major, minor = number_of(step, at)
        source = f"{_SOURCE}:{names.encode(at.binding)}"
        about, ours = f"tmpfs {source}", named(_SOURCE, names.encode(at.binding))
        if (there := found(step.point, ours, at)) is None:
            evidence = evidence | make_point(step.point, about, evidence, at)
            at.node.mark("block.point-made")
            arguments = {
                "point": step.point,
                "name": _FILE,
                "source": source,
                "major": major,
                "minor": minor,
            }
            arguments |= {"uid": evidence["uid"], "gid": evidence["gid"]}
            if ask(at, "device", arguments, remote=False) is None:
                return Wait(ERRAND_S, f"making {device_of(step)}")
            at.node.mark("block.mounted")
            there = found(step.point, ours, at)
        if there is None:
            raise StepFailed(f"the mount on {step.point} is not in the mount table")
        said = marked(step.point, about, evidence, at)
        done = {**evidence, **there, **said, "number": f"{major}:{minor}"}
        if problem := self.observe(step, done, at):
            raise StepFailed(problem)
        return Done(done)

    def observe(self, step: Block, evidence: Evidence, at: At) -> str:
        """Compare with the mount table, and the file with the number."""
        if problem := changed(evidence, at, read_only=True):
            return problem
        about = os.stat(device_of(step), follow_symlinks=False)
        number = f"{os.major(about.st_rdev)}:{os.minor(about.st_rdev)}"
        if not stat.S_ISBLK(about.st_mode) or number != evidence["number"]:
            return f"{device_of(step)} is not block device {evidence['number']} any more"
        return ""

    def quiesce(self, step: Block, evidence: Evidence, at: At) -> Outcome:
        """Nobody is left who could use it."""
        ours = named(_SOURCE, names.encode(at.binding))
        return take_off_early(step.point, ours, evidence, at, whose=Whose.BINDING)

    def undo(self, step: Block, evidence: Evidence, at: At) -> Outcome:
        """Take it off; whoever has the device open keeps it there, and is named."""
        ours = named(_SOURCE, names.encode(at.binding))
        return take_off(step.point, ours, evidence, at, whose=Whose.BINDING)
