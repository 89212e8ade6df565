"""The handler of CSI volumes: does, observes and undoes one through the helper. Decisions are in `usage`.

What is done for a volume depends on the kernel's mount table and on what Stage said in this boot; statistics,
conditions and probes of the plugin decide nothing. The target does not exist before Publish, nothing of ours
is put into the staging directory, and nothing is removed but empty directories.
"""

import contextlib
import errno
import os
import stat

from xce.linux import disks, mountinfo
from xce.model import csi
from xce.model.claim import AccessMode
from xce.model.csi import Backoff, NodeAbility, Outcome
from xce.prepare.csi import calls, growth, usage
from xce.prepare.csi.calls import Progress
from xce.prepare.csi.usage import VOLUME, Event, State
from xce.prepare.handler import ERRAND_S, PEER, At, Done, Note, Plain, StepFailed, Wait
from xce.prepare.handler import Outcome as StepOutcome
from xce.prepare.mounts import ask, at_point, changed, found, may_wait, need_visible, unmount
from xce.prepare.step import Csi, Evidence

_LOOK_S = 0.02
_OWN_ERROR = Backoff(0.2, 5)
"""After an error of the plugin's while it takes something back."""
_PATIENCE = 3
"""Calls that a plugin may answer with an error, or with OK and no effect, before we unmount ourselves."""
_UNKNOWN_CODES = {*calls.SILENT, 10}
"""No answer, given up, too late, busy: the plugin has not said what it makes of the call."""


