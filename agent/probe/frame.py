"""What the probe child prints and what it is told: one JSON object a line, both ways.

Pure. A line of the probe is a frame of docs/reporter-contract.md with keys of its own beside it: what of the
machine could not be looked at, and why. `{}` is a sign of life.
"""

import msgspec

from xce.agent.probe.verdict import Verdict
from xce.model.configuration import Discovery
from xce.model.instance import Instance
from xce.model.message import ReportedCondition

FRAME_BYTES = 3 << 20
"""Of one line: the broker takes inventories of 4 MiB."""
CONTROL_FD = 3
"""Where the probe reads its orders; at its end of file it leaves."""
AGAIN = 75
"""Exit status of a probe that a new process must take over from: EX_TEMPFAIL of sysexits.h."""

NVIDIA, KERNEL = "nvidia", "kernel"
"""Sources: the vendor's library, and all that sysfs, procfs and netlink say."""


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the probe."""

    xce: int = 0
    """1 where something was read: the version of the contract."""
    instances: list[Instance] | None = None
    """All that was found; None: nothing is said (a sign of life, an answer)."""
    complete: bool = True
    verdicts: dict[str, Verdict] = {}
    """What this reading says of their health, by id; whoever has none is as the instance says."""
    conditions: list[ReportedCondition] = []
    blind: dict[str, str] = {}
    """Sources that say nothing at all, with the reason: `driver/library version mismatch`."""
    pending: list[str] = []
    """Sources that have not been asked yet; what they gave before still counts."""
    partial: list[str] = []
    """Ids of instances whose parts could not be read."""
    holes: list[str] = []
    """What of the machine could not be looked at: what is missing may be there."""
    present: list[str] = []
    """PCI addresses of devices that the kernel or the driver shows, whatever the library says."""
    rest: bool = False
    """Nothing has to stay resident here: the probe leaves after this line."""
    interval_s: float = 0
    """Between two readings from now on."""
    note: str = ""
    """What people should know of the readings themselves."""
    answer: str = ""
    """The order that was carried out."""
    number: int = 0
    """Of that order."""
    error: str = ""
    """Why it could not be."""


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line to the probe."""

    do: str
    """`release`: give up every handle of the vendor's library, and ask it nothing. `resume`: ask it again.
    `read`: now."""
    number: int = 0


class Launch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the probe is started with, as its one argument."""

    settings: Discovery
    group: str = ""
    """Path of the control group that it joins; '' for none."""
    released: bool = False
    """It begins as after `release`."""


def source(instance: Instance) -> str:
    """Whose word an instance's health is."""
    nvidia = instance.attributes.get("vendor") == "nvidia" and instance.kind != "nic"
    return NVIDIA if nvidia else KERNEL
