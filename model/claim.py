"""Claims and bindings: what is asked for, for whom, where it was bound, and how far each binding is.

A *claim* asks for things that must be made ready on a node: instances, mounts, scratch, ports, directories.
A *template* claim belongs to one job and ends with it; a *standalone* claim has a life of its own. A
*binding* is one claim on one host for one consumer; only bindings have states of their own, a claim's state
is worked out from them (`claim_state`). Everything here is durable but what `Condition` names.

Names and ids come from outside and are data: bounded here, encoded for the file system on the node.
"""

import re
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from xce.model.transition import Machine
from xce.model.value import Count, digest_of

LIST = 4096
"""Most instances of one binding, and bindings of one order."""
TEXT = 255
"""Characters of a name from outside."""
PORTS = 1024
"""Of one range."""
_NO_VARIABLE = re.compile(r"[^A-Za-z0-9]")


def name_variable(prefix: str, name: str) -> str:
    """`XCE_DIR_INPUT_DATA` for a mount `input-data`."""
    plain = name if name.isalnum() and name.isascii() else _NO_VARIABLE.sub("_", name)
    return prefix + plain.upper()


class ClaimForm(StrEnum):
    """What a claim's life is tied to."""

    TEMPLATE = "template"
    """To one job: released with it, and then forgotten."""
    STANDALONE = "standalone"
    """To nothing: it is there until it is deleted, and many jobs may bind it."""


class AccessMode(StrEnum):
    """Who may use a claim at a time, over all its bindings."""

    RWO = "RWO"
    """One node, any number of consumers on it. One node is not one writer."""
    RWOP = "RWOP"
    """One consumer."""
    ROX = "ROX"
    """Any number of nodes, all of them read only."""
    RWX = "RWX"
    """Any number of nodes, all of them may write."""


class Reclaim(StrEnum):
    """What becomes of a standalone claim's data when it is deleted."""

    RETAIN = "retain"
    """It stays where it is; only the claim goes."""
    DELETE = "delete"
    """Its provider destroys it."""


class InstanceAsk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """So many instances of a kind, or exactly these."""

    kind: str
    count: Count = 1
    ids: list[str] = []
    """Exactly these; `count` is then their number."""


class MountAsk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something of the node's profile, mounted for the consumer. Users never choose a path."""

    name: str
    """What the consumer calls it: the last part of its mount point, and its variable."""
    source: str
    """Name of a volume or directory in the node's profile."""
    subdirectory: str = ""
    """A directory below it; opened beneath the source, never through a link."""
    read_only: bool = False


class PortsAsk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ports by number, or some from a range; the agent picks, and the numbers are a fact at READY."""

    name: str
    count: Count = 1
    low: Count = 0
    high: Count = 0
    """`low` and `high`: both 0 for the range of the node's profile."""
    exact: list[Count] = []
    """These numbers; `count`, `low` and `high` mean nothing then."""


class SharedAsk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A consumer's directories on a shared volume: `<user>/<job>[/<index>]/{in,out,err}`."""

    volume: str
    """Name of a shared volume in the node's profile."""
    parts: list[str] = msgspec.field(default_factory=lambda: ["in", "out", "err"])


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What each binding of a claim is to have on its node."""

    instances: list[InstanceAsk] = []
    mounts: list[MountAsk] = []
    scratch_bytes: Count = 0
    """Size of a scratch directory; 0: none."""
    scratch: str = ""
    """Name of a scratch root in the node's profile; '' for its first."""
    ports: list[PortsAsk] = []
    shared: list[SharedAsk] = []
    environment: dict[str, str] = {}
    """More variables for the consumer; they never replace one that is rendered from the claim."""
    profile: str = ""
    """Name of the node's profile: base devices, allowed mounts; '' for its default."""


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A claim as its owner wants it. It never changes; what becomes of it stands beside it."""

    id: str = ""
    """'' in an order: the broker makes one, `c` and the revision."""
    form: ClaimForm = ClaimForm.TEMPLATE
    owner: str = ""
    """User whom it is for; '' in an order: the name of the peer that gives it."""
    project: str = ""
    access: AccessMode = AccessMode.RWX
    size_bytes: Count = 0
    parameters: dict[str, str] = {}
    """For its provider; opaque here."""
    provider: str = ""
    """Who makes what is claimed; '' when it is there already."""
    reclaim: Reclaim = Reclaim.RETAIN
    retention_s: float | None = None
    """How long directories of its consumers are kept after release; null: the node's profile says."""
    ask: Ask = Ask()


