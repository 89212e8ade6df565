"""What may be done with a volume of a plugin, and whether what the plugin did is what was asked for. Pure.

A volume has one staging directory and one target on a node, which all its users share: each gets a bind mount
of the target. Who the users are is in the journal: bindings whose step has evidence. Only mountinfo says what
is mounted; the plugin's word is not enough for being there, and not for being gone.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from xce.linux import mountinfo
from xce.linux.mountinfo import Mount
from xce.model.claim import AccessMode
from xce.model.csi import AccessNumber, NodeAbility
from xce.model.transition import Machine
from xce.prepare.handler import Peer
from xce.prepare.step import Csi, Evidence


class State(StrEnum):
    """How far a volume of a plugin is on its node. In the journal before the plugin is asked."""

    ABSENT = "absent"
    """Nobody has asked for it here, or nothing is left of it."""
    STAGING = "staging"
    """NodeStageVolume is asked, as often as it takes."""
    PUBLISHING = "publishing"
    """Stage said OK in this boot, and the mounts that it made are remembered; NodePublishVolume is asked."""
    PUBLISHED = "published"
    """The mount at the target was looked at and is the volume."""
    UNPUBLISHING = "unpublishing"
    """Its last user leaves: NodeUnpublishVolume is asked until no mount is at the target."""
    UNSTAGING = "unstaging"
    """NodeUnstageVolume is asked until no mount is at or below the staging directory."""


class Event(StrEnum):
    """What moves a volume here. An answer that says nothing of what was done moves it nowhere."""

    WANTED = "wanted"
    """Its first user comes."""
    STAGED = "staged"
    """The plugin says that it is staged, or does not stage."""
    LOST = "lost"
    """The mounts of its staging directory are others than those remembered."""
    VERIFIED = "verified"
    """The target is a mount of it, with the options that were asked for."""
    LEFT = "left"
    """Its last user leaves, or it could not be made ready."""
    CLEARED = "cleared"
    """Nothing is mounted any more, and the plugin says so, or was asked in every way that there is."""


_S, _E = State, Event
VOLUME = Machine(
    "csi volume on its node",
    State.ABSENT,
    {
        (_S.ABSENT, _E.WANTED): _S.STAGING,
        (_S.STAGING, _E.STAGED): _S.PUBLISHING,
        (_S.PUBLISHING, _E.LOST): _S.STAGING,
        (_S.PUBLISHING, _E.VERIFIED): _S.PUBLISHED,
        (_S.STAGING, _E.LEFT): _S.UNPUBLISHING,
        (_S.PUBLISHING, _E.LEFT): _S.UNPUBLISHING,
        (_S.PUBLISHED, _E.LEFT): _S.UNPUBLISHING,
        (_S.UNPUBLISHING, _E.CLEARED): _S.UNSTAGING,
        (_S.UNSTAGING, _E.CLEARED): _S.ABSENT,
    },
    final=frozenset(),
)


def state_of(evidence: Evidence) -> State:
    """How far a step's evidence says that it is."""
    return State(evidence.get("state", State.ABSENT))


# ------------------------------------------------------------------------------------------------ admission


def alike(step: Csi, other: Csi) -> bool:
    """Whether two steps of a volume want the same of it. What they may do at a time is another question."""
    texts = dict.fromkeys(("profile", "source", "mount"), "")
    plain = {**texts, "alone": False, "provided": False, "only": True, "bytes": 0}
    return msgspec.structs.replace(step, **plain) == msgspec.structs.replace(other, **plain)


def conflict(step: Csi, peers: Sequence[Peer]) -> str:
    """Why a volume cannot be had beside those who have it or were promised it, and stay; '' if it can."""
    for peer in peers:
        other = peer.step
        if not isinstance(other, Csi) or peer.leaving:
            continue
        if step.alone or other.alone:
            return f"volume {step.volume} is for one consumer at a time, and binding {peer.binding} has it"
        if not alike(step, other):
            return (
                f"volume {step.volume} is in use on this node in another way, by binding {peer.binding}: "
                "other settings of it, or another word of its provider; it can be had when the last user "
                "has left"
            )
    return ""


