"""Whether devices that belong to one instance alone are in use: before they are given, and afterwards.

Descriptors are listed by the kernel, of any process, and so are mappings where it can. A block device can be
used without either: mounted, below another device, as swap. What of that the tables show is named; what is in
another mount namespace shows by an attempt to have the device alone, which a child makes, since a disk may
not answer.
"""

import os
from collections.abc import Collection, Iterable, Sequence

import msgspec

from xce.linux import blockdevice, holders, proc
from xce.linux.cgroup import Cgroup
from xce.linux.openfiles import DeviceNumber
from xce.prepare.devices import File, Resolved, place_of
from xce.prepare.handler import ERRAND_S, At, StepFailed, Wait
from xce.prepare.mounts import ask

_BUSY_S = 0.5
_AGAIN_S, _LOOKS = 0.02, 10
"""After which, and how often, mappings that could not be seen are looked at once more."""
SYSTEM_UIDS = 1000
"""Below it are root and the accounts of services (login.defs(5), SYS_UID_MAX)."""


def refuse_used(found: Sequence[Resolved], daemons: Sequence[str], group: Cgroup, at: At) -> Wait | None:
    """A device that somebody has is not free, whatever the books say. `group`: of the consumer."""
    files = _exclusive(found)
    users = _users(files, daemons, at)
    if not users and all(device.kind == "c" for device in files):
        return None
    inside = set(group.pids())
    users += _mapping(files, daemons, at)[0]
    if users := [user for user in users if user.pid not in inside]:
        raise StepFailed(
            f"a device is in use already: {listed(users)}; if it may, name it in the profile's daemons"
        )
    used = {} if inside else _used_by_kernel(files, at)
    if isinstance(used, Wait):
        return used
    if used:
        raise StepFailed(f"a device is in use already: {_words(used)}")
    return None


def still_used(
    found: Sequence[Resolved], kept: Sequence[Resolved], daemons: Sequence[str], at: At
) -> Wait | None:
    """Who has a device that is to be given back; what the consumer's other bindings have is `kept`."""
    others = _exclusive(kept)
    files = {device: file for device, file in _exclusive(found).items() if device not in others}
    if users := _users(files, daemons, at):
        return _blocked(listed(users), found, files)
    if waiting := _still_mapped(found, files, daemons, at):
        return waiting
    used = _used_by_kernel(files, at)
    if isinstance(used, Wait):
        return used
    return _blocked(_words(used), found, used) if used else None


class _Progress(msgspec.Struct):
    """Kept while a binding is taken back."""

    looks: int = 0
    """That did not see all mappings."""


def _still_mapped(
    found: Sequence[Resolved], files: Collection[DeviceNumber], daemons: Sequence[str], at: At
) -> Wait | None:
    """Of a process whose mappings cannot be seen for long nothing is known: it may hang for other reasons."""
    users, unseen = _mapping(files, daemons, at) if files else ([], [])
    if users:
        return _blocked(listed(users), found, files)
    held = at.kept(_Progress)
    held.looks = held.looks + 1 if unseen else 0
    if unseen and held.looks < _LOOKS:
        return Wait(_AGAIN_S, f"looking who has it mapped: {listed(unseen)}")
    return None


def _blocked(words: str, found: Sequence[Resolved], devices: Iterable[DeviceNumber]) -> Wait:
    wanted = set(devices)
    ids = tuple(one.id for one in found if _exclusive([one]).keys() & wanted)
    return Wait(_BUSY_S, f"still in use: {words}", blocker=True, instances=ids)


def _exclusive(found: Iterable[Resolved]) -> dict[DeviceNumber, File]:
    """The devices that belong to one instance alone."""
    return {
        DeviceNumber(file.kind, os.makedev(file.major, file.minor)): file
        for one in found
        for file in one.files
        if file.exclusive
    }


def _users(files: Collection[DeviceNumber], daemons: Sequence[str], at: At) -> list[holders.Holder]:
    found = at.node.users(set(files)) if files else []
    return [holder for holder in found if not is_allowed(holder, daemons)]


def _mapping(
    files: Collection[DeviceNumber], daemons: Sequence[str], at: At
) -> tuple[list[holders.Holder], list[holders.Holder]]:
    """Who has one mapped and may not, and whose mappings could not be seen."""
    mapped, unseen = at.node.users.mapped(files)
    return [holder for holder in mapped if not is_allowed(holder, daemons)], unseen


def is_allowed(holder: holders.Holder, daemons: Sequence[str]) -> bool:
    """Whether it is one of the daemons, started by root or a system account: anybody can take any name."""
    if holder.name not in daemons:
        return False
    started_by = proc.real_user(holder.pid)
    return started_by is not None and started_by < SYSTEM_UIDS


def _used_by_kernel(files: dict[DeviceNumber, File], at: At) -> dict[DeviceNumber, list[str]] | Wait:
    """Of block devices: how each is used without a descriptor; those that nothing uses are left out."""
    blocks = {device: file for device, file in files.items() if device.kind == "b"}
    used = {
        device: words
        for device in blocks
        if (words := blockdevice.uses(device.number, at.node.mounts(), sys=at.node.sys, proc=at.node.proc))
    }
    if used or not blocks:
        return used
    places = {place_of(file.path, at.node.dev): device for device, file in blocks.items()}
    devices = [[path, f"{os.major(one.number)}:{os.minor(one.number)}"] for path, one in places.items()]
    answer = ask(at, "alone", {"devices": devices}, remote=True)
    if answer is None:
        return Wait(ERRAND_S, f"looking whether {', '.join(places)} can be had alone")
    return {places[path]: ["mounted or in use by the kernel where it is not seen"] for path in answer["busy"]}


def _words(used: dict[DeviceNumber, list[str]]) -> str:
    return ", ".join(f"{device} is {how}" for device, hows in used.items() for how in hows[:4])


def listed(users: Sequence[holders.Holder]) -> str:
    """Some of them, in words."""
    return ", ".join(str(user) for user in users[:4]) + (" and more" if len(users) > 4 else "")
