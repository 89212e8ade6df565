"""NUMA nodes: /sys/devices/system/node."""

import re

from xce.agent.probe import facts
from xce.agent.probe.sysfs import cpulist
from xce.agent.probe.sysfs.tree import Folder, Tree
from xce.linux import proc

PATH = "sys/devices/system/node"
_NODE = re.compile(r"node(\d+)")


def read(tree: Tree) -> tuple[facts.Numa, ...]:
    """Every node, those without CPUs too."""
    found = []
    with tree.folder(PATH) as nodes:
        for name in nodes.names() if nodes else ():
            match = _NODE.fullmatch(name)
            if nodes is None or match is None:
                continue
            with nodes.folder(name) as folder:
                if folder is not None:
                    found.append(_node(int(match[1]), folder))
    return tuple(found)


def _node(node: int, folder: Folder) -> facts.Numa:
    distances = (folder.text("distance") or "").split()
    return facts.Numa(
        node=node,
        cpus=cpulist.read(folder, "cpulist", "cpumap") or "",
        memory=proc.sizes(folder.raw("meminfo") or "").get("MemTotal"),
        distances=tuple(int(distance) for distance in distances if distance.isdecimal()),
    )
