"""Mounts of consumers: bind mounts of volumes, file systems staged for all; what all mounts have in common.

Each has a mount point of its own below our directory, where nothing else may be mounted; what is there is
compared with what should be, by device and root, and never mounted over. The mount table that counts is that
of `Node.mounts`. A mount in use is not hidden but waited for, and whoever uses it is named.
"""

import contextlib
import errno
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import msgspec

from xce.linux import holders, mountinfo
from xce.linux.mountinfo import Mount
from xce.prepare.handler import ERRAND_S, PEER, At, Done, Note, Outcome, Plain, StepFailed, Wait
from xce.prepare.mountpoints import make_point, marked, remove_point
from xce.prepare.render import BINDING
from xce.prepare.step import Bind, Csi, Evidence, Stage, Step

_BUSY_S = 0.5
IsOurs = Callable[[Mount], bool]


class Whose(Enum):
    """Who has mounts of the same directory."""

    BINDING = auto()
    """One binding alone."""
    CLAIMANTS = auto()
    """Each binding one of its own, and strangers may have it too."""
    ALL = auto()
    """One for all bindings."""


def at_point(point: str, at: At) -> list[Mount]:
    """What is mounted on a path, the lowest first."""
    return at.node.mounts.at(point)


def is_remote(path: str, at: At) -> bool:
    """Whether to look at `path` may hang."""
    return mountinfo.may_hang(path, at.node.mounts.tops()) is not None


def ask(at: At, errand: str, arguments: dict[str, Any], *, remote: bool) -> Evidence | None:
    """Do an errand for this step."""
    return at.node.errands(f"{at.binding}/{at.number}", errand, arguments, remote)


def peer_at_work(at: At) -> Wait | None:
    """Of those who share a thing, one at a time has a child change it."""
    for peer in at.peers:
        if at.node.errands.pending(f"{peer.binding}/{peer.number}"):
            return Wait(ERRAND_S, f"binding {peer.binding} is at work on it", on=PEER)
    return None


def need_visible(at: At) -> None:
    """Mounts that nobody would see are not made."""
    if at.node.visible:
        raise StepFailed(f"mounts would not be visible outside: {at.node.visible}")


def found(point: str, ours: IsOurs, at: At) -> Evidence | None:
    """Evidence of the mount on `point`, which must be ours; None if nothing is there."""
    there = at_point(point, at)
    if not there:
        return None
    top = there[-1]
    if len(there) > 1:
        raise StepFailed(f"{len(there)} mounts lie on {point}")
    if not ours(top):
        raise StepFailed(f"{point} is taken by another mount ({top.kind} {top.source} {top.root})")
    return {"mount": top.id, "point": point, "device": top.device, "root": top.root, "kind": top.kind}


def changed(evidence: Evidence, at: At, *, read_only: bool, marks: bool = True) -> str:
    """What is different at a mount point now; '' if nothing. Without `marks` it is no point of ours."""
    point = evidence["point"]
    there = at_point(point, at)
    if not there:
        return f"nothing is mounted on {point} any more"
    if len(there) > 1:
        return f"something else is mounted over {point}"
    now = (there[0].id, there[0].device, there[0].root)
    if now != (evidence["mount"], evidence["device"], evidence["root"]):
        return f"another mount is on {point}"
    if read_only and "ro" not in there[0].options.split(","):
        return f"{point} is not read-only any more"
    if marks and "mark" not in evidence:
        return f"nothing says whose the mount on {point} is"
    return ""


def may_wait(mount: Mount, at: At) -> bool:
    """Whether to take a mount off can wait: for somebody else, or, with the last one of its file system,
    until all that was written is on a disk.
    """
    if mountinfo.can_hang(mount.kind):
        return True
    others = (one for one in at.node.mounts() if one.device == mount.device and one.id != mount.id)
    return mountinfo.waits(mount.kind) and next(others, None) is None


def take_off(point: str, ours: IsOurs, evidence: Evidence, at: At, *, whose: Whose) -> Outcome:
    """Unmount what is ours, if nobody has it elsewhere either, and remove the mount point."""
    there = at_point(point, at)
    if there:
        top = there[-1]
        if not ours(top):
            if "mount" in evidence:
                words = f"another mount ({top.kind} {top.source} {top.root}) lies on {point}"
                return Wait(_BUSY_S, words, blocker=True)
            return Done()  # it was there before us
        return unmount(top, at)
    if "mount" in evidence and (waiting := elsewhere(_sought(point, ours, evidence, at, whose), at)):
        return waiting
    remove_point(point, evidence, at)
    return Done()


def elsewhere(sought: holders.Sought, at: At, instances: tuple[str, ...] = ()) -> Wait | None:
    """Whoever has a copy of what is off here."""
    if not (copies := at.copies.of(sought)):
        return None
    who = ", ".join(str(copy) for copy in copies[:4])
    words = f"{sought.point} is still mounted elsewhere: {who}"
    return Wait(_BUSY_S, words, blocker=True, instances=instances)


