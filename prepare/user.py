"""To whom directories are given: a local user at once, one of a directory service by a child, which may hang.

Whatever was found first stays: the number is written down with the step, and a user who is renamed or removed
while he has directories is still the one whose they are.
"""

from xce.prepare.handler import ERRAND_S, At, Note, StepFailed, Wait
from xce.prepare.mounts import ask
from xce.prepare.step import Evidence


def look_up(name: str, evidence: Evidence, at: At) -> Note | Wait | None:
    """Uid and gid, to be written down; None if they are. Raises `StepFailed` if there is no such user."""
    if "uid" in evidence:
        return None
    found = at.node.find_user(name)
    if found is not None:
        return Note({**evidence, "uid": found.uid, "gid": found.gid})
    answer = ask(at, "user", {"name": name}, remote=True)
    if answer is None:
        return Wait(ERRAND_S, f"looking up user '{name}'")
    if not answer:
        raise StepFailed(
            f"cannot find user '{name}' on this node (its consumer's `user`, else the claim's owner)"
        )
    return Note({**evidence, **answer})
