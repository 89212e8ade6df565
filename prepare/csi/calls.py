"""Calls to a plugin for one step: what is sent, and what its answer means for the binding that waits."""

import time

import msgspec

from xce.model import csi
from xce.model.csi import AGAIN, Outcome
from xce.prepare.csi import words
from xce.prepare.csi.usage import State
from xce.prepare.handler import ERRAND_S, At, StepFailed, Wait
from xce.prepare.step import Csi, Evidence

SILENT = frozenset({0, 1, 4})
"""No answer, given up, too late: these words are not the plugin's own."""
_UNSAID_S = 0.5


class Progress(msgspec.Struct):
    """How far a volume's step is, beside what is written down: lost with the process."""

    since: float | None = None
    """Wall time at which the first of a row of calls was made; None: none is."""
    said: str = ""
    """What the plugin itself said last."""
    attempts: int = 0
    """Calls of the row that were answered with an error."""
    unsent: bool = False
    """It is written down that something is asked of the plugin, and nothing was."""
    published: bool = False
    """The plugin has said OK to Publish; the kernel is to be looked at."""
    leaf: bool = False
    """The plugin wants the target to be there."""
    leaves: set[bool] = msgspec.field(default_factory=set)
    """How the target was when it was refused."""
    state: State | None = None
    """While it is taken back."""
    calls: int = 0
    """Answers of the plugin to what it is to take back."""
    remarks: list[str] = msgspec.field(default_factory=list)
    rests: float = 0.0
    """Clock until which growing is left alone,"""
    resting: Wait | None = None
    """and why."""


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


def unseen(step: Csi, problem: str) -> Wait:
    """Nothing is asked of a plugin that is not there."""
    return Wait(ERRAND_S, f"plugin {step.plugin}: {problem}", on=f"plugin {step.plugin}")


def capability(step: Csi, evidence: Evidence, flags: list[str]) -> csi.Capability:
    """The same in every call for the volume, whatever the plugin says of itself meanwhile."""
    return csi.Capability(
        mode=evidence["mode"], block=step.block, fs_type=step.type, flags=flags, group=step.group
    )


def ask(step: Csi, call: csi.Call, at: At) -> csi.Told | Wait:
    """The answer, or what is waited for."""
    held = at.kept(Progress)
    since = held.since = at.node.wall() if held.since is None else held.since
    told = at.node.csi.ask(key(at), step.plugin, call)
    if told is None:
        about = f"plugin {step.plugin}: {verb(call)} of volume {step.volume} since {_clock(since)}"
        return Wait(ERRAND_S, about + _before(at))
    if told.outcome is not Outcome.NEVER_SENT:
        held.unsent = False
    if told.outcome is Outcome.OK:
        held.since = None
    if told.outcome is Outcome.OK or told.code not in SILENT:
        held.said = told.message
    return told


def _clock(wall: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(wall))


def _before(at: At) -> str:
    """What the plugin itself said last, where nothing newer is known of it: a silence does not unsay it."""
    said = at.kept(Progress).said
    return f"; it said before: {said}" if said else ""


def again_or_fail(step: Csi, verb: str, told: csi.Told, at: At) -> Wait:
    """By the table of outcomes."""
    if told.outcome not in AGAIN:
        raise StepFailed(words_of(step, verb, told))
    return again(step, verb, told, at, blocker=False)


def again(step: Csi, verb: str, told: csi.Told, at: At, *, blocker: bool) -> Wait:
    """The same call later: never another one but its opposite."""
    held = at.kept(Progress)
    held.attempts += 1
    delay = AGAIN[told.outcome].delay(held.attempts)
    since = at.node.wall() if held.since is None else held.since
    about = f"{words_of(step, verb, told)} (since {_clock(since)})"
    return Wait(delay, about + (_before(at) if told.code in SILENT else ""), blocker=blocker)


def words_of(step: Csi, verb: str, told: csi.Told) -> str:
    """For people."""
    busy = "busy with an earlier call: " if told.outcome is Outcome.BUSY else ""
    return f"plugin {step.plugin}, {verb} of volume {step.volume}: {busy}{told.message or told.outcome}"
