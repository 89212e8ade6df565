"""What a handler of one kind of step is: what it is given, what it can say, and the machine that it works on.

A handler's `do` and `undo` may be called again after a crash at any point, with or without what they gave
before: they look first, take what is there if it is as it should be, and make the rest. They never wait:
what takes time gives `Wait`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from xce.linux.cgroup import Cgroup
from xce.linux.holders import Devices
from xce.linux.listening import Listening
from xce.linux.mountinfo import Table
from xce.linux.users import User
from xce.model import csi
from xce.model.profile import Claims, Profile
from xce.prepare.copies import Copies
from xce.prepare.step import Clocks, Evidence, Kept, Step
from xce.prepare.tags import Owner


class StepFailed(Exception):
    """A step that cannot be done, in words for whoever asked; what it did so far is undone."""


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


PEER = "peer"
"""A step of another binding with the same key has come further, or is gone."""


class Wait(NamedTuple):
    """Not yet: look again after `seconds`. `blocker` is set when somebody else must do something."""

    seconds: float
    reason: str
    blocker: bool = False
    instances: tuple[str, ...] = ()
    """Instances that are not clean because of it."""
    on: str = ""
    """What ends it sooner: `PEER`, or what `CsiCalls.answered` names."""


Outcome: TypeAlias = Done | Note | Wait


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

    @property
    def hanging(self) -> str:
        """Where children do not end though they were told to, and how many; ''."""

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
        """Keys for which it is worth asking again, and `plugin NAME` where something new is known of one."""

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
    """Who has ports."""
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

    def read_clocks(self) -> Clocks:
        """What they show now."""
        return Clocks(boot=self.owner.boot, wall=self.wall(), clock=self.clock())


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
