"""Steps as values: what one kind of step needs, and what it gives.

A step says what is to be there, completely: it can be printed, kept in the journal and carried out by another
process after a crash. Its *key* names the thing that it works on; steps of other bindings with the same key
are its *peers*, and what they share (a cgroup, a staged volume) goes with the last of them. How a kind is
done, observed and undone is its handler's (`handler.py`), by the table in `steps.HANDLERS`.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from xce.model.instance import Instance

Evidence: TypeAlias = dict[str, Any]
"""What was read back from the kernel, as JSON can have it."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A directory that stays for a while after its claim."""

    root: str
    elements: list[str]
    """From the root down; the last is the one to be removed, then those above it that are empty."""
    due: float
    """Wall time at which it may be removed."""
    remote: bool = False
    agent: str = ""
    """Whose mark is on it. '' where marks do not count: none can be there, or an older version made it."""
    home: Evidence | None = None
    """The volume, to be told from what may be in its place."""
    read: "Clocks | None" = None
    """The clocks when `due` was right by them; None: an older version wrote it."""

    def as_of(self, now: "Clocks") -> "Kept":
        """The same by the clocks of now: whoever sets wall time, rightly or not, shortens nothing.

        Of the time between two boots nothing is known; what has passed in this one, has passed.
        """
        if self.read is None:
            return msgspec.structs.replace(self, read=now)
        passed = now.clock - (self.read.clock if self.read.boot == now.boot else 0.0)
        set_by = now.wall - (self.read.wall + passed)
        due = self.due + (set_by if abs(set_by) >= CLOCK_SET_S else 0.0)
        return msgspec.structs.replace(self, due=due, read=now)


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """What they showed at one moment."""

    boot: str
    wall: float
    clock: float
    """Of this boot alone."""


CLOCK_SET_S = 10.0
"""By which the clocks part at once when wall time is set; small corrections come slowly."""


class _Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Base of all kinds."""


class Group(_Step, frozen=True, kw_only=True, tag="group"):
    """The consumer's control group."""

    name: str
    """Below the groups of all consumers."""
    grace_s: float = 10


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instance whose devices the consumer gets, with all that finds them again."""

    id: str
    kind: str
    vendor: str = ""
    pci: str = ""
    port: int = 0
    """Of a NIC; 0: all of them."""
    parent: str = ""
    gi: int | None = None
    ci: int | None = None
    minor: int | None = None
    """As the inventory has it; what the kernel says at prepare wins."""
    unique: str = ""
    files: list[str] = []
    """Device files that its reporter names and the profile lets it name."""
    fileless: bool = False
    """Its reporter says that it has none, as a seat of a licence; it is its consumer's alone all the same."""


class Block(_Step, frozen=True, kw_only=True, tag="block"):
    """The device of a volume, as a device file of the user's own."""

    name: str
    target: str
    """Where the plugin has put it."""
    point: str
    """Directory in which the device file is."""
    read_only: bool = False
    user: str


class Filter(_Step, frozen=True, kw_only=True, tag="filter"):
    """The device filter of the consumer's control group: base list and devices, nothing else."""

    group: str
    base: list[str]
    devices: list[Device] = []
    extras: list[str] = []
    """Patterns of device files that go with devices of any kind."""
    volumes: list[Block] = []
    """Volumes that are devices, which steps before this one have made."""
    daemons: list[str] = []
    """Who may keep the devices open."""


class Stage(_Step, frozen=True, kw_only=True, tag="stage"):
    """A file system that is mounted once for all who use it."""

    volume: str
    point: str
    type: str
    source: str = ""
    options: list[str] = []


class Csi(_Step, frozen=True, kw_only=True, tag="csi"):
    """A volume of a CSI plugin, staged and published once for all who use it."""

    plugin: str
    volume: str
    """Its id, as the plugin knows it."""
    staging: str
    target: str
    access: str
    """`AccessMode` that the volume has."""
    alone: bool = False
    """For one consumer at a time."""
    block: bool = False
    type: str = ""
    group: str = ""
    read_only: bool = False
    secrets: str = ""
    """File with its secrets; what is in it is never here."""
    profile: str = ""
    source: str = ""
    """The profile and its volume, which have the mount flags and contexts; those may be secret too."""
    mount: str = ""
    """The claim's name for it, which its provider's words may begin with."""
    only: bool = True
    """They need not: the claim mounts no other volume of plugins."""
    provided: bool = False
    """The claim has a provider: nothing is asked of the plugin before its words are known."""
    said: str = ""
    """Digest of flags and contexts."""
    bytes: int = 0
    """How large it is to be at least; the claim's provider may say more, and more later."""


class Bind(_Step, frozen=True, kw_only=True, tag="bind"):
    """A directory of a volume, mounted for the consumer."""

    name: str
    source: str
    """The volume's directory."""
    path: str = ""
    """Below it."""
    point: str
    read_only: bool = False


class Scratch(_Step, frozen=True, kw_only=True, tag="scratch"):
    """A directory with a size limit, the user's own."""

    root: str
    """'' for memory."""
    name: str
    point: str
    bytes: int
    user: str
    limit: str = "auto"
    """`Limit` of the scratch root."""


class Shared(_Step, frozen=True, kw_only=True, tag="shared"):
    """A consumer's directories on a shared volume."""

    volume: str
    root: str
    elements: list[str]
    """From the volume down: user, job, and so on, encoded."""
    parts: list[str]
    user: str
    again: str = "reuse"
    retention_s: float = 0
    size_bytes: int = 0
    """What they may hold together; 0: as much as they like."""


class Ports(_Step, frozen=True, kw_only=True, tag="ports"):
    """Ports of the host that nobody else gets."""

    name: str
    count: int
    low: int
    high: int
    exact: list[int] = []


class Environment(_Step, frozen=True, kw_only=True, tag="environment"):
    """What the consumer has to know, as files: variables, JSON, CDI."""

    directory: str
    binding: str
    claim: str
    variables: dict[str, str] = {}
    cdi: str = ""
    """Directory for the CDI file."""


Step: TypeAlias = Group | Block | Filter | Stage | Csi | Bind | Scratch | Shared | Ports | Environment
TAKEN_UP = "taken up"
"""In the evidence of a step that was done before the journal was lost."""


def given(step: Step, ports: Mapping[str, list[int]]) -> Evidence:
    """What is known of such a step. Its consumer may run: its devices and ports may be in use by now."""
    if isinstance(step, Ports) and step.name in ports:
        return {TAKEN_UP: True, "ports": list(ports[step.name])}
    return {TAKEN_UP: True} if isinstance(step, Filter) else {}


class InstanceMap(Protocol):
    """The node's inventory: instances by id."""

    def get(self, key: str, /) -> Instance | None:
        """The instance, if there is one."""
