"""Directories of users and jobs on a shared volume: `<user>/<job>[/<index>]/{in,out,err}`.

Made beneath the volume's root without following a link, given to the user, kept for as long as the profile or
the claim says. What the user put there is removed only when that time is over, through descriptors.
"""

from xce.prepare.mounts import ask, is_remote
from xce.prepare.step import At, Done, Evidence, Kept, Note, Outcome, Plain, Shared, StepFailed, Wait

_LOOK_S = 0.02
_LEFT_S = 5.0


class SharedHandler(Plain[Shared]):
    """See the module."""

    outlasts_boot = True

    def key(self, step: Shared) -> str:
        """The directory; an array's elements are separate."""
        return f"shared:{step.root}/{'/'.join(step.elements)}"

    def describe(self, step: Shared) -> str:
        """One line."""
        parts = ",".join(step.parts)
        return f"directories {step.root}/{'/'.join(step.elements)}/{{{parts}}} for uid {step.uid}"

    def do(self, step: Shared, evidence: Evidence, at: At) -> Outcome:
        """Make what is missing and give it to the user."""
        remote = is_remote(step.root, at)
        if not evidence and step.again == "attempt":
            taken = ask(at, "attempts", {"root": step.root, "elements": step.elements}, remote=remote)
            if taken is None:
                return Wait(_LOOK_S, f"looking at {step.root}")
            attempt = [] if taken["next"] == 1 else [f"attempt-{taken['next']}"]
            return Note({"elements": [*step.elements, *attempt]})
        elements = evidence.get("elements", step.elements)
        arguments = {
            "root": step.root,
            "elements": elements,
            "parts": step.parts,
            "uid": step.uid,
            "gid": step.gid,
        }
        try:
            made = ask(at, "share", arguments, remote=remote)
        except OSError as error:
            where = f"{step.root}/{error.filename}" if error.filename else step.root
            raise StepFailed(f"shared volume {step.volume}: {where}: {error.strerror}") from error
        if made is None:
            return Wait(_LOOK_S, f"making directories on {step.root}")
        at.node.mark("shared.made")
        before = evidence.get("made", [])
        return Done(
            {
                "elements": elements,
                "path": f"{step.root}/{'/'.join(elements)}",
                "made": before + [one for one in made["made"] if one not in before],
            }
        )

    def observe(self, step: Shared, evidence: Evidence, at: At) -> str:
        """The user may do as he likes in his own directories, and a file server is not asked for that."""
        return ""

    def undo(self, step: Shared, evidence: Evidence, at: At) -> Outcome:
        """Remove what is empty after a failure; otherwise keep it, or remove it if nobody wants it."""
        remote = is_remote(step.root, at)
        elements = evidence.get("elements", step.elements)
        if at.rollback:
            made = evidence.get("made") or _all(elements, step.parts)
            if ask(at, "unshare", {"root": step.root, "made": made}, remote=remote) is None:
                return Wait(_LOOK_S, f"removing directories on {step.root}")
            return Done()
        if at.peers:
            return Done()
        if step.retention_s > 0:
            due = at.node.wall() + step.retention_s
            return Done(kept=Kept(root=step.root, elements=elements, due=due, remote=remote))
        gone = ask(at, "remove", {"root": step.root, "elements": elements}, remote=remote)
        if gone is None:
            return Wait(_LOOK_S, f"removing directories on {step.root}")
        if gone["left"]:
            path, why = gone["left"][0]
            seconds = 0 if why == "not finished yet" else _LEFT_S
            return Wait(seconds, f"{step.root}: {path}: {why}", blocker=seconds > 0)
        return Done()


def _all(elements: list[str], parts: list[str]) -> list[str]:
    """What a call that never came back may have made. What holds anything stays, whoever made it."""
    paths = ["/".join(elements[: count + 1]) for count in range(len(elements))]
    return paths + [f"{paths[-1]}/{part}" for part in parts]
