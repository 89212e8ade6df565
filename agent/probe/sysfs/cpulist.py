"""Lists of CPUs as the kernel writes them: `0-7,16-23`, or a mask in groups of 32 bits."""

from xce.agent.probe.sysfs.tree import Folder


def read(folder: Folder, name: str, mask_name: str) -> str | None:
    """The list of one file, or of the mask in the other one."""
    text = folder.raw(name)
    if text is not None:
        return text.strip()
    mask = folder.text(mask_name)
    if mask is None:
        return None
    bits = folder.parsed(mask_name, mask.replace(",", ""), 16)
    return None if bits is None else ranges(bits)


def cpus(text: str) -> frozenset[int]:
    """The CPUs of a list; what is no list holds none."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (last.isdecimal() or not last):
            found.update(range(int(first), min(int(last or first), int(first) + 65535) + 1))
    return frozenset(found)


def ranges(bits: int) -> str:
    """A mask as a list."""
    parts, cpu = [], 0
    while bits >> cpu:
        if bits >> cpu & 1:
            first = cpu
            while bits >> (cpu + 1) & 1:
                cpu += 1
            parts.append(f"{first}-{cpu}" if cpu > first else str(first))
        cpu += 1
    return ",".join(parts)