class Consumer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job, task or replica on a host that uses a binding; all its bindings share one cgroup."""

    name: str
    """Unique on its host while it lives: `4711`, `4711[3]`, `serve-2`."""
    user: str = ""
    """User that its directories are handed to; '' for the claim's owner."""
    job: str = ""
    """Name of its directory on shared volumes; '' for `name`."""
    index: str = ""
    """Element of an array: a directory below `job`; '' for none."""


class Chosen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instance as it was when it was chosen; what excludes it from other choices stays with it."""

    id: str
    reporter: str
    generation: Count
    """Of the inventory that it was chosen from."""
    kind: str
    parents: list[str] = []
    """Instances that it is a part of, the nearest first."""
    consumes: dict[str, Count] = {}
    """What it takes from the capacity of the nearest."""


class BindingState(StrEnum):
    """How far a binding is. A claim's state is one of these too."""

    PENDING = "pending"
    """Recorded, and the node was told; its agent has not said that it begins."""
    PREPARING = "preparing"
    """The node is at work, or undoes what has failed, or a gang waits for its last member."""
    READY = "ready"
    """Everything is there and the kernel was read back."""
    RELEASING = "releasing"
    """It is to go; something of it may still be there. What it has is not free."""
    RELEASED = "released"
    """Nothing of it is left, or an admin took the word for it and its instances are quarantined."""
    FAILED = "failed"
    """It could not be made ready, and everything that was done for it has been undone."""


class BindingEvent(StrEnum):
    """What moves a binding."""

    STARTED = "started"
    """The node has the order and has written down that it begins."""
    VERIFIED = "verified"
    """The node read back from the kernel that all is there; of a gang: every node did."""
    UNSETTLED = "unsettled"
    """The node has to do it again: it was rebooted, or has lost its journal."""
    FAILED = "failed"
    """The node could not, and has undone it."""
    RELEASE = "release"
    """It is not wanted any more, or its gang has failed."""
    RELEASED = "released"
    """The node says that nothing of it is left."""
    FORCED = "forced"
    """An admin gave up waiting for the node."""


_S, _E = BindingState, BindingEvent
BINDING = Machine(
    "binding",
    BindingState.PENDING,
    {
        (_S.PENDING, _E.STARTED): _S.PREPARING,
        (_S.PENDING, _E.UNSETTLED): _S.PENDING,
        (_S.PENDING, _E.FAILED): _S.FAILED,
        (_S.PENDING, _E.RELEASE): _S.RELEASING,
        (_S.PENDING, _E.FORCED): _S.RELEASED,
        (_S.PREPARING, _E.STARTED): _S.PREPARING,
        (_S.PREPARING, _E.VERIFIED): _S.READY,
        (_S.PREPARING, _E.UNSETTLED): _S.PREPARING,
        (_S.PREPARING, _E.FAILED): _S.FAILED,
        (_S.PREPARING, _E.RELEASE): _S.RELEASING,
        (_S.PREPARING, _E.FORCED): _S.RELEASED,
        (_S.READY, _E.UNSETTLED): _S.PREPARING,
        (_S.READY, _E.RELEASE): _S.RELEASING,
        (_S.READY, _E.FORCED): _S.RELEASED,
        (_S.RELEASING, _E.RELEASE): _S.RELEASING,
        (_S.RELEASING, _E.RELEASED): _S.RELEASED,
        (_S.RELEASING, _E.FORCED): _S.RELEASED,
    },
    final=frozenset({BindingState.RELEASED, BindingState.FAILED}),
)
ENDED = BINDING.final

_PATHS: dict[tuple[BindingState, BindingState], tuple[BindingEvent, ...]] = {
    (_S.PENDING, _S.PREPARING): (_E.STARTED,),
    (_S.PENDING, _S.READY): (_E.STARTED, _E.VERIFIED),
    (_S.PENDING, _S.FAILED): (_E.FAILED,),
    (_S.PENDING, _S.RELEASING): (_E.RELEASE,),
    (_S.PENDING, _S.RELEASED): (_E.RELEASE, _E.RELEASED),
    (_S.PREPARING, _S.READY): (_E.VERIFIED,),
    (_S.PREPARING, _S.FAILED): (_E.FAILED,),
    (_S.PREPARING, _S.RELEASING): (_E.RELEASE,),
    (_S.PREPARING, _S.RELEASED): (_E.RELEASE, _E.RELEASED),
    (_S.READY, _S.PREPARING): (_E.UNSETTLED,),
    (_S.READY, _S.FAILED): (_E.UNSETTLED, _E.FAILED),
    (_S.READY, _S.RELEASING): (_E.RELEASE,),
    (_S.READY, _S.RELEASED): (_E.RELEASE, _E.RELEASED),
    # A node that was told to prepare and could not has nothing left either.
    (_S.RELEASING, _S.FAILED): (_E.RELEASED,),
    (_S.RELEASING, _S.RELEASED): (_E.RELEASED,),
}


