"""Everything at once: one reading of a machine."""

import re
from pathlib import Path

from xce.agent.probe import facts
from xce.agent.probe.sysfs import cards, kfd, net, numa, pci, rdma
from xce.agent.probe.sysfs.tree import Tree

NVIDIA = "proc/driver/nvidia/gpus"
_MEMORY_NODE = re.compile(r"^Node:\s+(\d+)", re.MULTILINE)


def read(root: Path = Path("/")) -> facts.Machine:
    """The machine below `root`, which holds `sys` and `proc`. Never raises for what is there."""
    tree = Tree(str(root).rstrip("/"))
    functions = pci.read(tree)
    nets = net.read(tree)
    held, memory = _nvidia(tree)
    return facts.Machine(
        pci=functions,
        net=nets,
        rdma=rdma.read(tree, nets),
        kfd=kfd.read(tree),
        cards=cards.read(tree),
        numa=numa.read(tree),
        nvidia_proc=held,
        nvidia_numa=memory,
        faults=tree.faults(),
    )


def _nvidia(tree: Tree) -> tuple[tuple[str, ...], dict[str, int]]:
    """The GPUs that NVIDIA's driver holds, and the NUMA nodes that are their memory."""
    held, memory = [], {}
    with tree.folder(NVIDIA) as gpus:
        for name in gpus.names() if gpus else ():
            address = facts.address(name)
            if gpus is None or address is None:
                continue
            held.append(address)
            node = _MEMORY_NODE.search(gpus.raw(f"{name}/numa_status") or "")
            if node is not None:
                memory[address] = int(node[1])
    return tuple(held), memory