def take_off_early(point: str, ours: IsOurs, evidence: Evidence, at: At, *, whose: Whose) -> Done:
    """Before anything of the binding is taken back: so one look is enough where else its mounts are.

    What cannot be taken off at once is left for its turn.
    """
    there = at_point(point, at)
    if "mount" in evidence and len(there) == 1 and ours(there[0]) and not may_wait(there[0], at):
        with contextlib.suppress(OSError):
            answer = ask(at, "unmount", {"point": point}, remote=False)
            at.node.mark("mounts.unmounted")
            if answer == {}:
                at.copies.off(_sought(point, ours, evidence, at, whose))
    return Done()


def _sought(point: str, ours: IsOurs, evidence: Evidence, at: At, whose: Whose) -> holders.Sought:
    """What copies look like in other mount namespaces: in a container's they lie elsewhere."""
    sought = holders.Sought(point, evidence["device"])
    if whose is Whose.ALL:
        return sought
    mark = f"{BINDING}={at.binding}" if whose is Whose.CLAIMANTS else ""
    return sought._replace(is_it=ours, mark=mark)


def unmount(top: Mount, at: At, words: str = "") -> Wait:
    """Take off what lies topmost on its point, but never what somebody uses; look again afterwards.

    `words`: why it is ours to do.
    """
    point = top.point
    answer = ask(at, "unmount", {"point": point}, remote=may_wait(top, at))
    if answer is None:
        return Wait(ERRAND_S, f"unmounting {point}")
    if answer.get("busy"):
        users = holders.of_mount(top.id, point)
        who = ", ".join(str(user) for user in users[:4]) or "somebody that cannot be seen"
        return Wait(_BUSY_S, f"{point} is busy: {who}{f' ({words})' if words else ''}", blocker=True)
    at.node.mark("mounts.unmounted")
    return Wait(0, f"{point} is unmounted")


def having(**fields: str) -> IsOurs:
    """Tells a mount by fields of its line."""
    return lambda mount: all(getattr(mount, field) == value for field, value in fields.items())


def named(source: str, owner: str) -> IsOurs:
    """Tells a file system in memory that was made for one binding; an older version named no binding."""
    return lambda mount: mount.kind == "tmpfs" and mount.source in {f"{source}:{owner}", source}


def _made_by(step: Step) -> str:
    """The directory that is a mount once the step is done; '' for none."""
    match step:
        case Stage():
            return step.point
        case Csi():
            return step.target
        case _:
            return ""


class _Progress(msgspec.Struct):
    """Kept while a mount of a file system that can hang is looked after."""

    probe: float = 0.0
    """Clock at which it is to be asked for a sign."""
    dead: str = ""
    """Why it is none that works, as of the last one."""


class BindHandler(Plain[Bind]):
    """A directory of a volume at a place of the consumer's."""

    def key(self, step: Bind) -> str:
        """The mount point."""
        return f"mount:{step.point}"

    def describe(self, step: Bind) -> str:
        """One line."""
        path = f"{step.source}/{step.path}" if step.path else step.source
        return f"mount {path} on {step.point}{' read-only' if step.read_only else ''}"

    def look(self, step: Bind, evidence: Evidence, at: At) -> Note | Wait | None:
        """What it will look like; of a volume that an earlier step makes that is known only then."""
        need_visible(at)
        staged = any(_made_by(other) == step.source for other, _ in at.earlier)
        if staged or "root" in evidence:
            return None
        try:
            return self._source(step, at)
        except TimeoutError:
            raise
        except OSError as error:
            raise StepFailed(_source_problem(step, error)) from error

    def _source(self, step: Bind, at: At) -> Note | Wait:
        place = {"source": step.source, "path": step.path}
        wanted = ask(at, "source", place, remote=is_remote(step.source, at))
        return Wait(ERRAND_S, f"looking at {step.source}") if wanted is None else Note(wanted, synced=False)

    def do(self, step: Bind, evidence: Evidence, at: At) -> Outcome:
        """Mount it, or take what is there."""
        need_visible(at)
        try:
            return self._source(step, at) if "root" not in evidence else self._mount(step, evidence, at)
        except TimeoutError:
            raise
        except OSError as error:
            raise StepFailed(_source_problem(step, error)) from error

    def _mount(self, step: Bind, evidence: Evidence, at: At) -> Outcome:
        ours = having(device=evidence["device"], root=evidence["root"])
        about = f"{evidence['device']} {evidence['root']}"
        if (there := found(step.point, ours, at)) is None:
            evidence = evidence | make_point(step.point, about, evidence, at)
            at.node.mark("mounts.point-made")
            arguments: dict[str, Any] = {"source": step.source, "path": step.path}
            arguments |= {"point": step.point, "read_only": step.read_only}
            arguments |= {"device": evidence["device"], "root": evidence["root"]}
            if ask(at, "bind", arguments, remote=is_remote(step.source, at)) is None:
                return Wait(ERRAND_S, f"mounting {step.source}")
            at.node.mark("mounts.mounted")
            there = found(step.point, ours, at)
        if there is None:
            raise StepFailed(f"the mount on {step.point} is not in the mount table")
        if "not read-only" in changed(there, at, read_only=step.read_only):
            ask(at, "set-read-only", {"point": step.point}, remote=False)
        if problem := changed(there, at, read_only=step.read_only, marks=False):
            raise StepFailed(problem)
        return Done(there | marked(step.point, about, evidence, at))

    def observe(self, step: Bind, evidence: Evidence, at: At) -> str:
        """Compare with the mount table; a file system that can hang is asked by a child, now and then."""
        problem = changed(evidence, at, read_only=step.read_only)
        if not problem and mountinfo.can_hang(evidence["kind"]):
            return _probe(step.point, at)
        return problem

    def quiesce(self, step: Bind, evidence: Evidence, at: At) -> Outcome:
        """Nobody is left who could use it."""
        if "root" not in evidence:
            return Done()
        ours = having(device=evidence["device"], root=evidence["root"])
        return take_off_early(step.point, ours, evidence, at, whose=Whose.CLAIMANTS)

    def undo(self, step: Bind, evidence: Evidence, at: At) -> Outcome:
        """Take it off."""
        if "root" not in evidence:  # it was not even looked at, unless that note was lost
            there, source = at_point(step.point, at), at_point(step.source, at)
            if there and source and there[-1].device == source[-1].device:
                return unmount(there[-1], at)
            if not there:
                remove_point(step.point, evidence, at)
            return Done()
        ours = having(device=evidence["device"], root=evidence["root"])
        return take_off(step.point, ours, evidence, at, whose=Whose.CLAIMANTS)


