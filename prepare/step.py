"""Steps as values: what one kind of step needs, what it gives, and what can become of it.

A step says what is to be there, completely: it can be printed, kept in the journal and carried out by another
process after a crash. Its *key* names the thing that it works on; steps of other bindings with the same key
are its *peers*, and what they share (a cgroup, a staged volume) goes with the last of them. How a kind is
done, observed and undone is its handler's, in `steps.HANDLERS`.

A handler's `do` and `undo` may be called again after a crash at any point, with or without what they gave
before: they look first, take what is there if it is as it should be, and make the rest. They never wait:
what takes time gives `Wait`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import msgspec

from xce.linux.cgroup import Cgroup
from xce.linux.holders import Devices
from xce.linux.listening import Listening
from xce.linux.mountinfo import Table
from xce.linux.users import User
from xce.model import csi
from xce.model.instance import Instance
from xce.model.profile import Claims, Profile
from xce.prepare.copies import Copies
from xce.prepare.tags import Owner

Evidence: TypeAlias = dict[str, Any]
"""What was read back from the kernel, as JSON can have it."""


class StepFailed(Exception):
    """A step that cannot be done, in words for whoever asked; what it did so far is undone."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A directory that stays for a while after its claim."""

    root: str
    elements: list[str]
    """From the root down; the last is the one to be removed, then those above it that are empty."""
    due: float
    """Wall time at which it may be removed."""
    remote: bool = False


class Done(NamedTuple):
    """It is there, or gone."""

    evidence: Evidence = {}
    kept: Kept | None = None
    words: str = ""
    """What is to be known of how it went, where that is not all well: kept with the binding."""


class Note(NamedTuple):
    """Write this down before anything is done, then call again with it as evidence."""

    evidence: Evidence
    synced: bool = True
    """Without it, nothing would be left undone after the machine has failed: it is about this boot alone."""


class Wait(NamedTuple):
    """Not yet: look again after `seconds`. `blocker` is set when somebody else must do something."""

    seconds: float
    reason: str
    blocker: bool = False
    instances: tuple[str, ...] = ()
    """Instances that are not clean because of it."""


Outcome: TypeAlias = Done | Note | Wait


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


class Peer(NamedTuple):
    """A step of another live binding with the same key."""

    binding: str
    step: Step
    evidence: Evidence
    leaving: bool
    """Its binding is being released or undone."""
    number: int = 0
    """Of the step in its binding."""


class Isolation(NamedTuple):
    """How devices are kept from consumers here: `bpf`, `v1` with its directory, or not at all, and why."""

    mechanism: str
    root: str = ""
    """Of the old devices controller, the place that corresponds to the consumers' groups."""
    reason: str = ""


ERRAND_S = 5.0
"""To look for an answer of a child or a plugin at the latest: whoever waits is called when it comes."""


class ErrandCalls(Protocol):
    """Operations on file systems by name, with plain arguments. Nothing here waits."""

    def __call__(
        self, key: str, errand: str, arguments: dict[str, Any], remote: bool, /
    ) -> "Evidence | None":
        """Do it, in a child if `remote`; None: not done yet, ask again. Raises OSError, `StepFailed`."""

    def answered(self) -> list[str]:
        """Keys for which it is worth asking again."""

    def pending(self, key: str, /) -> bool:
        """Whether something was asked under this key and is not answered yet."""

    def died(self, key: str, /) -> str:
        """How a child that was sent under this key died, so that there was a second try; ''."""

    def due(self) -> float | None:
        """When, by the clock, to look for answers even if none came."""

    def fileno(self) -> int:
        """Readable when there may be an answer."""

    def forget(self, key: str, /) -> None:
        """Nobody asks for it any more, nor for what is below it: `BINDING`, `BINDING/STEP`."""

    def alone(self) -> bool:
        """Whether whoever was here before us does nothing on this node any more."""

    def close(self) -> None:
        """End what is under way."""


class CsiCalls(Protocol):
    """The CSI helper. Nothing here waits."""

    problem: str
    """Why there is none; '' if there is, or nobody needed it yet."""

    def turn(self) -> float | None:
        """To be called regularly: in how many seconds again; None: never."""

    def seen(self, plugin: str, /) -> csi.Seen | None:
        """A plugin as it was last seen."""

    def plugins(self) -> list[csi.Seen]:
        """All that were seen."""

    def ask(
        self, key: str, plugin: str, call: csi.Call, deadline_s: float | None = None, /
    ) -> csi.Told | None:
        """What came of the call; None: not known yet. One call for each key."""

    def answered(self) -> list[str]:
        """Keys for which it is worth asking again."""

    def fileno(self) -> int:
        """Readable when there may be an answer."""

    def pending(self, key: str, /) -> bool:
        """Whether a call under this key is not answered yet, or its answer was not taken."""

    def forget(self, key: str, /) -> None:
        """Do not wait for it any more."""


