"""Things of ours that no binding owns: found by their names, reported, and cleaned if the admin wants that.

They are control groups that begin with the prefix, what lies in the directory of claims, and CDI and scratch
files with our name. Ours is what carries our mark besides (`tags`); what could and does not is reported and
never touched. A mount is ours if the point that it covers says so, of this mount; one of a plugin, if its
folder does. Nothing is an orphan while the node is recovering: then nobody knows who owns what.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from xce.linux import loopdevice, mountapi, mountinfo
from xce.linux.cgroup import Cgroup
from xce.linux.mountinfo import Mount
from xce.model.claim_check import WRITTEN
from xce.prepare import group, names, quota
from xce.prepare.csi import paths
from xce.prepare.environment import CDI_PREFIX
from xce.prepare.handler import Node
from xce.prepare.mountpoints import said_of
from xce.prepare.scratch import directory_of, image_of
from xce.prepare.step import Csi, Environment, Group, Scratch, Stage, Step
from xce.prepare.tags import Mark

STAGED, TRIAL, HIERARCHY = ".staged", ".visible", ".cgroup"
CSI = paths.FOLDER


class Orphan(NamedTuple):
    """Something without an owner."""

    kind: str
    """`control group`, `mount`, `volume`, `directory`, `file`, `scratch`."""
    path: str
    seen: str = ""
    """What is in it: processes, files."""
    foreign: str = ""
    """Why it is not ours, whatever it is called."""
    mount: Mount | None = None
    """Which one, of those on its path."""

    def __str__(self) -> str:
        words = f"{self.kind} {self.path}" + (f" ({self.seen})" if self.seen else "")
        return f"{words}: not ours: {self.foreign}" if self.foreign else words


def find(node: Node, owned: Iterable[Step]) -> list[Orphan]:
    """Everything of ours that belongs to none of these steps; innermost things first."""
    mine = _Owned(owned)
    found = [
        *_groups(node, mine),
        *_judged_mounts(list(_mounts(node, mine)), node),
        *_directories(node, mine),
        *_files(node, mine),
    ]
    return [one if one.mount else _judged(one, node) for one in found]


def _judged(orphan: Orphan, node: Node) -> Orphan:
    """With the word of what says whose it is: in our directory the topmost directory there."""
    root, place = node.settings.directory, orphan.path
    if place.startswith(f"{root}/"):
        place = f"{root}/{place.removeprefix(f'{root}/').partition('/')[0]}"
    return orphan._replace(foreign=node.owner.lacking(place))


def _judged_mounts(found: list[Orphan], node: Node) -> list[Orphan]:
    """The same for mounts, by what they cover."""
    if not found:
        return []
    root = node.settings.directory
    mounts = [(one, one.mount) for one in found if one.mount is not None]
    try:
        with mountapi.uncovered(root) as below:
            why = [
                _not_our_volume(f"{below}/{os.path.relpath(one.path, root)}", node)
                if one.kind == "volume"
                else _not_ours(mount, f"{below}/{os.path.relpath(one.path, root)}", node)
                for one, mount in mounts
            ]
    except OSError as error:  # without CAP_SYS_ADMIN; then no mount here is ours
        why = [f"cannot look below it: {error.strerror}"] * len(mounts)
    return [one._replace(foreign=words) for (one, _), words in zip(mounts, why, strict=True)]


def _not_our_volume(covered: str, node: Node) -> str:
    """The same for what a plugin has mounted: in a folder of ours, wherever it likes."""
    while os.path.basename(os.path.dirname(os.path.dirname(covered))) not in {CSI, ""}:
        covered = os.path.dirname(covered)
    return node.owner.whose(covered)[1]


def _not_ours(mount: Mount, covered: str, node: Node) -> str:
    """Why a mount is not ours; '' if it is, or nothing could say so. `covered`: its point, below it."""
    if not os.path.lexists(covered):
        return "it lies in another mount"
    found, words = node.owner.whose(covered)
    if found is not Mark.OURS:
        return words
    return "" if node.owner.about(covered) in said_of(mount) else "we have mounted something else there"


class _Owned:
    """What live bindings own."""

    def __init__(self, owned: Iterable[Step]) -> None:
        self.groups: set[str] = set()
        self.directories: set[str] = set()
        self.staged: set[str] = set()
        self.files: set[str] = set()
        for step in owned:
            if isinstance(step, Group):
                self.groups.add(step.name)
            elif isinstance(step, Environment):
                self.directories.add(step.directory)
                self.files.add(f"{step.cdi}/{CDI_PREFIX}{names.encode(step.binding)}.json")
            elif isinstance(step, Stage):
                self.staged.add(step.point)
            elif isinstance(step, Csi):
                self.directories |= {step.staging, os.path.dirname(step.target)}
                self.staged.add(step.staging)
            elif isinstance(step, Scratch) and step.root:
                self.files |= {f"{step.root}/{name(step)}" for name in (image_of, directory_of)}


def _groups(node: Node, mine: _Owned) -> Iterator[Orphan]:
    for child in node.groups.children():
        name = child.name.removeprefix(group.PREFIX)
        if name != child.name and name not in mine.groups and _is_ours(name):
            pids = child.pids()
            yield Orphan("control group", child.path, f"{len(pids)} processes" if pids else "")


def any_of_ours(node: Node) -> Cgroup | None:
    """A control group that this agent has made, as it says itself: none of them outlives a reboot."""
    ours = (one for one in node.groups.children() if one.name.startswith(group.PREFIX))
    return next((one for one in ours if node.owner.whose(one.path)[0] is Mark.OURS), None)


def _is_ours(element: str) -> bool:
    try:
        return bool(names.decode(element))
    except names.NameRefused:
        return False


def _mounts(node: Node, mine: _Owned) -> Iterator[Orphan]:
    root = node.settings.directory
    for mount in reversed(node.mounts()):
        point = mount.point
        if not point.startswith(f"{root}/") or point in {*mine.staged, f"{root}/{HIERARCHY}"}:
            continue
        if not any(point.startswith(f"{directory}/") for directory in mine.directories):
            kind = "volume" if point.startswith(f"{root}/{CSI}/") else "mount"
            yield Orphan(kind, point, f"{mount.kind} {mount.source}", mount=mount)


def _directories(node: Node, mine: _Owned) -> Iterator[Orphan]:
    root = node.settings.directory
    for name in _listed(root):
        path = f"{root}/{name}"
        if name not in {STAGED, TRIAL, HIERARCHY, CSI} and path not in mine.directories:
            yield Orphan("directory", path)
    for name in _listed(f"{root}/{STAGED}"):
        if f"{root}/{STAGED}/{name}" not in mine.staged:
            yield Orphan("directory", f"{root}/{STAGED}/{name}")


def _files(node: Node, mine: _Owned) -> Iterator[Orphan]:
    cdi = node.settings.cdi_directory
    roots = {root.path for profile in node.settings.profiles.values() for root in profile.scratch.values()}
    safe = {root for root in roots - {""} if mountinfo.may_hang(root, node.mounts.tops()) is None}
    places = [(cdi, CDI_PREFIX, ".json")] if cdi else []
    places += [(root, "xce-", end) for root in sorted(safe) for end in (".dir", ".img")]
    for directory, prefix, suffix in places:
        for name in _listed(directory):
            path = f"{directory}/{name}"
            if name.startswith(prefix) and name.endswith(suffix) and path not in mine.files:
                yield Orphan("scratch" if suffix == ".dir" else "file", path)


def _listed(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def clean(orphan: Orphan, node: Node) -> str:
    """Take one away; '' if it is gone, otherwise what keeps it. To be called again, later."""
    if orphan.foreign:
        return f"not ours: {orphan.foreign}"
    try:
        return _clean(orphan, node)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)


def _clean(orphan: Orphan, node: Node) -> str:
    match orphan.kind:
        case "control group":
            return _clean_group(Cgroup(orphan.path))
        case "volume":
            return "a CSI plugin has mounted it: let it take it back, or unmount it by hand"
        case "mount":
            return _clean_mount(orphan, node)
        case "directory":
            return _clean_directory(orphan.path)
        case _ if _in_use(orphan.path, node):
            return "it is mounted"
        case "scratch":
            return _clean_scratch(orphan.path, node)
        case _:
            os.unlink(orphan.path)
    return ""


def _clean_mount(orphan: Orphan, node: Node) -> str:
    """Only what was judged, and only if nothing lies over it."""
    there = node.mounts.at(orphan.path)
    if orphan.mount not in there:
        return ""
    if there[-1] != orphan.mount:
        return "something else is mounted over it"
    if mountinfo.can_hang(there[-1].kind):
        return f"{there[-1].kind} may hang: unmount it by hand"
    mountapi.unmount(orphan.path)
    return ""


def _clean_group(found: Cgroup) -> str:
    found.kill()
    return "" if found.remove() else "its processes are being ended"


def _clean_directory(path: str) -> str:
    """Files that we write, and empty mount points; a directory with anything else in it stays."""
    for name in _listed(path):
        inside = f"{path}/{name}"
        with contextlib.suppress(OSError):
            if name.removesuffix(".new") in WRITTEN:
                os.unlink(inside)
            else:
                os.rmdir(inside)
    os.rmdir(path)
    return ""


def _clean_scratch(path: str, node: Node) -> str:
    """With all that is in it: it was to go with its binding."""
    root, name = os.path.split(path)
    left = quota.clear(root=root, image="", directory=name, number=0, owner=list(node.owner))["left"]
    return f"{left[0][0]}: {left[0][1]}" if left else ""


def _in_use(path: str, node: Node) -> bool:
    """Whether a file is mounted, or the directory in a scratch; told by its name, which is one binding's."""
    inside = f"/{os.path.basename(path)}/{quota.DATA}"
    return any(
        mount.root.endswith(inside) or (mount.kind == "ext4" and loopdevice.backing(mount.device) == path)
        for mount in node.mounts()
    )
