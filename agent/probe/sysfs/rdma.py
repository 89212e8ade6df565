"""RDMA devices: /sys/class/infiniband, and their character devices."""

from xce.agent.probe import facts
from xce.agent.probe.sysfs.tree import Folder, Tree, pci_parent

PATH = "sys/class/infiniband"


def read(tree: Tree, nets: tuple[facts.Net, ...]) -> tuple[facts.Rdma, ...]:
    """Every RDMA device, with the interfaces on its PCI function."""
    found = []
    files = _characters(tree)
    with tree.folder(PATH) as devices:
        for name in devices.names() if devices else ():
            if devices is None:
                continue
            with devices.folder(name) as folder:
                if folder is None:
                    found.append(facts.Rdma(name=name))
                    continue
                pci = pci_parent(devices, name)
                on = tuple(net for net in nets if pci is not None and net.pci == pci)
                found.append(_device(folder, pci, on, files.get(name, [])))
    return tuple(found)


def _device(folder: Folder, pci: str | None, nets: tuple[facts.Net, ...], files: list[str]) -> facts.Rdma:
    numbers = [number for number in folder.names("ports") if number.isdecimal()]
    return facts.Rdma(
        name=folder.path.rpartition("/")[2],
        pci=pci,
        node_guid=folder.text("node_guid"),
        sys_image_guid=folder.text("sys_image_guid"),
        node_type=_word(folder.text("node_type")),
        firmware=folder.text("fw_ver"),
        board=folder.text("board_id"),
        hca=folder.text("hca_type"),
        driver=folder.target("device/driver"),
        uverbs=next((file for file in files if file.startswith("uverbs")), ""),
        umads=tuple(file for file in files if file.startswith("umad")),
        nets=tuple(net.name for net in nets),
        ports=tuple(_port(folder, int(number), nets, single=len(numbers) == 1) for number in numbers),
    )


def _port(device: Folder, number: int, nets: tuple[facts.Net, ...], *, single: bool) -> facts.RdmaPort:
    with device.folder(f"ports/{number}") as folder:
        if folder is None:
            return facts.RdmaPort(number=number)
        layer, rate = folder.text("link_layer"), folder.text("rate")
        return facts.RdmaPort(
            number=number,
            state=_word(folder.text("state")),
            physical=_word(folder.text("phys_state")),
            layer=layer,
            rate=rate,
            gbps=_gbps(rate),
            lid=folder.number("lid", 16),
            sm_lid=folder.number("sm_lid", 16),
            nets=_nets(folder, number, nets, layer, single=single),
        )


def _nets(
    folder: Folder, number: int, nets: tuple[facts.Net, ...], layer: str | None, *, single: bool
) -> tuple[str, ...]:
    """The interface of the first GID (with Ethernet, always there), or those with this port's number."""
    first = folder.text("gid_attrs/ndevs/0") if layer == "Ethernet" else None
    if first:
        return (first,)
    return tuple(net.name for net in nets if single or net.port == number - 1)


def _word(text: str | None) -> str | None:
    """`ACTIVE` of `4: ACTIVE`."""
    return text.rpartition(":")[2].strip() if text else None


def _gbps(rate: str | None) -> float | None:
    """Of `100 Gb/sec (4X EDR)`."""
    try:
        return float(rate.split()[0]) if rate else None
    except ValueError:
        return None


def _characters(tree: Tree) -> dict[str, list[str]]:
    """Character devices (`uverbs0`, `umad0`) by the RDMA device that they belong to."""
    found: dict[str, list[str]] = {}
    for path in ("sys/class/infiniband_verbs", "sys/class/infiniband_mad"):
        with tree.folder(path) as folder:
            for name in folder.names() if folder else ():
                device = folder.text(f"{name}/ibdev") if folder else None
                if device:
                    found.setdefault(device, []).append(name)
    return found
