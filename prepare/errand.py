"""Work on file systems, as named operations with plain arguments: a child can do it where it can hang.

Each is a function from JSON to JSON, safe to be done again. `Errands` does them in place, or sends a child
that it waits for by looking, and leaves behind when its time is over. Paths given here are the admin's;
what comes from users is opened beneath them, without links.
"""

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from typing import Any

from xce.linux import beneath, cgroup, loopdevice, mountapi, mountinfo, proc, spawn, syscalls
from xce.linux.cgroup import Cgroup
from xce.prepare.step import Evidence
from xce.prepare.tags import Owner

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LOOKED_AT = 20_000
"""Entries of a tree that are removed in one go."""
_MKFS = "/sbin/mkfs.ext4"


@contextlib.contextmanager
def opened(fd: int) -> Iterator[int]:
    """A descriptor that is closed again."""
    try:
        yield fd
    finally:
        os.close(fd)


def source(*, source: str, path: str) -> Evidence:
    """What a bind mount of a directory will look like in the mount table: its device and root."""
    with opened(_directory(source, path)) as fd:
        return described(fd)


def bind(
    *, source: str, path: str, point: str, read_only: bool, device: str = "", root: str = ""
) -> Evidence:
    """Mount a directory on `point`, an empty directory of ours. Nothing may be mounted there yet.

    `device` and `root` are what `source` said of it: where a volume is gone, its mount point is still there,
    on this node's own disk.
    """
    attributes = mountapi.MOUNT_ATTR_NOSUID | mountapi.MOUNT_ATTR_NODEV
    if read_only:
        attributes |= mountapi.MOUNT_ATTR_RDONLY
    with opened(_directory(source, path)) as fd:
        if device and (now := described(fd)) and (now["device"], now["root"]) != (device, root):
            raise OSError(errno.ESTALE, "it is not the volume's directory any more", source)
        with opened(mountapi.clone(fd)) as tree, opened(beneath.open_root(point)) as target:
            mountapi.set_attributes(tree, attributes)
            mountapi.attach(tree, target)
    return {}


def make(*, type: str, options: dict[str, Any], point: str, mode: int = 0) -> Evidence:  # noqa: A002 - as it is
    """Mount a new file system on `point`; its top directory gets `mode` unless that is 0."""
    attributes = mountapi.MOUNT_ATTR_NOSUID | mountapi.MOUNT_ATTR_NODEV
    with (
        opened(mountapi.make(type, options, attributes=attributes)) as tree,
        opened(beneath.open_root(point)) as target,
    ):
        if mode:
            os.chmod(f"/proc/self/fd/{tree}", mode)
        mountapi.attach(tree, target)
        return {}


def loop(
    *,
    root: str,
    name: str,
    bytes: int,  # noqa: A002
    point: str,
    uid: int,
    gid: int,
    new: bool,
    owner: list[str],
    binding: str,
) -> Evidence:
    """Mount an ext4 file system in the file `name` on `point`; `new`: an empty one. For a child: it waits."""
    Owner(*owner).refuse_foreign(f"{root}/{name}", recorded=not new)
    if new:  # not the file that one before us may have begun with: its mkfs may still be at work on that
        unlink(root=root, name=name)
    with opened(beneath.open_root(root)) as top:
        how = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        image = os.open(name, how | (os.O_CREAT | os.O_EXCL if new else 0), 0o600, dir_fd=top)
    with opened(image):
        said = Owner(*owner).take(image, binding, recorded=not new)
        if new:
            room = os.fstatvfs(image)
            if bytes > room.f_bavail * room.f_frsize:  # ext4 would take all that there is before it says no
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{root}/{name}")
            os.posix_fallocate(image, 0, bytes)
            _format(image, uid, gid)
        path, device = loopdevice.attach(image)
    with opened(device):
        make(type="ext4", options={"source": path}, point=point, mode=0o700 if new else 0)
        return dict(said)


def _format(image: int, uid: int, gid: int) -> None:
    owner = f"root_owner={uid}:{gid},nodiscard"
    command = [_MKFS, "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", owner, "/proc/self/fd/3"]
    child = spawn.spawn(command, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, fds={3: image})
    ended = os.waitid(os.P_PID, child.pid, os.WEXITED)
    if ended is None or ended.si_status:
        raise OSError(errno.EIO, f"{_MKFS} failed")


def unlink(*, root: str, name: str) -> Evidence:
    """Remove a file of ours."""
    with opened(beneath.open_root(root)) as top, contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=top)
    return {}


def set_read_only(*, point: str) -> Evidence:
    """Make the mount on `point` read-only again."""
    with opened(beneath.open_root(point)) as fd:
        mountapi.set_attributes(fd, mountapi.MOUNT_ATTR_RDONLY)
    return {}


def unmount(*, point: str) -> Evidence:
    """Take the topmost mount off `point`: {"busy": True} while somebody uses it."""
    try:
        mountapi.unmount(point)
    except OSError as error:
        if error.errno == errno.EBUSY:
            return {"busy": True}
        if error.errno not in (errno.EINVAL, errno.ENOENT):
            raise
    return {}


def probe(*, point: str) -> Evidence:
    """Whether the file system on `point` answers at all."""
    os.statvfs(point)
    return {}


