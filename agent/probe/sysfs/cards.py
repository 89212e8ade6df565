"""Cards of other class directories than PCI: graphics, accelerators, vector engines, NVMe controllers."""

import re

from xce.agent.probe import facts
from xce.agent.probe.sysfs.tree import Folder, Tree, pci_parent

CLASSES: dict[str, tuple[re.Pattern[str], tuple[str, ...]]] = {
    "drm": (
        re.compile(r"card\d+|renderD\d+"),
        (
            "device/unique_id",
            "device/product_name",
            "device/product_number",
            "device/serial_number",
            "device/vbios_version",
            "device/mem_info_vram_total",
            "device/current_compute_partition",
            "device/current_memory_partition",
        ),
    ),
    "accel": (re.compile(r"accel\d+"), ()),
    "habanalabs": (re.compile(r"hl\d+"), ()),
    "neuron_device": (re.compile(r"neuron\d+"), ()),
    "ve": (re.compile(r"ve\d+"), ("model", "serial", "num_of_core", "os_state")),
    "mic": (re.compile(r"mic\d+"), ("family", "stepping", "state")),
    "cxi": (re.compile(r"cxi\d+"), ()),
    "nvme": (re.compile(r"nvme\d+"), ("model", "serial", "firmware_rev", "state", "transport")),
}
"""Which names of which class, and which files of them. Files of `renderD*` are those of its `card*`."""


def read(tree: Tree) -> tuple[facts.Card, ...]:
    """All of them, by class and number."""
    found = []
    for subsystem, (pattern, files) in CLASSES.items():
        with tree.folder(f"sys/class/{subsystem}") as cards:
            for name in cards.names() if cards else ():
                if cards is not None and pattern.fullmatch(name):
                    wanted = () if name.startswith("renderD") else files
                    found.append(_card(cards, subsystem, name, wanted))
    return tuple(found)


def _card(cards: Folder, subsystem: str, name: str, files: tuple[str, ...]) -> facts.Card:
    values = {file.rpartition("/")[2]: cards.text(f"{name}/{file}") for file in files}
    minor = (cards.text(f"{name}/dev") or "").partition(":")[2]
    return facts.Card(
        subsystem=subsystem,
        name=name,
        pci=pci_parent(cards, name),
        minor=int(minor) if minor.isdecimal() else None,
        attributes={file: value for file, value in values.items() if value},
    )
