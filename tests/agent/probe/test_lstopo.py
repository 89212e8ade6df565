"""A second witness: hwloc's `lstopo`, which finds bridges by the bus numbers in PCI headers, not by links."""

import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.hardware import recorded
from xce.agent.probe import sysfs
from xce.agent.probe.facts import Pci

LSTOPO = shutil.which("lstopo-no-graphics")
HEADERS = [
    name
    for name in recorded.TREES
    if recorded.expected(name).get("check", {}).get("config_made_from_paths") == 0
]
"""Machines whose PCI headers were recorded: of the others both would say the same for one reason."""

pytestmark = pytest.mark.skipif(LSTOPO is None, reason="lstopo is not installed: apt install hwloc-nox")


def by_lstopo(root: Path | None) -> dict[str, tuple[tuple[str, ...], str, frozenset[int]]]:
    """Bridges above, class and ids, and NUMA nodes of each PCI function, below a root or of this machine."""
    where = {"HWLOC_FSROOT": str(root), "HWLOC_THISSYSTEM": "0"} if root else {}
    run = subprocess.run(
        [str(LSTOPO), "--of", "xml", "--filter", "io:all", "--disallowed"],
        env=os.environ | where,
        capture_output=True,
        check=True,
        timeout=60,
    )
    found: dict[str, tuple[tuple[str, ...], str, frozenset[int]]] = {}

    def walk(node: ET.Element, bridges: tuple[str, ...], nodes: frozenset[int]) -> None:
        kind, address = node.get("type"), node.get("pci_busid")
        if node.get("nodeset"):
            mask = int(node.get("nodeset", "0").replace("0x", "").replace(",", "") or "0", 16)
            nodes = frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
        if kind == "PCIDev" and address:
            ids = re.sub(r" \[[^]]*\] \w+$", "", node.get("pci_type", ""))
            found[address] = (bridges, ids, nodes)
        for child in node.findall("object"):
            walk(child, (*bridges, address) if kind == "Bridge" and address else bridges, nodes)

    walk(ET.fromstring(run.stdout), (), frozenset())
    return found


def ids_of(pci: Pci) -> str:
    return f"{(pci.klass or 0) >> 8:04x} [{pci.vendor or 0:04x}:{pci.device or 0:04x}]"


def compare(root: Path | None, differing: set[str]) -> int:
    """How many functions both say the same of; fails where they do not."""
    ours = {pci.address: pci for pci in sysfs.read(root or Path("/")).pci}
    theirs = by_lstopo(root)
    for address, (bridges, ids, nodes) in theirs.items():
        assert ids_of(ours[address]) == ids, address
        if address not in differing:
            assert ours[address].bridges == bridges, address
        numa = ours[address].numa
        if root is None and numa is not None:  # of a recorded tree it tells this machine's processors
            assert numa in nodes, address
    missing = {address for address in ours if (ours[address].klass or 0) >> 16 != 0x06} - set(theirs)
    assert missing == set()
    return len(theirs)


def test_this_machines_pci_tree_is_what_lstopo_sees() -> None:
    count = compare(None, set())
    if not count:
        pytest.skip("no PCI here")


@pytest.mark.parametrize("name", HEADERS)
def test_a_recorded_tree_is_what_lstopo_sees(name: str, tmp_path: Path) -> None:
    differ = {entry[0] for entry in recorded.expected(name)["check"]["bridge_paths_differ"]}
    assert compare(recorded.unpack(name, tmp_path), differ) > 0
