"""Mount points: directories of ours that mounts cover, and that say whose these are.

A mount itself bears no mark: the kernel keeps nothing on one that we could write. So its point does, before
anything is mounted there, with what that will look like; it is read below the mount, without it.
"""

import errno
import os

from xce.linux import loopdevice, mountapi
from xce.linux.mountinfo import Mount
from xce.prepare.handler import At, StepFailed
from xce.prepare.step import Evidence


def make_point(point: str, about: str, at: At) -> Evidence:
    """A directory of ours to mount on; the one above it is the binding's, or ours for all of them.

    `about`: the mount, as `said_of` has it.
    """
    try:
        os.mkdir(point, 0o755)
    except FileNotFoundError:
        own_directory(os.path.dirname(point))
        at.node.owner.take(os.path.dirname(point), at.binding)
        os.mkdir(point, 0o755)
    except FileExistsError:
        if os.path.islink(point) or not os.path.isdir(point):
            raise StepFailed(f"{point} is no directory") from None
    return {"mark": about, **at.node.owner.take(point, at.binding, about)}


def marked(point: str, about: str, evidence: Evidence, at: At) -> Evidence:
    """Evidence that the point says whose its mount is; what a version without marks has mounted gets one."""
    if "mark" in evidence:
        return {key: evidence[key] for key in ("mark", "owner") if key in evidence}
    above, name = os.path.split(point)
    with mountapi.uncovered(above) as below:
        return {"mark": about, **at.node.owner.take(f"{below}/{name}", at.binding, about)}


def said_of(mount: Mount) -> set[str]:
    """What the mark of a point may say of this mount: where it is from, or what it is and is called."""
    image = loopdevice.backing(mount.device)
    names = [mount.source, *([image] if image else [])]
    return {f"{mount.device} {mount.root}", *(f"{mount.kind} {name}" for name in names)}


def own_directory(path: str) -> None:
    """A directory that others may pass through but not list, whatever our umask is."""
    if not os.path.isdir(path):
        os.makedirs(path)
        os.chmod(path, 0o711)


def remove_point(point: str) -> None:
    """Remove an empty directory of ours, and the binding's above it if it was the last."""
    for path in (point, os.path.dirname(point)):
        try:
            os.rmdir(path)
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            return  # it was there before us
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and path != point:
                return
            raise
