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


def make_point(point: str, about: str, evidence: Evidence, at: At) -> Evidence:
    """A directory of ours to mount on; the one above it is the binding's, or ours for all of them.

    `about`: the mount, as `said_of` has it.
    """
    recorded = "mark" in evidence
    try:
        take_directory(os.path.dirname(point), "", at, recorded=recorded)
        said = take_directory(point, about, at, recorded=recorded)
    except FileExistsError as error:
        raise StepFailed(f"cannot mount on {point}: {error.strerror}: {error.filename}") from error
    return {"mark": about, **said}


def take_directory(place: str, about: str, at: At, *, recorded: bool) -> Evidence:
    """A directory with our mark, made if it is not there. Raises OSError: it is a stranger's."""
    if made := not os.path.isdir(place):
        at.node.owner.refuse_foreign(place, recorded=recorded)
        own_directory(place)
    return dict(at.node.owner.take(place, at.binding, about, recorded=recorded, made=made))


def marked(point: str, about: str, evidence: Evidence, at: At) -> Evidence:
    """Evidence that the point says whose its mount is; what a version without marks has mounted gets one."""
    if "mark" in evidence:
        return {key: evidence[key] for key in ("mark", "owner") if key in evidence}
    above, name = os.path.split(point)
    with mountapi.uncovered(above) as below:
        return {"mark": about, **at.node.owner.take(f"{below}/{name}", at.binding, about, recorded=True)}


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


def remove_point(point: str, evidence: Evidence, at: At) -> None:
    """Remove an empty directory of ours, and the binding's above it if it was the last."""
    above, recorded = os.path.dirname(point), "mark" in evidence
    if any(at.node.owner.foreign(path, recorded=recorded) for path in (above, point)):
        return
    for path in (point, above):
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
