"""A node on a host with control groups of version 1 alone: `unshare -m python -m tests.prepare.version1 DIR`.

In this mount namespace those of version 2 are taken off; the kernel has them all the same. Says one JSON
object.
"""

import json
import os
import sys
from pathlib import Path

import msgspec

from tests.prepare.world import OTHER, OWN, World
from xce.linux import mountinfo, syscalls
from xce.linux.cgroup import Cgroup
from xce.model.claim import Ask, Consumer


class Version1(World):
    """It makes its groups where the node finds a place for them."""

    def start(self) -> None:
        self.settings = msgspec.structs.replace(self.settings, cgroup="")
        super().start()


def main(place: Path) -> None:
    """See above."""
    while points := [mount.point for mount in mountinfo.read() if mount.kind == "cgroup2"]:
        syscalls.umount2(points[-1], syscalls.MNT_DETACH)
    world = Version1(place, Cgroup("/nowhere"))
    report = world.bind(Ask(), cards=["full"], consumer=Consumer(name=f"v1-{os.getpid()}", user="alice"))
    group = world.evidence(report.binding, "group")["groups"][0]
    opened = world.opened(report.binding, OWN, OTHER)
    world.executor.scan()
    world.restart()  # it finds what it has mounted
    world.executor.check()
    again = world.report(report.binding)
    told = {
        "state": report.state,
        "again": [again.state, *again.conditions],
        "mechanism": world.node.isolation.mechanism,
        "group": group,
        "opened": opened,
        "orphans": world.executor.orphans,
        "ended": world.release(report.binding).state,
        "left": os.path.exists(group),
        "mounts": [mount.point for mount in mountinfo.read() if mount.kind == "cgroup2"],
    }
    print(json.dumps(told))
    world.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
