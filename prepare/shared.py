"""Directories of users and jobs on a shared volume: `<user>/<job>[/<index>]/{in,out,err}`.

Made beneath the volume's root without following a link, given to the user, kept for as long as the profile or
the claim says. What the user put there is removed only when that time is over, through descriptors, and only
by the node that has made the directory, once no other has it (`directories`).
"""

import errno

import msgspec

from xce.linux.beneath import NOT_FINISHED
from xce.prepare.handler import ERRAND_S, At, Done, Note, Outcome, Plain, StepFailed, Wait
from xce.prepare.mounts import ask, is_remote, peer_at_work
from xce.prepare.step import Evidence, Kept, Shared, Step
from xce.prepare.user import look_up

_LEFT_S = 5.0
_SOON_S = 0.05
_JOB = 2
"""Elements down to a job's directory."""


class SharedHandler(Plain[Shared]):
    """See the module."""

    outlasts_boot = True

    def key(self, step: Shared) -> str:
        """The job's directory: those of an array's elements, and of later runs, lie in it."""
        return f"shared:{step.root}/{'/'.join(step.elements[:_JOB])}"

    def describe(self, step: Shared) -> str:
        """One line."""
        parts = ",".join(step.parts)
        return f"directories {step.root}/{'/'.join(step.elements)}/{{{parts}}} for {step.user}"

    def look(self, step: Shared, evidence: Evidence, at: At) -> Note | Wait | None:
        """Whose they will be, and which of them are new."""
        if (outcome := look_up(step.user, evidence, at)) or "elements" in evidence:
            return outcome
        place = {"root": step.root, "elements": step.elements, "parts": step.parts}
        try:
            planned = ask(
                at, "look", {**place, "new": step.again == "attempt"}, remote=is_remote(step.root, at)
            )
        except OSError as error:
            raise _failed(step, error) from error
        return Wait(ERRAND_S, f"looking at {step.root}") if planned is None else Note(evidence | planned)

    def do(self, step: Shared, evidence: Evidence, at: At) -> Outcome:
        """Make what is missing and give it to the user."""
        if (waiting := peer_at_work(at) or _being_removed(step, evidence, at)) is not None:
            return waiting
        arguments = {
            "root": step.root,
            "elements": evidence["elements"],
            "parts": step.parts,
            "uid": evidence["uid"],
            "gid": evidence["gid"],
            "size": step.size_bytes,
            "new": evidence["new"],
            "owner": _whose(evidence, at),
            "binding": at.binding,
            "host": at.host,
        }
        try:
            made = ask(at, "share", arguments, remote=is_remote(step.root, at))
        except OSError as error:
            if error.errno == errno.EBUSY:  # another node removes them now: then they can be made anew
                return Wait(_LEFT_S, f"{step.root}/{error.filename}: {error.strerror}", blocker=True)
            raise _failed(step, error) from error
        if made is None:
            return Wait(ERRAND_S, f"making directories on {step.root}")
        at.node.mark("shared.made")
        return Done({**evidence, **made, "path": f"{step.root}/{'/'.join(evidence['elements'])}"})

    def observe(self, step: Shared, evidence: Evidence, at: At) -> str:
        """The user may do as he likes in his own directories, and a file server is not asked for that."""
        return ""

    def undo(self, step: Shared, evidence: Evidence, at: At) -> Outcome:
        """Remove what is empty after a failure; otherwise keep it, or remove it if nobody wants it."""
        remote = is_remote(step.root, at)
        elements = evidence.get("elements", step.elements)
        if "elements" not in evidence:
            return Done()  # nothing was made yet
        if at.rollback:
            new = {"root": step.root, "elements": elements, "new": evidence["new"]}
            new |= {"owner": _whose(evidence, at)}
            if ask(at, "unshare", new, remote=remote) is None:
                return Wait(ERRAND_S, f"removing directories on {step.root}")
            return Done()
        agent, home, read = evidence.get("agent", ""), evidence.get("home"), at.node.read_clocks()
        kept = Kept(
            root=step.root,
            elements=elements,
            due=read.wall,
            remote=remote,
            agent=agent,
            home=home,
            read=read,
        )
        needed = any(lies_in(directory_of(peer.step, peer.evidence), elements) for peer in at.peers)
        if step.retention_s > 0 or needed:  # if only for as long as others are in it
            return Done(kept=msgspec.structs.replace(kept, due=kept.due + step.retention_s))
        whose = {"owner": _whose(evidence, at), "agent": agent, "home": home}
        gone = ask(at, "remove", {"root": step.root, "elements": elements, **whose}, remote=remote)
        if gone is None:
            return Wait(ERRAND_S, f"removing directories on {step.root}")
        if gone.get("shared"):
            return Done(kept=kept)  # it goes with the last node that has something of it
        if gone.get("stays") and not gone["others"]:
            return Done(words=f"{step.root}/{'/'.join(elements)} stays: {gone['stays']}")
        if gone["left"]:
            seconds = 0 if gone["left"][0][1] == NOT_FINISHED else _LEFT_S
            return Wait(seconds, left_of(step.root, elements, gone["left"]), blocker=seconds > 0)
        return Done()


def _whose(evidence: Evidence, at: At) -> list[str]:
    """Who we are, or were when they were made."""
    owner = at.node.owner
    return list(owner._replace(id=evidence.get("agent") or owner.id))


def directory_of(step: Step, evidence: Evidence) -> list[str]:
    """From the root down to what a step's directories are in; [] if it has none."""
    return list(evidence.get("elements", step.elements)) if isinstance(step, Shared) else []


def lies_in(one: list[str], other: list[str]) -> bool:
    """Whether one directory is another, or below it."""
    return one[: len(other)] == other


def removal_key(root: str, elements: list[str]) -> str:
    """Of the errand that removes a directory whose time is over."""
    return f"kept {root}/{'/'.join(elements)}"


def left_of(root: str, elements: list[str], left: list[list[str]]) -> str:
    """The first of what could not be removed of a directory, and why."""
    path, why = left[0]
    return f"{'/'.join([root, *elements[:-1], path])}: {why}"


def _being_removed(step: Shared, evidence: Evidence, at: At) -> Wait | None:
    """What has begun is waited for: nobody gets directories that are about to go."""
    elements = directory_of(step, evidence)
    keys = [removal_key(step.root, elements[:count]) for count in range(1, len(elements) + 1)]
    busy = any(at.node.errands.pending(key) for key in keys)
    return Wait(_SOON_S, f"removing what was kept below {step.root}") if busy else None


def _failed(step: Shared, error: OSError) -> StepFailed:
    where = f"{step.root}/{error.filename}" if error.filename else step.root
    return StepFailed(f"shared volume {step.volume}: {where}: {error.strerror}")
