"""Ports that the kernel itself gives to outgoing connections. Only /proc is read."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, TypeAlias

Range: TypeAlias = tuple[int, int]
"""The first and the last port."""


def automatic(proc: str = "/proc") -> list[Range]:
    """The kernel's own range without what was reserved from it; [] if it does not say."""
    words = _read(proc, "ip_local_port_range").split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return []
    free = [(int(words[0]), int(words[1]))]
    for part in _read(proc, "ip_local_reserved_ports").strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            free = [left for one in free for left in _without(one, (int(first), int(last or first)))]
    return free


def shared(one: Range, others: Iterable[Range]) -> list[Range]:
    """What a range has in common with others."""
    return [(max(one[0], low), min(one[1], high)) for low, high in others if low <= one[1] and one[0] <= high]


def in_words(ranges: Iterable[Range]) -> str:
    """As the kernel writes them: `32768-33767,40000`."""
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


class Overlap(NamedTuple):
    """What is wrong with ports that jobs are to have, and what to do."""

    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}; {self.advice}"


def overlap(low: int, high: int, proc: str = "/proc") -> Overlap | None:
    """Whether jobs can lose ports of a range; None: they cannot, or nobody knows."""
    text = in_words(shared((low, high), automatic(proc)))
    if not text:
        return None
    return Overlap(
        f"the kernel gives {text} to outgoing connections",
        f"reserve them (sysctl net.ipv4.ip_local_reserved_ports={text}) or choose others",
    )


def _without(one: Range, cut: Range) -> list[Range]:
    if cut[1] < one[0] or cut[0] > one[1]:
        return [one]
    rest = ((one[0], cut[0] - 1), (cut[1] + 1, one[1]))
    return [part for part in rest if part[0] <= part[1]]


def _read(proc: str, name: str) -> str:
    try:
        return Path(proc, "sys/net/ipv4", name).read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