def _probe(point: str, at: At) -> str:
    """What was last heard of a file system that can hang."""
    held, now = at.kept(_Progress), at.node.clock()
    if now >= held.probe:
        try:
            answer = at.node.errands(f"{at.binding}/{at.number}/probe", "probe", {"point": point}, True)
        except (OSError, StepFailed) as error:
            words = error.strerror if isinstance(error, OSError) else str(error)
            held.dead, held.probe = f"{point} is dead: {words}", now + at.node.settings.probe_s
        else:
            if answer is not None:
                held.dead, held.probe = "", now + at.node.settings.probe_s
    return held.dead


def _source_problem(step: Bind, error: OSError) -> str:
    path = f"{step.source}/{step.path}" if step.path else step.source
    words = {
        errno.ELOOP: "there is a symbolic link in it; only directories of the volume itself can be mounted",
        errno.EXDEV: "it leads out of the volume",
        errno.EINVAL: "it is not a plain path below the volume",
        errno.ESTALE: "another file system is there now, or none: not the volume that was looked at",
    }.get(error.errno or 0, error.strerror)
    return f"cannot mount {path}: {words}"


class StageHandler(Plain[Stage]):
    """A file system that is there while anybody uses it."""

    def key(self, step: Stage) -> str:
        """The mount point, which all users share."""
        return f"stage:{step.point}"

    def describe(self, step: Stage) -> str:
        """One line."""
        return f"file system {step.type} {step.source} on {step.point}"

    def do(self, step: Stage, evidence: Evidence, at: At) -> Outcome:
        """Mount it, or take what is there."""
        need_visible(at)
        if (waiting := peer_at_work(at)) is not None:
            return waiting
        about = " ".join(_staged(step).values())
        evidence = next((peer.evidence for peer in at.peers if "mark" in peer.evidence), evidence)
        if (there := found(step.point, having(**_staged(step)), at)) is None:
            evidence = evidence | make_point(step.point, about, evidence, at)
            options: dict[str, Any] = {"source": _staged(step)["source"]}
            for option in step.options:
                key, equals, value = option.partition("=")
                options[key] = value if equals else True
            remote = mountinfo.waits(step.type)
            arguments = {"type": step.type, "options": options, "point": step.point}
            if ask(at, "make", arguments, remote=remote) is None:
                return Wait(ERRAND_S, f"mounting {step.volume}")
            at.node.mark("mounts.staged")
            there = found(step.point, having(**_staged(step)), at)
        if there is None:
            raise StepFailed(f"the mount on {step.point} is not in the mount table")
        return Done(there | marked(step.point, about, evidence, at))

    def observe(self, step: Stage, evidence: Evidence, at: At) -> str:
        """Compare with the mount table."""
        return changed(evidence, at, read_only=False)

    def undo(self, step: Stage, evidence: Evidence, at: At) -> Outcome:
        """Take it off after the last of its users."""
        if at.peers:
            return Done()
        return take_off(step.point, having(**_staged(step)), evidence, at, whose=Whose.ALL)


def _staged(step: Stage) -> dict[str, str]:
    """What it looks like in the mount table; one without a device has a name of ours there."""
    return {"kind": step.type, "source": step.source or f"xce-{step.volume}"}