class CsiHandler(Plain[Csi]):
    """A volume of a plugin, staged and published once for all who use it."""

    def key(self, step: Csi) -> str:
        """The volume, which all users share."""
        return f"csi:{step.staging}"

    def describe(self, step: Csi) -> str:
        """One line. Mount flags may be secret."""
        return f"volume {step.volume} of CSI plugin {step.plugin}{' read-only' if step.read_only else ''}"

    def do(self, step: Csi, evidence: Evidence, at: At) -> StepOutcome:
        """Further by one call, or wait for its answer."""
        need_visible(at)
        match usage.state_of(evidence):
            case State.ABSENT:
                return self._enter(step, at)
            case State.STAGING:
                return self._stage(step, evidence, at)
            case State.PUBLISHING:
                return self._publish(step, evidence, at)
            case _:
                if problem := self.observe(step, evidence, at):
                    raise StepFailed(problem)
                return growth.grow(step, evidence, at)

    def tend(self, step: Csi, evidence: Evidence, at: At) -> Note | Wait | None:
        """Its provider may say that it has become larger."""
        return growth.tend(step, evidence, at)

    def _enter(self, step: Csi, at: At) -> StepOutcome:
        """Whether it can be had here, and how; nothing is asked of the plugin before that is written down."""
        if binding := usage.must_wait(at.peers):
            return Wait(ERRAND_S, f"volume {step.volume} is being unstaged for binding {binding}", on=PEER)
        for peer in at.peers:
            if peer.leaving or not peer.evidence:
                continue
            if usage.state_of(peer.evidence) is not State.PUBLISHED:
                words = f"volume {step.volume} is being made ready for binding {peer.binding}"
                return Wait(ERRAND_S, words, on=PEER)
            if problem := self.observe(step, peer.evidence, at):
                raise StepFailed(problem)
            return growth.reached(step, peer.evidence, at)
        seen = at.node.csi.seen(step.plugin)
        if seen is None or not (seen.asked and seen.ready):
            problem = (seen.problem if seen else "") or "it has not been heard of yet"
            return calls.unseen(step, problem)
        if problem := usage.unable(step, seen.abilities):
            raise StepFailed(problem)
        at.kept(Progress).unsent = True
        return Note(
            {
                "state": VOLUME.step(State.ABSENT, Event.WANTED),
                "mode": usage.mode(AccessMode(step.access), seen.abilities),
                "stages": NodeAbility.STAGE_UNSTAGE_VOLUME in seen.abilities,
            }
        )

    # --------------------------------------------------------------------------------------------- staging

    def _stage(self, step: Csi, evidence: Evidence, at: At) -> StepOutcome:
        if not evidence["stages"]:
            return _staged(evidence, [])
        if (said := calls.said(step, at)) is None:
            return calls.unsaid(step)
        if not usage.at_or_below(step.staging, at.node.mounts()):
            os.makedirs(step.staging, 0o755, exist_ok=True)
            at.node.owner.take(step.staging, at.binding)
        call = csi.Stage(
            volume=step.volume,
            staging=step.staging,
            capability=calls.capability(step, evidence, said.flags),
            context=said.context,
            publish_context=said.publish_context,
            secrets=step.secrets,
        )
        told = calls.ask(step, call, at)
        if isinstance(told, Wait):
            return told
        if told.outcome is not Outcome.OK:
            return calls.again_or_fail(step, "stage", told, at)
        at.node.mark("csi.staged")
        at.kept(Progress).attempts = 0
        return _staged(evidence, usage.at_or_below(step.staging, at.node.mounts()))

    # ------------------------------------------------------------------------------------------ publishing

    def _publish(self, step: Csi, evidence: Evidence, at: At) -> StepOutcome:
        if usage.at_or_below(step.staging, at.node.mounts()) != evidence["mounts"]:
            return Note(evidence | {"state": VOLUME.step(State.PUBLISHING, Event.LOST)})
        held = at.kept(Progress)
        if not held.published:
            if (said := calls.said(step, at)) is None:
                return calls.unsaid(step)
            call = csi.Publish(
                volume=step.volume,
                staging=step.staging if evidence["stages"] else "",
                target=step.target,
                capability=calls.capability(step, evidence, said.flags),
                read_only=step.read_only,
                context=said.context,
                publish_context=said.publish_context,
                secrets=step.secrets,
            )
            if not at.node.csi.pending(calls.key(at)) and not at_point(step.target, at):
                _make_leaf(step, at, present=held.leaf)
            told = calls.ask(step, call, at)
            if isinstance(told, Wait):
                return told
            if told.outcome is not Outcome.OK:
                return self._other_leaf(step, told, at)
            held.published = True
            at.node.mark("csi.published")
        return self._verify(step, evidence, at)

    def _other_leaf(self, step: Csi, told: csi.Told, at: At) -> StepOutcome:
        """Some plugins want the target to be there, and say so in any way; each is tried once at least."""
        held = at.kept(Progress)
        held.leaves.add(held.leaf)
        if told.outcome in {Outcome.REFUSED, Outcome.UNCERTAIN} and told.code not in _UNKNOWN_CODES:
            held.leaf = not held.leaf
            if told.outcome is Outcome.REFUSED and len(held.leaves) < 2:
                return Wait(0, f"plugin {step.plugin}: {told.message}")
        return calls.again_or_fail(step, "publish", told, at)

    def _verify(self, step: Csi, evidence: Evidence, at: At) -> StepOutcome:
        """The plugin says OK: look whether the kernel does."""
        there = at_point(step.target, at)
        if not there:
            raise StepFailed(f"plugin {step.plugin} says OK, and nothing is mounted on {step.target}")
        if len(there) > 1:  # it mounted again for a repeated call
            ask(at, "unmount", {"point": step.target}, remote=may_wait(there[-1], at))
            return Wait(_LOOK_S, f"taking one of {len(there)} mounts off {step.target}")
        if problem := usage.not_the_volume(there[0], at.node.settings.directory, at.node.mounts()):
            raise StepFailed(problem)
        remote = mountinfo.can_hang(there[0].kind)
        try:
            if step.read_only and not step.block and "ro" not in there[0].options.split(","):
                answer = ask(at, "set-read-only", {"point": step.target}, remote=remote)
                return Wait(ERRAND_S if answer is None else 0, f"making {step.target} read-only")
            kind = ask(at, "kind", {"point": step.target}, remote=remote)
        except OSError as error:
            words = f"plugin {step.plugin} says OK, but the file system does not work: {error.strerror}"
            raise StepFailed(words) from error
        if kind is None:
            return Wait(ERRAND_S, f"looking at {step.target}")
        wanted = "device" if step.block else "directory"
        if kind["kind"] != wanted:
            raise StepFailed(f"plugin {step.plugin} has put a {kind['kind']} at the target, not a {wanted}")
        number = kind.get("number", "")
        if point := usage.mounted_device(number, at.node.mounts(), disks.whole(at.node.sys)):
            words = f"plugin {step.plugin} has put device {number} at the target"
            raise StepFailed(f"{words}, which is mounted on {point} of this node")
        at.kept(Progress).published = False
        state = VOLUME.step(State.PUBLISHING, Event.VERIFIED)
        there_now = found(step.target, lambda _: True, at) or {}
        done = evidence | {"state": state, **there_now, **({"number": number} if number else {})}
        return growth.reached(step, done, at)

    def observe(self, step: Csi, evidence: Evidence, at: At) -> str:
        """Compare with the mount table: the target, and what was remembered of the staging directory."""
        if usage.state_of(evidence) is not State.PUBLISHED:
            return f"volume {step.volume} is not published"
        if usage.at_or_below(step.staging, at.node.mounts()) != evidence["mounts"]:
            return f"what was staged for volume {step.volume} at {step.staging} is not mounted any more"
        problem = changed(evidence, at, read_only=step.read_only and not step.block, marks=False)
        if not problem and step.block and (now := _number(step.target)) != evidence["number"]:
            return f"the device at {step.target} has number {now} now, not {evidence['number']}"
        return problem

    # ------------------------------------------------------------------------------------------ taking back

    def undo(self, step: Csi, evidence: Evidence, at: At) -> StepOutcome:
        """After the last of its users: unpublish, unstage; done when the kernel and the plugin agree."""
        state = usage.state_of(evidence)
        if state is State.ABSENT or usage.others(at.peers):
            at.node.csi.forget(calls.key(at))
            return Done()
        held = at.kept(Progress)
        if held.unsent and not at.node.csi.pending(calls.key(at)):
            _remove_leaf(step.target)
            _remove_staging(step.staging, [])
            return Done()
        if held.state is None:
            held.state = VOLUME.step(state, Event.LEFT)
        if held.state is State.UNPUBLISHING:
            call: csi.Call = csi.Unpublish(volume=step.volume, target=step.target)
            waiting = _take_back(step, call, step.target, at)
            if waiting is not None:
                return waiting
            _remove_leaf(step.target)
            at.node.mark("csi.unpublished")
            held.state = VOLUME.step(State.UNPUBLISHING, Event.CLEARED)
            held.calls, held.since, held.attempts = 0, None, 0
        if evidence["stages"]:
            waiting = _take_back(
                step, csi.Unstage(volume=step.volume, staging=step.staging), step.staging, at
            )
            if waiting is not None:
                return waiting
        stays = _remove_staging(step.staging, [point for point, _, _ in evidence.get("mounts", [])])
        at.node.mark("csi.unstaged")
        return Done(words="; ".join([*held.remarks, *([stays] if stays else [])]))


