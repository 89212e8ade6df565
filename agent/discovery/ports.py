"""Configured port ranges as instances, and what of them the kernel uses itself.

A range is one instance that is told and not offered: claims ask for `ports`, and which they get is chosen
when they are prepared, within what their profile allows.
The kernel gives outgoing connections ports of its own range, and one that it has given cannot be bound.
"""

from collections.abc import Sequence

from xce.linux import local_ports
from xce.model.configuration import PortRange
from xce.model.instance import Health, Instance
from xce.model.message import ReportedCondition

KIND = "port-range"
_NOT_OFFERED = "only told: a claim asks for `ports`, and gets them as its profile allows"


def instances(ranges: Sequence[PortRange], root: str = "/") -> list[Instance]:
    """One for each range."""
    return [
        Instance(
            id=f"ports:{one.name}",
            kind=KIND,
            health=Health.UNAVAILABLE,
            reason=_NOT_OFFERED,
            attributes={"first": one.first, "last": one.last},
            capacity={"ports": one.last - one.first + 1},
            notes=[words] if (words := _overlap(one, root)) else [],
        )
        for one in ranges
    ]


def conditions(ranges: Sequence[PortRange], root: str = "/") -> list[ReportedCondition]:
    """What people should know of the ranges."""
    return [
        ReportedCondition(name="ports_overlap", reason=words)
        for one in ranges
        if (words := _overlap(one, root))
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


def _overlap(one: PortRange, root: str) -> str:
    found = local_ports.overlap(one.first, one.last, f"{root.rstrip('/')}/proc")
    return f"ports {one.name}: {found}" if found else ""
