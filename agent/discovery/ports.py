"""Configured port ranges as instances, and what of them the kernel uses itself.

A range is one instance with a counted capacity; which of its ports a job gets is chosen when it is prepared.
The kernel gives outgoing connections ports of its own range, and one that it has given cannot be bound.
"""

from collections.abc import Sequence
from pathlib import Path

from xce.model.configuration import PortRange
from xce.model.instance import Instance
from xce.model.message import ReportedCondition

KIND = "port-range"
_OWN = "proc/sys/net/ipv4/ip_local_port_range"
_RESERVED = "proc/sys/net/ipv4/ip_local_reserved_ports"

Range = tuple[int, int]


def instances(ranges: Sequence[PortRange], root: str = "/") -> list[Instance]:
    """One for each range."""
    taken = automatic(root)
    return [
        Instance(
            id=f"ports:{one.name}",
            kind=KIND,
            attributes={"first": one.first, "last": one.last},
            capacity={"ports": one.last - one.first + 1},
            notes=[_words(one, overlap)] if (overlap := _overlap(one, taken)) else [],
        )
        for one in ranges
    ]


def conditions(ranges: Sequence[PortRange], root: str = "/") -> list[ReportedCondition]:
    """What people should know of the ranges."""
    taken = automatic(root)
    return [
        ReportedCondition(name="ports_overlap", reason=_words(one, overlap))
        for one in ranges
        if (overlap := _overlap(one, taken))
    ]


def problem(ranges: Sequence[PortRange]) -> str:
    """What is wrong with ranges as they are configured; '' if nothing is."""
    for number, one in enumerate(ranges):
        if one.first > one.last:
            return f"{one.name}: first {one.first} is above last {one.last}"
        for other in ranges[:number]:
            if other.name == one.name:
                return f"{one.name}: occurs twice"
            if one.first <= other.last and other.first <= one.last:
                return f"{one.name} and {other.name} share ports"
    return ""


def automatic(root: str = "/") -> list[Range]:
    """Ports that the kernel gives to outgoing connections: its range without what was reserved from it."""
    words = _read(root, _OWN).split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return []
    free = [(int(words[0]), int(words[1]))]
    for part in _read(root, _RESERVED).strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            free = [left for one in free for left in _without(one, (int(first), int(last or first)))]
    return free


def _without(one: Range, cut: Range) -> list[Range]:
    if cut[1] < one[0] or cut[0] > one[1]:
        return [one]
    rest = ((one[0], cut[0] - 1), (cut[1] + 1, one[1]))
    return [part for part in rest if part[0] <= part[1]]


def _overlap(one: PortRange, taken: Sequence[Range]) -> list[Range]:
    return [
        (max(one.first, low), min(one.last, high))
        for low, high in taken
        if low <= one.last and one.first <= high
    ]


def _words(one: PortRange, overlap: Sequence[Range]) -> str:
    text = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in overlap)
    return (
        f"ports {one.name}: the kernel gives {text} to outgoing connections; reserve them "
        f"(sysctl net.ipv4.ip_local_reserved_ports={text}) or choose others"
    )


def _read(root: str, path: str) -> str:
    try:
        return Path(root, path).read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