def _staged(evidence: Evidence, mounts: list[list[str]]) -> Note:
    """What Stage has made in this boot. That anything was asked of the plugin is on the disk already."""
    state = VOLUME.step(State.STAGING, Event.STAGED)
    return Note(evidence | {"state": state, "mounts": mounts}, synced=False)


def _take_back(step: Csi, call: csi.Call, path: str, at: At) -> Wait | None:
    """One call of the plugin's; None once nothing is mounted and the plugin agrees, or has been asked enough.

    An error does not mean that it is mounted: some want the path to be there, some not, some have forgotten
    the volume. OK does not mean that it is not: of several mounts some take one.
    """
    told = calls.ask(step, call, at)
    if isinstance(told, Wait):
        return told
    verb = calls.verb(call)
    if told.outcome is not Outcome.OK and told.code in _UNKNOWN_CODES:
        return calls.again(step, verb, told, at, blocker=True)
    held = at.kept(Progress)
    held.calls += 1
    mounts = usage.at_or_below(path, at.node.mounts())
    if told.outcome is Outcome.OK and not mounts:
        return None
    if not mounts:
        return _other_way(step, verb, path, told, at)
    if held.calls < _PATIENCE and told.outcome in {Outcome.OK, Outcome.UNCERTAIN}:
        delay = _OWN_ERROR.delay(held.calls) if told.outcome is not Outcome.OK else 0
        return Wait(delay, calls.words_of(step, verb, told))
    return unmount(at_point(mounts[-1][0], at)[-1], at, calls.words_of(step, verb, told))


def _other_way(step: Csi, verb: str, path: str, told: csi.Told, at: At) -> Wait | None:
    """Nothing is mounted, and it is not content: without the leaf, with it; then the kernel is believed.

    Its last words stay with the binding: what it still holds of the volume is for its own people to find out.
    """
    held = at.kept(Progress)
    if held.calls >= _PATIENCE:
        words = f"{calls.words_of(step, verb, told)}; nothing is mounted there any more, so it counts as done"
        held.remarks.append(words)
        return None
    with contextlib.suppress(OSError):
        _clear_leaf(path)
        if held.calls == _PATIENCE - 1:
            _put_leaf(path, file=step.block and path == step.target)
    return Wait(_OWN_ERROR.delay(held.calls), calls.words_of(step, verb, told))


# --------------------------------------------------------------------------------------------------- places


def _number(target: str) -> str:
    """Of a device file, on this node's own file system of those."""
    found = os.stat(target)
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}" if stat.S_ISBLK(found.st_mode) else "none"


def _make_leaf(step: Csi, at: At, *, present: bool) -> None:
    """The target's folder is ours alone; the target is absent, or empty for plugins that want it."""
    os.makedirs(os.path.dirname(step.target), 0o700, exist_ok=True)
    at.node.owner.take(os.path.dirname(step.target), at.binding)
    _clear_leaf(step.target)
    if present:
        _put_leaf(step.target, file=step.block)


def _put_leaf(path: str, *, file: bool) -> None:
    """An empty place for a mount."""
    if file:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    else:
        os.makedirs(path, 0o755, exist_ok=True)


def _clear_leaf(target: str) -> None:
    """Remove an empty leaf. What a plugin has put there is nobody's to remove. Raises OSError."""
    try:
        os.rmdir(target)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        if os.path.islink(target) or os.path.getsize(target):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target) from None
        os.unlink(target)


def _remove_leaf(target: str) -> None:
    _clear_leaf(target)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(os.path.dirname(target))


def _remove_staging(staging: str, points: list[str]) -> str:
    """With the places of what was mounted there. What plugins keep of their own in it stays: in words."""
    stays = ""
    for path in [*reversed(points), staging]:
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                stays = f"{path} stays: the plugin has something of its own in it"
            elif error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
    return stays