def too_many(step: Csi, others: int, most: int | None, *, shared: bool) -> str:
    """Why the plugin cannot have this volume beside its others here; '' if it can, or has it already."""
    if most is None or shared or others < most:
        return ""
    return f"plugin {step.plugin} takes {most} volumes on this node, and so many are in use or promised"


def others(peers: Sequence[Peer]) -> bool:
    """Whether there are bindings for which something was asked of the plugin, or may have been."""
    return any(peer.evidence for peer in peers)


def must_wait(peers: Sequence[Peer]) -> str:
    """Whom a newcomer has to wait for: the last user may be unstaging the volume; '' for nobody.

    Nobody unstages while another binding has evidence, and nobody gets any while all who have some leave.
    """
    having = [peer for peer in peers if peer.evidence]
    return having[0].binding if having and all(peer.leaving for peer in having) else ""


# ---------------------------------------------------------------------------------------------- capabilities

_MODES = {
    AccessMode.RWO: AccessNumber.SINGLE_NODE_WRITER,
    AccessMode.RWOP: AccessNumber.SINGLE_NODE_WRITER,
    AccessMode.ROX: AccessNumber.MULTI_NODE_READER_ONLY,
    AccessMode.RWX: AccessNumber.MULTI_NODE_MULTI_WRITER,
}
_EXACT_MODES = _MODES | {
    AccessMode.RWO: AccessNumber.SINGLE_NODE_MULTI_WRITER,
    AccessMode.RWOP: AccessNumber.SINGLE_NODE_SINGLE_WRITER,
}


def mode(access: AccessMode, abilities: Sequence[int]) -> int:
    """The number of an access mode; plugins that know one writer from several on a node are told."""
    exact = NodeAbility.SINGLE_NODE_MULTI_WRITER in abilities
    return int((_EXACT_MODES if exact else _MODES)[access])


def unable(step: Csi, abilities: Sequence[int]) -> str:
    """What the plugin cannot do and the volume needs; '' for nothing."""
    if step.group and NodeAbility.VOLUME_MOUNT_GROUP not in abilities:
        return f"plugin {step.plugin} cannot give files to a group (VOLUME_MOUNT_GROUP)"
    return ""


# -------------------------------------------------------------------------------------------------- mounts


def at_or_below(path: str, mounts: Sequence[Mount]) -> list[list[str]]:
    """The mounts at a directory or below it: point, device, root; in an order of their own."""
    prefix = path + "/"
    return sorted([m.point, m.device, m.root] for m in mounts if (m.point + "/").startswith(prefix))


def mounted_device(number: str, mounts: Sequence[Mount], whole: Callable[[str], str]) -> str:
    """Where a block device, or a part of it, is mounted on this node; '' if it is not, or it is no device.

    `whole` gives the disk that a partition is on. Who writes to a device below a file system destroys it.
    """
    if not number:
        return ""
    return next((mount.point for mount in mounts if number in {mount.device, whole(mount.device)}), "")


def not_the_volume(top: Mount, directory: str, mounts: Sequence[Mount]) -> str:
    """Why the mount on a target cannot be the volume: it is a directory of this node's own; '' if it can.

    Plugins bind the staging directory whether something is mounted there or not.
    """
    others = mountinfo.tops(mount for mount in mounts if mount.point != top.point)
    under = mountinfo.covering(directory, others)
    if under is None or top.device != under.device:
        return ""
    inside = directory.removeprefix(under.point.rstrip("/"))
    ours = (under.root.rstrip("/") + inside).rstrip("/")
    root = top.root.rstrip("/")
    # One of ours, or all claims are in it.
    if f"{root}/".startswith(f"{ours}/") or f"{ours}/".startswith(f"{root}/"):
        return f"{top.point} is a directory of this node ({top.root}), not the volume"
    return ""