def kind(*, point: str) -> Evidence:
    """What a path is: `directory`, `device` with its number, `file`; whether it can be looked at at all."""
    found = os.stat(point)
    if stat.S_ISDIR(found.st_mode):
        os.statvfs(point)
        return {"kind": "directory"}
    if stat.S_ISBLK(found.st_mode):
        return {"kind": "device", "number": f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"}
    return {"kind": "file"}


def permitted(*, group: str, devices: list[list[str]]) -> Evidence:
    """Which device files (path, `r` or `rw`) processes of a control group may not open: {"denied": [PATH]}.

    For a child: it enters the group. Nothing is opened, and what is not there cannot be asked for.
    """
    if (home := cgroup.own()) is None:
        raise OSError(errno.EOPNOTSUPP, "it is not known in which control group we are")
    Cgroup(group).enter()
    try:
        return {"denied": [path for path, access in devices if _is_denied(path, access)]}
    finally:
        home.enter()


def _is_denied(path: str, access: str) -> bool:
    try:
        syscalls.access(path, os.R_OK | (os.W_OK if "w" in access else 0))
    except OSError as error:
        return error.errno == errno.EPERM
    return False


def alone(*, devices: list[list[str]]) -> Evidence:
    """Which block devices (path, number) the kernel uses, {"busy": [PATH]}: they cannot be had alone.

    For a child: to open a disk may wait for it.
    """
    busy = []
    for path, number in devices:
        try:
            with opened(
                os.open(path, os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            ) as fd:
                found = os.fstat(fd)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            busy.append(path)
        else:
            if (
                not stat.S_ISBLK(found.st_mode)
                or number != f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
            ):
                raise OSError(errno.ESTALE, f"it is not block device {number} any more", path)
    return {"busy": busy}


def device(*, point: str, name: str, source: str, major: int, minor: int, uid: int, gid: int) -> Evidence:
    """Mount a file system on `point` that holds one block device file, a user's own, and never changes."""
    options: dict[str, str | bool] = {"source": source, "size": "4k", "nr_inodes": "2", "mode": "0755"}
    attributes = mountapi.MOUNT_ATTR_NOSUID | mountapi.MOUNT_ATTR_NOEXEC
    with (
        opened(mountapi.make("tmpfs", options, attributes=attributes)) as tree,
        opened(beneath.open_root(point)) as target,
    ):
        os.mknod(name, stat.S_IFBLK | 0o600, os.makedev(major, minor), dir_fd=tree)
        os.chown(name, uid, gid, dir_fd=tree, follow_symlinks=False)
        mountapi.set_attributes(tree, mountapi.MOUNT_ATTR_RDONLY)
        mountapi.attach(tree, target)
    return {}


def user(*, name: str) -> Evidence:
    """Uid and gid of a user, from wherever this host has its users; {} if there is none of that name."""
    try:
        found = pwd.getpwnam(name)
    except (KeyError, ValueError):
        return {}
    return {"uid": found.pw_uid, "gid": found.pw_gid}


def _directory(root: str, path: str) -> int:
    with opened(beneath.open_root(root)) as top:
        return beneath.open_beneath(top, path, os.O_PATH | os.O_DIRECTORY) if path else os.dup(top)


def described(fd: int) -> Evidence:
    """Device, root in it and kind, of what a descriptor stands for, by the mount table."""
    here = os.readlink(f"/proc/self/fd/{fd}")
    if (mount := mountinfo.one(mountapi.place(fd).mount)) is None:
        raise OSError(errno.ENOENT, "its mount is not in the mount table", here)
    inside = here.removeprefix(mount.point.rstrip("/"))
    root = mount.root.rstrip("/") + inside if inside != "/" else mount.root
    return {"device": mount.device, "root": root or "/", "type": mount.kind}


def place_of(fd: int) -> Evidence:
    """Which directory an open one is, wherever it is mounted, to be told from what may cover it one day."""
    seen, about = described(fd), os.fstat(fd)
    return seen | {"boot": proc.boot_id(), "inode": about.st_ino, "fsid": f"{os.fstatvfs(fd).f_fsid:x}"}


def other_place(fd: int, place: Evidence) -> str:
    """Why it is another directory than that was: something covers it, or its file system is away; ''.

    Numbers of devices are of one boot alone, and some file systems have another with each mount.
    """
    now = place_of(fd)
    by_mount, by_itself = ("device", "root", "boot"), ("type", "fsid", "inode")
    if any(all(now[key] == place[key] for key in keys) for keys in (by_mount, by_itself)):
        return ""
    return (
        f"{now['type']} {now['device']} {now['root']} is there now, and it was made on {place['type']} "
        f"{place['device']} {place['root']}: mount that again; if it is gone for good, make it anew, empty"
    )


ERRANDS: dict[str, Callable[..., Evidence]] = {
    "source": source,
    "bind": bind,
    "make": make,
    "loop": loop,
    "unlink": unlink,
    "set-read-only": set_read_only,
    "unmount": unmount,
    "probe": probe,
    "user": user,
    "kind": kind,
    "permitted": permitted,
    "alone": alone,
    "device": device,
}
