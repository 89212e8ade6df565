"""The tree: NUMA nodes, host bridges, switches, devices, one line each. Pure."""

from collections.abc import Iterator

from xce.agent.picture.plan import Branch, Device, Plan

UNICODE = ("├─ ", "└─ ", "│  ", "   ")
ASCII = ("|- ", "`- ", "|  ", "   ")


def tree(plan: Plan, marks: tuple[str, str, str, str] = UNICODE) -> list[str]:
    """The lines."""
    lines: list[str] = []
    width = max((len(device.name) for device in plan.devices), default=0)
    for numa in plan.numas:
        cpus = f"  CPUs {numa.names[1]}" if len(numa.names) > 1 else ""
        lines += [f"{numa.names[0]}{cpus}", *_below(numa, marks, width)]
    for one in plan.beyond:
        lines.append(f"{one.id}  {one.kind}  {one.reason or one.health}")
    return lines


def _below(branch: Branch, marks: tuple[str, str, str, str], width: int) -> Iterator[str]:
    children: list[Branch | Device] = [*branch.branches, *branch.devices]
    for at, child in enumerate(children):
        last = at == len(children) - 1
        mark, rest = (marks[1], marks[3]) if last else (marks[0], marks[2])
        if isinstance(child, Device):
            yield f"{mark}{line(child, width)}"
            yield from (f"{rest}{text}" for text in _parts(child, marks))
        else:
            word = {"bridge": "switch ", "group": ""}.get(child.kind, "")
            yield f"{mark}{word}{' > '.join(_short(child.names))}"
            yield from (f"{rest}{text}" for text in _below(child, marks, width))


def _short(names: tuple[str, ...]) -> tuple[str, ...]:
    """A long chain of bridges by its ends."""
    return names if len(names) <= 3 else (names[0], "...", names[-1])


def line(device: Device, width: int) -> str:
    """A device: name, address, what it is, and what is not as it should be."""
    address = device.text("pci")
    words = [device.name.ljust(width), "" if address == device.name else address, product(device)]
    if device.kind == "nic":
        words += [speed(device)]
    rails = device.texts("rails")
    words += [f"rail {', '.join(rails)}"] if rails else []
    instance = device.instance
    words += [] if instance.health == "available" else [f"[{instance.health}: {instance.reason}]"]
    return "  ".join(word for word in words if word)


def _parts(device: Device, marks: tuple[str, str, str, str]) -> Iterator[str]:
    """MIG slices each; equal partitions counted."""
    slices = [part for part in device.parts if part.kind == "mig"]
    for at, part in enumerate(slices):
        mark = marks[1] if at == len(slices) - 1 else marks[0]
        where = part.attributes.get("placement")
        ill = "" if part.health == "available" else f"  [{part.health}: {part.reason}]"
        yield f"{mark}MIG {part.attributes.get('profile', '?')} at {where}  {part.id}{ill}"
    count = len(device.parts) - len(slices)
    if count:
        good = sum(part.health == "available" for part in device.parts)
        yield f"{marks[1]}{count} partitions, {good} available"


def product(device: Device) -> str:
    """What it is, in a few words."""
    return (
        device.text("product").removeprefix("NVIDIA ") or device.text("architecture") or device.text("pci_id")
    )


def speed(device: Device) -> str:
    """`400 Gb/s infiniband`."""
    rate = f"{device.text('gbps')} Gb/s" if device.text("gbps") else ""
    return " ".join(word for word in (rate, device.text("fabric_kind")) if word and word != "unknown")
