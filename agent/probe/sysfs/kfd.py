"""AMD's compute driver: /sys/class/kfd/kfd/topology/nodes."""

from xce.agent.probe import facts
from xce.agent.probe.sysfs.tree import Folder, Tree

PATH = "sys/class/kfd/kfd/topology/nodes"


def read(tree: Tree) -> tuple[facts.KfdNode, ...]:
    """Every node, CPUs too, in the order of their numbers."""
    found = []
    seen: set[str] = set()
    with tree.folder(PATH) as nodes:
        for name in nodes.names() if nodes else ():
            if nodes is None or not name.isdecimal():
                continue
            with nodes.folder(name) as folder:
                if folder is not None:
                    found.append(_node(int(name), folder, seen))
    return tuple(found)


def _node(node: int, folder: Folder, seen: set[str]) -> facts.KfdNode:
    """One node; its links too, unless it is one more partition of a device in `seen`."""
    values = _Values(folder, "properties")
    cpu = not values.number("simd_count")
    pci = None if cpu else _pci(values.number("domain") or 0, values.number("location_id"))
    unique = values.text("unique_id")
    device = unique or pci or f"node {node}"
    links = () if device in seen else _links(folder)
    if not cpu:
        seen.add(device)
    told = None if cpu else folder.raw("gpu_id", refusable=True)
    gpu_id = folder.parsed("gpu_id", told) if told and told.strip() else None
    return facts.KfdNode(
        node=node,
        simd=values.number("simd_count") or 0,
        pci=pci,
        location=None if cpu else values.number("location_id"),
        gpu_id=gpu_id or None,
        unique_id=unique,
        hive=values.text("hive_id"),
        gfx=values.number("gfx_target_version"),
        xcc=values.number("num_xcc"),
        vendor=values.number("vendor_id"),
        device=values.number("device_id"),
        render=values.number("drm_render_minor") or None,
        memory=_memory(folder),
        cores=values.number("cpu_cores_count"),
        links=links,
    )


class _Values:
    """A properties file; a number of 0 where 0 means none is left to the caller."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._pairs = folder.pairs(name)

    def text(self, key: str) -> str | None:
        value = self._pairs.get(key)
        return None if value in (None, "", "0") else value

    def number(self, key: str) -> int | None:
        value = self._pairs.get(key)
        return self._folder.parsed(self._name, value) if value else None


def _pci(domain: int, location: int | None) -> str | None:
    """The PCI address: function 0, since the low three bits of a location count partitions."""
    if location is None:
        return None
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.0"


def _links(folder: Folder) -> tuple[facts.KfdLink, ...]:
    found = []
    for name in folder.names("io_links"):
        values = _Values(folder, f"io_links/{name}/properties")
        to, kind = values.number("node_to"), values.number("type")
        if to is not None and kind is not None:
            link = facts.KfdLink(
                to=to,
                type=kind,
                weight=values.number("weight"),
                min_mbps=values.number("min_bandwidth"),
                max_mbps=values.number("max_bandwidth"),
            )
            found.append(link)
    return tuple(found)


def _memory(folder: Folder) -> int | None:
    """Bytes of the local memory banks (heap types 1 and 2, video memory; 0 is a system heap)."""
    sizes = []
    for name in folder.names("mem_banks"):
        values = _Values(folder, f"mem_banks/{name}/properties")
        if values.number("heap_type"):
            sizes.append(values.number("size_in_bytes") or 0)
    return sum(sizes) if sizes else None
