"""The consumer's control group: made first, emptied before anything is taken back, removed last.

Where the old devices controller keeps the devices, the consumer has a group there too, of the same name;
whoever starts its processes puts them into every group that the evidence lists.
"""

import os
import signal

import msgspec

from xce.linux.cgroup import Cgroup
from xce.prepare.handler import At, Done, Outcome, Plain, Wait
from xce.prepare.step import Evidence, Group

PREFIX = "xce-consumer-"
"""Before the consumer's name: what begins with it below the groups' root is ours."""
_SOON_S = 0.01


class _Progress(msgspec.Struct):
    """Kept while its processes are ended."""

    told: float | None = None
    """Clock at which they were."""
    words: str = ""
    """What is waited for."""


def group_of(name: str, at: At) -> Cgroup:
    """The group of a consumer."""
    return at.node.groups.child(PREFIX + name)


def old_group_of(name: str, at: At) -> str:
    """Its directory in the old devices hierarchy; '' if that is not in use."""
    isolation = at.node.isolation
    return f"{isolation.root}/{PREFIX}{name}" if isolation.mechanism == "v1" else ""


class GroupHandler(Plain[Group]):
    """See the module."""

    def key(self, step: Group) -> str:
        """The consumer."""
        return f"group:{step.name}"

    def describe(self, step: Group) -> str:
        """One line."""
        return f"control group {PREFIX}{step.name}"

    def do(self, step: Group, evidence: Evidence, at: At) -> Outcome:
        """Make it unless it is there."""
        group, old = group_of(step.name, at), old_group_of(step.name, at)
        made = group.create()
        at.node.mark("group.made")
        groups = [group.path]
        said = _take(group.path, evidence, at, made=made)
        if old:
            os.makedirs(old, exist_ok=True)
            groups.append(old)
            _take(old, evidence, at)
        return Done({"groups": groups, "controllers": sorted(group.controllers()), **said})

    def observe(self, step: Group, evidence: Evidence, at: At) -> str:
        """Whether it is there, and ours."""
        for path in evidence["groups"]:
            if not os.path.isdir(path):
                return f"control group {path} is gone"
            if words := at.node.owner.lacking(path):
                return f"control group {path}: {words}"
        return ""

    def quiesce(self, step: Group, evidence: Evidence, at: At) -> Outcome:
        """TERM, after the grace KILL; not while another binding of the consumer lives."""
        group = group_of(step.name, at)
        if any(not peer.leaving for peer in at.peers) or not group.populated():
            return Done()
        if _foreign(group.path, evidence, at):
            return Done()
        now, held = at.node.clock(), at.kept(_Progress)
        if held.told is None:
            held.told = now
            group.signal(signal.SIGTERM)
            return Wait(_SOON_S, "its processes were told to end")
        left = held.told + step.grace_s - now
        if left > 0:
            # Said once: while they end one by one, nobody wants to hear of each.
            held.words = held.words or f"{_processes(group)}; they have {step.grace_s:g} s to end"
            return Wait(min(left, 0.1), held.words)
        group.kill()
        return Wait(_SOON_S, _processes(group), blocker=now - held.told > step.grace_s + 1)

    def undo(self, step: Group, evidence: Evidence, at: At) -> Outcome:
        """Remove it, unless another binding of the consumer is there."""
        group, old = group_of(step.name, at), old_group_of(step.name, at)
        if at.peers or _foreign(group.path, evidence, at):
            return Done()
        if not group.remove():
            group.kill()
            return Wait(_SOON_S, _processes(group))
        at.node.mark("group.removed")
        if old and not _foreign(old, evidence, at):
            Cgroup(old).remove()
        return Done()


def _take(path: str, evidence: Evidence, at: At, *, made: bool = False) -> dict[str, str]:
    recorded = made or _is_recorded(path, evidence, at)
    return at.node.owner.take(path, at.binding, recorded=recorded, made=made)


def _is_recorded(path: str, evidence: Evidence, at: At) -> bool:
    """Whether it is ours without a mark: a binding of the consumer knows it, or nobody is in it."""
    known = any(path in made.get("groups", ()) for made in (evidence, *(peer.evidence for peer in at.peers)))
    return known or not Cgroup(path).pids()


def _foreign(path: str, evidence: Evidence, at: At) -> str:
    return at.node.owner.foreign(path, recorded=_is_recorded(path, evidence, at))


def _processes(group: Cgroup) -> str:
    pids = group.pids()
    shown = ", ".join(str(pid) for pid in pids[:8])
    return f"control group {group.path} still has processes: {shown or 'being removed'}"
