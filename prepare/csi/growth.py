"""A volume that is to be larger: NodeExpandVolume, when it is published and while somebody has it.

How large is the profile's word and the claim's provider's, never the user's. The call has no opposite: a
result that is not known is followed by the same call only. A binding that is to have a size and cannot does
not become ready; one that is ready stays so, and says why its volume has not grown. A plugin that does not
offer the call has nothing to do on the node when a volume grows.
"""

from xce.model import csi
from xce.model.csi import NodeAbility, Outcome
from xce.prepare.csi import calls, usage, words
from xce.prepare.csi.usage import State
from xce.prepare.handler import At, Done, Note, StepFailed, Wait
from xce.prepare.step import Csi, Evidence

_SHOWN_S = 60.0


def wanted(step: Csi, at: At) -> int:
    """How many bytes it is to have."""
    told = words.of(at.words or {}, mount=step.mount, host=at.host, only=step.only)
    return max(step.bytes, told.bytes)


def reached(step: Csi, evidence: Evidence, at: At) -> Done | Note:
    """It is published: that is all, unless it is to grow; then this much is written down first."""
    return Note(evidence) if wanted(step, at) > evidence.get("grown", 0) else Done(evidence)


def grow(step: Csi, evidence: Evidence, at: At) -> Done | Wait:
    """Let it grow, or wait for that; raises `StepFailed` where the plugin refuses."""
    size = wanted(step, at)
    if size <= evidence.get("grown", 0):
        return Done(evidence)
    seen = at.node.csi.seen(step.plugin)
    if seen is None or not seen.asked:
        return calls.unseen(step, "it has not been heard of yet")
    done = {name: value for name, value in evidence.items() if name != "unmet"} | {"grown": size}
    if NodeAbility.EXPAND_VOLUME not in seen.abilities:
        return Done(done)
    if (said := calls.said(step, at)) is None:
        return calls.unsaid(step)
    call = csi.Expand(
        volume=step.volume,
        path=step.target,
        staging=step.staging if evidence["stages"] else "",
        capability=calls.capability(step, evidence, said.flags),
        required_bytes=size,
        secrets=step.secrets,
    )
    told = calls.ask(step, call, at)
    if isinstance(told, Wait):
        return told
    if told.outcome is Outcome.UNSUPPORTED:
        return Done(done)
    if told.outcome is not Outcome.OK:
        return calls.again_or_fail(step, "expand", told, at)
    at.kept(calls.Progress).attempts = 0
    return Done(done | {"bytes": told.capacity_bytes if told.capacity_bytes > 0 else size})


def tend(step: Csi, evidence: Evidence, at: At) -> Note | Wait | None:
    """The same for a binding that is ready, which stays ready whatever comes of it."""
    if usage.state_of(evidence) is not State.PUBLISHED:
        return None
    size, held = wanted(step, at), at.kept(calls.Progress)
    if size <= evidence.get("grown", 0):
        return Wait(_SHOWN_S, evidence["unmet"]) if evidence.get("unmet") else None
    if at.node.clock() < held.rests and not at.node.csi.pending(calls.key(at)):
        return held.resting
    try:
        outcome = grow(step, evidence, at)
    except StepFailed as error:
        return Note(evidence | {"grown": size, "unmet": str(error)})
    if isinstance(outcome, Done):
        return Note(outcome.evidence)
    held.rests, held.resting = at.node.clock() + outcome.seconds, outcome
    return outcome