class Node(NamedTuple):
    """What handlers need of this machine: roots, settings, clocks. One for all steps."""

    settings: Claims
    profile: Callable[[str], Profile | None]
    groups: Cgroup
    """Where consumers' control groups are made."""
    owner: Owner
    """Who we are, to be written on what is ours."""
    isolation: Isolation
    mounts: Table
    """The mount table that counts."""
    visible: str
    """Why mounts made here would not be seen where they must; '' if they are."""
    errands: ErrandCalls
    users: Devices
    """Who has devices open."""
    listening: Listening
    """Who waits on ports."""
    find_user: Callable[[str], User | None]
    """A local user; those of a directory service are asked for by a child."""
    csi: CsiCalls
    clock: Callable[[], float]
    wall: Callable[[], float]
    mark: Callable[[str], None]
    """Called at every point where a crash would matter; does nothing but in tests."""
    proc: str = "/proc"
    sys: str = "/sys"
    dev: str = "/dev"


K = TypeVar("K")
S_contra = TypeVar("S_contra", bound=Step, contravariant=True)


class Made(Protocol):
    """A step and what it gave."""

    @property
    def step(self) -> Step:
        """What is to be."""

    @property
    def evidence(self) -> Evidence:
        """What is."""


class At(NamedTuple):
    """Where a handler stands: one step of one binding."""

    node: Node
    binding: str
    number: int
    peers: Sequence[Peer]
    steps: Sequence[Made]
    """All of the binding."""
    progress: dict[type, Any]
    copies: Copies
    rollback: bool = False
    """What is undone was never ready: nothing of the user's can be in it yet."""
    words: Mapping[str, str] | None = None
    """What the claim's provider says; None: this process has not heard it yet."""
    host: str = ""
    """As the cluster calls this node."""

    @property
    def earlier(self) -> Sequence[tuple[Step, Evidence]]:
        """The steps before it in the same binding, with what they gave."""
        return [(made.step, made.evidence) for made in self.steps[: self.number]]

    def kept(self, kind: type[K]) -> K:
        """What the handler keeps between two calls for one step: lost with the process, and new at first."""
        if (found := self.progress.get(kind)) is None:
            found = self.progress[kind] = kind()
        return cast("K", found)


class Handler(Protocol[S_contra]):
    """One kind of step. All calls return at once; OSError is a failure with its text as reason."""

    outlasts_boot: bool
    """Whether what it gave still holds after the machine was started anew."""

    def key(self, step: S_contra) -> str:
        """What it works on."""

    def describe(self, step: S_contra) -> str:
        """One line for a person."""

    def look(self, step: S_contra, evidence: Evidence, at: At) -> Note | Wait | None:
        """Before anything of the binding is made: what to write down of what will be; None if that is all."""

    def do(self, step: S_contra, evidence: Evidence, at: At) -> Outcome:
        """Make it so; `evidence` is what an earlier call gave, {} if there was none. Raises `StepFailed`."""

    def observe(self, step: S_contra, evidence: Evidence, at: At) -> str:
        """'' if the kernel says that it is as `evidence` says; otherwise what has changed."""

    def tend(self, step: S_contra, evidence: Evidence, at: At) -> Note | Wait | None:
        """While the binding is ready: go on with what makes it no less ready; None if there is nothing."""

    def quiesce(self, step: S_contra, evidence: Evidence, at: At) -> Outcome:
        """Before anything is taken back: end those who use it."""

    def undo(self, step: S_contra, evidence: Evidence, at: At) -> Outcome:
        """Take it back; `evidence` may be {} though something was done."""


class Plain(Generic[S_contra]):
    """A handler to derive from: nothing to note, to tend, to be ended first, and nothing outlasts a boot."""

    outlasts_boot = False

    def look(self, step: S_contra, evidence: Evidence, at: At) -> Note | Wait | None:
        """What it makes is known by its name."""
        return None

    def tend(self, step: S_contra, evidence: Evidence, at: At) -> Note | Wait | None:
        """It stays as it was made."""
        return None

    def quiesce(self, step: S_contra, evidence: Evidence, at: At) -> Outcome:
        """Nobody uses it beside the processes of the group."""
        return Done()


class InstanceMap(Protocol):
    """The node's inventory: instances by id."""

    def get(self, key: str, /) -> Instance | None:
        """The instance, if there is one."""
