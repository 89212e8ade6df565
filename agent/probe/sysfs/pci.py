"""PCI functions: /sys/bus/pci/devices."""

from xce.agent.probe import facts
from xce.agent.probe.sysfs import cpulist
from xce.agent.probe.sysfs.tree import Folder, Tree, pci_path

PATH = "sys/bus/pci/devices"
PLUMBING = {0x05, 0x08, 0x0C, 0x11}
"""Base classes (memory, system peripheral, serial bus, signal processing) of which only ids are read: a
server has a hundred such functions, and none is an accelerator or a NIC but those in `TELLING`."""
TELLING = {0x0680, 0x0880, 0x0C06}
"""Bridges and system peripherals of kind `other`, and InfiniBand in the serial bus class."""


def read(tree: Tree) -> tuple[facts.Pci, ...]:
    """Every PCI function, in the order of their addresses."""
    found = []
    with tree.folder(PATH) as devices:
        for name in devices.names() if devices else ():
            address = facts.address(name)
            if devices is None or address is None:
                tree.fault(f"{PATH}/{name}", "not a PCI address")
                continue
            with devices.folder(name) as folder:
                path = pci_path(devices.link(name) or "")
                found.append(_function(address, folder, path) if folder else facts.Pci(address=address))
    tree.functions = {function.address for function in found}
    return tuple(sorted(found, key=lambda function: order(function.address)))


def order(address: str) -> tuple[int, str]:
    """PCI order; domains of five digits come last."""
    return len(address), address


def _function(address: str, folder: Folder, path: tuple[list[str], str | None]) -> facts.Pci:
    functions, root = path
    uevent = folder.pairs("uevent", "=")
    klass = _number(folder, uevent, "PCI_CLASS", "class")
    vendor, device = _ids(folder, uevent, "PCI_ID", "")
    common = {
        "address": address,
        "klass": klass,
        "vendor": vendor,
        "device": device,
        "driver": uevent.get("DRIVER") or folder.target("driver"),
        "bridges": tuple(functions[:-1]),
        "root": root,
    }
    if klass is not None and not _telling(klass):
        return facts.Pci(**common)  # type: ignore[arg-type] # one literal, checked by the constructor's names
    subsystem = _ids(folder, uevent, "PCI_SUBSYS_ID", "subsystem_")
    numa = folder.text("numa_node")
    return facts.Pci(
        **common,  # type: ignore[arg-type] # as above
        subsystem_vendor=subsystem[0],
        subsystem_device=subsystem[1],
        numa=None if numa is None else folder.parsed("numa_node", numa),
        numa_silent=numa is None,
        local_cpus=cpulist.read(folder, "local_cpulist", "local_cpus"),
        speed=folder.text("current_link_speed"),
        width=folder.number("current_link_width"),
        max_speed=folder.text("max_link_speed"),
        max_width=folder.number("max_link_width"),
        **_virtual(folder),  # type: ignore[arg-type] # as above
    )


def _telling(klass: int) -> bool:
    if klass >> 16 == 0x06 or klass >> 16 in PLUMBING:
        return klass >> 8 in TELLING
    return True


def _number(folder: Folder, uevent: dict[str, str], key: str, name: str) -> int | None:
    text = uevent.get(key)
    return folder.parsed("uevent", text, 16) if text else folder.number(name, 16)


def _ids(folder: Folder, uevent: dict[str, str], key: str, prefix: str) -> tuple[int | None, int | None]:
    """Vendor and device of `15B3:1017`, or of the two files."""
    vendor, colon, device = uevent.get(key, "").partition(":")
    if colon:
        return folder.parsed("uevent", vendor, 16), folder.parsed("uevent", device, 16)
    return folder.number(f"{prefix}vendor", 16), folder.number(f"{prefix}device", 16)


def _virtual(folder: Folder) -> dict[str, object]:
    """What SR-IOV says of a function."""
    physfn = facts.address(folder.target("physfn")) or ""
    total = None if physfn else folder.number("sriov_totalvfs")
    if total is None:
        return {"physfn": physfn}
    now = folder.number("sriov_numvfs")
    names = [name for name in folder.names() if name.startswith("virtfn")] if now else []
    addresses = [facts.address(folder.target(name)) for name in names]
    return {
        "sriov_total": total,
        "sriov_now": now,
        "virtfns": tuple(address for address in addresses if address),
    }
