"""Network interfaces: /sys/class/net."""

from xce.agent.probe import facts
from xce.agent.probe.sysfs.tree import Folder, Tree, pci_parent

PATH = "sys/class/net"
KINDS = ("bonding", "bridge", "wireless")
"""Folders by which an interface says what it is, where its DEVTYPE does not."""


def read(tree: Tree) -> tuple[facts.Net, ...]:
    """Every interface of this network namespace."""
    found = []
    with tree.folder(PATH) as nets:
        for name in nets.names() if nets else ():
            if nets is None:
                continue
            pci = pci_parent(nets, name)
            with nets.folder(name) as folder:
                if folder is not None:
                    found.append(_interface(name, folder, pci))
                elif nets.link(name) is not None:  # a file is bonding_masters
                    found.append(facts.Net(name=name, pci=pci))
    return tuple(found)


def _interface(name: str, folder: Folder, pci: str | None) -> facts.Net:
    uevent = folder.pairs("uevent", "=")
    names = folder.names()
    kind = [known for known in KINDS if known in names]
    carrier = folder.number("carrier")
    physical = "device" in names or pci is not None
    return facts.Net(
        name=name,
        pci=pci,
        index=folder.number("ifindex"),
        kind=folder.number("type"),
        info=uevent.get("DEVTYPE") or (kind[0].replace("bonding", "bond") if kind else ""),
        mac=folder.text("address"),
        operstate=folder.text("operstate"),
        carrier=None if carrier is None else carrier != 0,
        mbps=folder.number("speed"),
        mtu=folder.number("mtu"),
        master=folder.target("master"),
        lower=tuple(entry[6:] for entry in names if entry.startswith("lower_")),
        port=folder.number("dev_port") if physical else None,
        bus=(folder.target("device/subsystem") or ("pci" if pci else "")) if physical else "",
        phys_port=(folder.text("phys_port_name") or "") if physical else "",
    )
