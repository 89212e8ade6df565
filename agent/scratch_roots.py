"""Whether the roots of scratch directories are there, and root's alone: for the doctor, and while we run."""

import os
from collections.abc import Iterator

from xce.linux import mountinfo, paths
from xce.model.profile import Claims, profiles


def problems(settings: Claims) -> Iterator[tuple[str, str]]:
    """What is wrong with roots, and what to do. It may hang where one is on a file server that is gone."""
    for profile in profiles(settings).values():
        for name, root in profile.scratch.items():
            if root.path and not os.path.isdir(root.path):
                yield f"scratch {name}: there is no directory {root.path}", f"install -d -m 755 {root.path}"
            elif root.path and (who := paths.written_by_others(root.path)):
                text = f"scratch {name}: {root.path} {who}, who can put files in the place of jobs' scratch"
                yield text, f"chown root {root.path}; chmod 755 {root.path}"


def trouble(settings: Claims) -> str:
    """The first problem with what to do, '' for none; what may hang is left to the doctor."""
    roots = [root.path for profile in profiles(settings).values() for root in profile.scratch.values()]
    if any(mountinfo.may_hang(path) for path in roots if path):
        return ""
    return "; ".join(next(problems(settings), ()))
