"""Calls to a plugin for one step: what is sent, and what its answer means for the binding that waits."""

import time

from xce.model import csi
from xce.model.csi import AGAIN, Outcome
from xce.prepare.csi import words
from xce.prepare.step import At, Csi, Evidence, StepFailed, Wait

SILENT = frozenset({0, 1, 4})
"""No answer, given up, too late: these words are not the plugin's own."""
_LOOK_S = 0.02
_UNSAID_S = 0.5


def key(at: At) -> str:
    """Of the calls of one step, which are made one after the other."""
    return f"{at.binding}/{at.number}"


def verb(call: csi.Call) -> str:
    """The word for a call."""
    return str(call.__struct_config__.tag)


def said(step: Csi, at: At) -> words.Said | None:
    """Flags and contexts, which the journal does not have; None: the provider's are not known yet."""
    if step.provided and at.words is None:
        return None
    profile = at.node.profile(step.profile)
    volume = profile.volumes.get(step.source) if profile is not None else None
    told = words.of(at.words or {}, mount=step.mount, host=at.host, only=step.only)
    said = words.said(volume, told) if volume is not None and volume.csi is not None else None
    if said is None or said.digest() != step.said:
        raise StepFailed(
            f"the settings of volume {step.source}, or its provider's words, were changed since it was begun"
        )
    return said


def unsaid(step: Csi) -> Wait:
    """Nothing is asked of the plugin meanwhile."""
    return Wait(_UNSAID_S, f"the broker has not said again what the provider says of volume {step.volume}")


def capability(step: Csi, evidence: Evidence, flags: list[str]) -> csi.Capability:
    """The same in every call for the volume, whatever the plugin says of itself meanwhile."""
    return csi.Capability(
        mode=evidence["mode"], block=step.block, fs_type=step.type, flags=flags, group=step.group
    )


def ask(step: Csi, call: csi.Call, at: At) -> csi.Told | Wait:
    """The answer, or what is waited for."""
    at.progress.setdefault("since", at.node.wall())
    told = at.node.csi.ask(key(at), step.plugin, call)
    if told is None:
        since = time.strftime("%H:%M:%S", time.localtime(at.progress["since"]))
        about = f"plugin {step.plugin}: {verb(call)} of volume {step.volume} since {since}"
        return Wait(_LOOK_S, about + _before(at))
    if told.outcome is not Outcome.NEVER_SENT:
        at.progress.pop("unsent", None)
    if told.outcome is Outcome.OK:
        at.progress.pop("since", None)
    if told.outcome is Outcome.OK or told.code not in SILENT:
        at.progress["said"] = told.message
    return told


def _before(at: At) -> str:
    """What the plugin itself said last, where nothing newer is known of it: a silence does not unsay it."""
    said = at.progress.get("said", "")
    return f"; it said before: {said}" if said else ""


def again_or_fail(step: Csi, verb: str, told: csi.Told, at: At) -> Wait:
    """By the table of outcomes."""
    if told.outcome not in AGAIN:
        raise StepFailed(words_of(step, verb, told))
    return again(step, verb, told, at, blocker=False)


def again(step: Csi, verb: str, told: csi.Told, at: At, *, blocker: bool) -> Wait:
    """The same call later: never another one but its opposite."""
    at.progress["attempts"] = attempts = at.progress.get("attempts", 0) + 1
    delay = AGAIN[told.outcome].delay(attempts)
    since = time.strftime("%H:%M:%S", time.localtime(at.progress["since"]))
    about = f"{words_of(step, verb, told)} (since {since})"
    return Wait(delay, about + (_before(at) if told.code in SILENT else ""), blocker=blocker)


def words_of(step: Csi, verb: str, told: csi.Told) -> str:
    """For people."""
    busy = "busy with an earlier call: " if told.outcome is Outcome.BUSY else ""
    return f"plugin {step.plugin}, {verb} of volume {step.volume}: {busy}{told.message or told.outcome}"
