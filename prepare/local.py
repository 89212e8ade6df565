"""This machine as handlers see it: the real roots and clocks, what was tried out once at the start."""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Sequence

from xce.linux import cgroup, mountapi, mountinfo, users
from xce.linux.cgroup import Cgroup
from xce.linux.holders import Devices
from xce.linux.listening import Listening
from xce.linux.users import User
from xce.model import csi
from xce.model.profile import Claims, profile_of
from xce.prepare import isolation, tags
from xce.prepare.child import Errands
from xce.prepare.csi.helper import HelperClient
from xce.prepare.errand import opened
from xce.prepare.handler import Node
from xce.prepare.mountpoints import own_directory
from xce.prepare.orphans import HIERARCHY, TRIAL

JOBS = "xce.slice/xce-jobs.service"
"""Where the shipped unit holds the control groups of jobs, below the root of the hierarchy."""
_TRIAL_SOURCE, _HIERARCHY_SOURCE = "xce-trial", "xce-claims"
HOLDER = "holder"
"""The group in it of the process that keeps the unit alive."""


def node(
    settings: Claims,
    *,
    namespace: int | str | None = None,
    find_user: Callable[[str], User | None] = users.find,
    mechanisms: Sequence[str] = ("bpf", "v1"),
    mark: Callable[[str], None] = lambda _: None,
    wall: Callable[[], float] = time.time,
) -> Node:
    """The node of the running kernel. `namespace`: another process whose mounts count than the settings say.

    Raises OSError.
    """
    seen_by = settings.namespace if namespace is None else namespace
    own_directory(settings.directory)
    tags.hold(settings.directory)
    need_version_2(settings)
    groups_here = groups(settings)
    groups_here.enable(groups_here.controllers())  # so that whoever starts jobs can set limits for each
    return Node(
        settings=settings,
        profile=lambda name: profile_of(settings, name),
        groups=groups_here,
        owner=tags.owner(settings.directory),
        isolation=isolation.find(groups_here, mechanisms=mechanisms),
        mounts=mountinfo.Table(pid=seen_by),
        visible=invisible(settings.directory, seen_by),
        errands=Errands(time.monotonic, settings.remote_s, home=settings.directory),
        users=Devices(),
        listening=Listening(time.monotonic, min(0.25, settings.check_s / 2)),
        find_user=find_user,
        csi=helper(settings),
        clock=time.monotonic,
        wall=wall,
        mark=mark,
    )


def helper(settings: Claims) -> HelperClient:
    """The client of the helper for CSI plugins; nothing is started yet."""
    plugins = csi.Plugins(sockets=settings.csi.plugins, registration=settings.csi.registration)
    return HelperClient(plugins, time.monotonic, program=settings.csi.helper)


def need_version_2(settings: Claims) -> None:
    """Where only control groups of version 1 are mounted, mount those of version 2 for ourselves.

    The kernel has them beside the others, without controllers: they hold a job's processes together and carry
    its device filter. Raises OSError.
    """
    if settings.cgroup or any(mount.kind == "cgroup2" for mount in mountinfo.read()):
        return
    point = f"{settings.directory}/{HIERARCHY}"
    attributes = mountapi.MOUNT_ATTR_NOSUID | mountapi.MOUNT_ATTR_NODEV | mountapi.MOUNT_ATTR_NOEXEC
    try:
        os.makedirs(point, 0o755, exist_ok=True)
        tags.owner(settings.directory).take(point, "all", f"cgroup2 {_HIERARCHY_SOURCE}")
        with (
            opened(mountapi.make("cgroup2", {"source": _HIERARCHY_SOURCE}, attributes=attributes)) as tree,
            opened(os.open(point, os.O_PATH | os.O_CLOEXEC)) as at,
        ):
            mountapi.attach(tree, at)
    except OSError as error:
        words = f"no control groups of version 2 are mounted here, and they cannot be: {error.strerror}"
        raise OSError(error.errno, words) from error


def groups(settings: Claims, pid: int | str = "self") -> Cgroup:
    """Where consumers' groups are made. Not below the agent's (`pid`): jobs outlive it. Raises OSError."""
    if settings.cgroup:
        return Cgroup(settings.cgroup)
    if (unit := jobs_unit()) is not None:
        return unit
    own = cgroup.own(pid=pid)
    if own is None:
        raise OSError(errno.ENOENT, "no control groups of version 2 are mounted here")
    above = own.parent()
    return above if os.path.exists(f"{above.path}/cgroup.procs") and above.writable() else own


def jobs_unit() -> Cgroup | None:
    """The group of the unit that is shipped for holding those of jobs, where it runs and is ours to use."""
    for mount in mountinfo.read():
        if mount.kind == "cgroup2":
            group = Cgroup(f"{mount.point}/{JOBS}")
            return group if group.writable() else None
    return None


def invisible(directory: str, namespace: int | str) -> str:
    """Why a mount below `directory` would not be seen by the process `namespace`; '' if it would: tried."""
    try:
        ours, theirs = (os.readlink(f"/proc/{pid}/ns/mnt") for pid in ("self", namespace))
    except OSError as error:
        return f"cannot look at the mount namespace of pid {namespace}: {error.strerror}"
    if ours == theirs:
        return ""
    point = f"{directory}/{TRIAL}"
    try:
        os.makedirs(point, exist_ok=True)
        while [mount.source for mount in mountinfo.read() if mount.point == point][-1:] == [_TRIAL_SOURCE]:
            mountapi.unmount(point)  # somebody was killed in the middle of it
        with (
            opened(mountapi.make("tmpfs", {"source": _TRIAL_SOURCE})) as tree,
            opened(os.open(point, os.O_PATH)) as at,
        ):
            mountapi.attach(tree, at)
        try:
            seen = any(mount.point == point for mount in mountinfo.read(pid=namespace))
        finally:
            mountapi.unmount(point)
    except OSError as error:
        return f"cannot try it in {directory}: {error.strerror}"
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(point)
    hint = "its unit or its caller gave it a mount namespace of its own that does not propagate"
    return "" if seen else f"this process has another mount namespace than pid {namespace} ({hint})"