def after_report(state: BindingState, reported: BindingState) -> BindingState:
    """Where a binding is after its node said `reported`; the same where that is no news.

    A node may skip states that nobody heard of: what it says last holds. It never takes back a release, and
    nothing moves what has ended.
    """
    for event in _PATHS.get((state, reported), ()):
        state = BINDING.step(state, event)
    return state


class Condition(StrEnum):
    """What people should know about a binding or claim beside its state. Not durable."""

    DEGRADED = "degraded"
    """Ready, but something of it has drifted and could not be repaired (yet)."""
    UNDOING = "undoing"
    """Preparing has failed and is being undone."""
    BLOCKED = "blocked"
    """It cannot be released yet; the note names what holds it."""
    UNCERTAIN = "uncertain"
    """Nobody knows whether a step was done; it is being found out."""
    VERIFIED = "verified"
    """Ready on its node; its gang is not."""
    UNREACHABLE = "unreachable"
    """Its host is not heard, or its agent serves no claims. What it has stays its own."""
    REJOINING = "rejoining"
    """Known from before the broker's start; its node has not confirmed it yet."""
    ENDING = "ending"
    """Of a claim: it is forgotten once its last binding has ended."""


class Binding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One claim on one host for one consumer."""

    id: str
    """`b` and a number that rises, the revision at which it was made if none was higher: never used twice."""
    claim: str
    host: str
    consumer: Consumer
    instances: list[Chosen] = []
    read_only: bool = False
    gang: str = ""
    """`g` and the revision of its first binding; '' when it stands alone."""
    ready_within_s: float = 0
    """Released again if it is not ready by then; 0: no limit. What was ready once has all the time."""
    op_id: str = ""
    """Of the order that made it."""
    epoch: Count = 0
    """Reign of the broker in which it was made."""
    state: BindingState = BindingState.PENDING
    reason: str = ""
    """Why it is in this state, in words."""
    evidence: str = ""
    """Digest of what the node read back when it said that it is ready."""
    ports: dict[str, list[Count]] = {}
    """Ports that the node picked, by the name that the claim gives them."""
    revision: Count = 0
    """Of the last fact about it."""


def binding_number(binding: str) -> int:
    """The number in a binding's id; 0 if it has none."""
    number = binding[1:]
    return int(number) if binding[:1] == "b" and number.isascii() and number.isdecimal() else 0


class Quarantine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Supply that exists and may not be used, until somebody says that it may."""

    instance: Chosen
    reason: str
    by: str = ""
    """Who said so: `admin:alice`, `agent:node7`, '' for the broker."""
    binding: str = ""
    """The binding that had it last; '' when there was none."""
    since: str = ""
    """Wall time, ISO 8601, only for showing."""


_WORST = (
    BindingState.FAILED,
    BindingState.RELEASING,
    BindingState.PENDING,
    BindingState.PREPARING,
    BindingState.READY,
)


def claim_state(form: ClaimForm, provided: BindingState, bindings: Iterable[BindingState]) -> BindingState:
    """A claim's state: the worst of its bindings.

    `provided` is how far its provider is; nothing is better than that. A standalone claim is not worse for a
    binding that has ended, because other jobs have theirs; a template without bindings is pending.
    """
    states = set(bindings)
    if form is ClaimForm.STANDALONE:
        states.discard(BindingState.FAILED)
        states.add(provided)
    elif provided is not BindingState.READY:
        states.add(provided)
    for state in _WORST:
        if state in states:
            return state
    return BindingState.PENDING


def holdings_digest(holdings: Iterable[tuple[str, BindingState]]) -> str:
    """Digest of the bindings that a node has, or that the broker believes it has, with their states."""
    return digest_of(sorted([binding, state.value] for binding, state in holdings))
