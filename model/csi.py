"""What a node says to its CSI helper, and the helper to it: calls, their outcomes, plugins as they were seen.

Frames on the helper's socket are these structs as lines of JSON (docs/csi.md). Numbers of access modes and
capabilities are the protocol's own, so that new ones stay visible. Secrets are no part of it: a call names
the file that they are in.
"""

from enum import IntEnum, StrEnum
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

FRAME_BYTES = 1 << 20
"""Longest frame, with its end of line."""
PATH_BYTES = 127
"""Longest path that every plugin must take is 128 bytes, by the protocol."""


class AccessNumber(IntEnum):
    """Access modes, by their numbers in the protocol."""

    SINGLE_NODE_WRITER = 1
    SINGLE_NODE_READER_ONLY = 2
    MULTI_NODE_READER_ONLY = 3
    MULTI_NODE_SINGLE_WRITER = 4
    MULTI_NODE_MULTI_WRITER = 5
    SINGLE_NODE_SINGLE_WRITER = 6
    SINGLE_NODE_MULTI_WRITER = 7


class NodeAbility(IntEnum):
    """What a node plugin says that it can do, by its number in the protocol."""

    STAGE_UNSTAGE_VOLUME = 1
    GET_VOLUME_STATS = 2
    EXPAND_VOLUME = 3
    VOLUME_CONDITION = 4
    SINGLE_NODE_MULTI_WRITER = 5
    VOLUME_MOUNT_GROUP = 6


class Service(IntEnum):
    """What a plugin is beside a node plugin, by its number in the protocol."""

    CONTROLLER = 1
    VOLUME_ACCESSIBILITY_CONSTRAINTS = 2
    GROUP_CONTROLLER = 3


class ControllerAbility(IntEnum):
    """What the controller service of a plugin says that it can do; those that something follows from."""

    CREATE_DELETE_VOLUME = 1
    PUBLISH_UNPUBLISH_VOLUME = 2
    """Volumes have to be attached to a node before they can be staged."""


class Outcome(StrEnum):
    """What is known after a call."""

    OK = "ok"
    """The plugin says that it is done."""
    REFUSED = "refused"
    """The plugin says that it did not do it; the same call again gets the same answer."""
    UNSUPPORTED = "unsupported"
    """The plugin does not have this call; it is not made again."""
    BUSY = "busy"
    """An earlier call for the volume is still at work."""
    UNCERTAIN = "uncertain"
    """It may have been done, in part or later. Only the same call or its opposite may follow."""
    NEVER_SENT = "never-sent"
    """The plugin has not heard of it."""


class Backoff(NamedTuple):
    """How long to wait before a call is made again."""

    first_s: float
    most_s: float

    def delay(self, attempt: int) -> float:
        """After so many attempts (1: the first has failed)."""
        return min(self.most_s, self.first_s * 2.0 ** min(attempt - 1, 16))


AGAIN: dict[Outcome, Backoff] = {
    Outcome.BUSY: Backoff(0.5, 30),
    Outcome.UNCERTAIN: Backoff(0.5, 30),
    Outcome.NEVER_SENT: Backoff(0.2, 10),
}
"""Outcomes after which the same call is made again, for as long as it takes; the others are answers."""


class Capability(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a volume is to be used: the same in all calls for it."""

    mode: int
    """`AccessNumber`."""
    block: bool = False
    """As a device, not as a file system."""
    fs_type: str = ""
    flags: list[str] = []
    """Mount flags. They may be secret: no log and no message shows them."""
    group: str = ""
    """Group that files get, for plugins that can give them one."""


class _Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="verb"):
    """Base of all calls."""


class Stage(_Call, frozen=True, kw_only=True, tag="stage"):
    """Make a volume usable on this node."""

    volume: str
    staging: str
    capability: Capability
    context: dict[str, str] = {}
    publish_context: dict[str, str] = {}
    secrets: str = ""
    """File that only root can read: a JSON object of texts; '' for none."""


class Unstage(_Call, frozen=True, kw_only=True, tag="unstage"):
    """The opposite of `Stage`."""

    volume: str
    staging: str


class Publish(_Call, frozen=True, kw_only=True, tag="publish"):
    """Mount a volume at a place of ours."""

    volume: str
    staging: str
    """'' if the plugin does not stage."""
    target: str
    capability: Capability
    read_only: bool = False
    context: dict[str, str] = {}
    publish_context: dict[str, str] = {}
    secrets: str = ""


class Unpublish(_Call, frozen=True, kw_only=True, tag="unpublish"):
    """The opposite of `Publish`."""

    volume: str
    target: str


class Statistics(_Call, frozen=True, kw_only=True, tag="statistics"):
    """What the plugin says of a volume's space. No sign of health: they may be old, or made up."""

    volume: str
    path: str
    staging: str = ""


class Expand(_Call, frozen=True, kw_only=True, tag="expand"):
    """Let the file system grow with its volume."""

    volume: str
    path: str
    staging: str = ""
    capability: Capability
    required_bytes: int = 0
    secrets: str = ""


class Create(_Call, frozen=True, kw_only=True, tag="create"):
    """Make a volume, or find it again by its name, where the controller service is on the node's socket."""

    name: str
    capability: Capability
    required_bytes: int = 0
    parameters: dict[str, str] = {}
    topology: dict[str, str] = {}
    """From where it must be reachable; {} if the plugin does not ask."""
    secrets: str = ""


class Delete(_Call, frozen=True, kw_only=True, tag="delete"):
    """The opposite of `Create`."""

    volume: str
    secrets: str = ""


class Look(_Call, frozen=True, kw_only=True, tag="look"):
    """Ask the plugin anew who it is, what it can do and whether it is well."""


Call: TypeAlias = Stage | Unstage | Publish | Unpublish | Statistics | Expand | Create | Delete | Look


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of a volume, in bytes or inodes."""

    unit: str
    available: int = 0
    total: int = 0
    used: int = 0


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="frame", tag="told"):
    """The answer to a call."""

    id: str
    outcome: Outcome
    code: int = 0
    """Of gRPC; 0 if none came."""
    message: str = ""
    """What the plugin said, or what happened, without secrets."""
    usage: list[Usage] = []
    abnormal: bool | None = None
    """What the plugin says of the volume's condition; None: nothing."""
    capacity_bytes: int = 0
    volume: str = ""
    """The id of what was made."""
    context: dict[str, str] = {}
    """Of what was made: the node's calls need it."""


class Seen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="frame", tag="seen"):
    """A plugin as it was last seen; sent when something has changed."""

    plugin: str
    """The name that this node uses."""
    socket: str
    registered: bool = False
    """It came through the registration folder."""
    asked: bool = False
    """It has answered what it can do; until then nothing below means anything."""
    ready: bool = False
    """It says that it is well, or says nothing against it."""
    name: str = ""
    version: str = ""
    abilities: list[int] = []
    """`NodeAbility` and numbers that nobody here knows."""
    services: list[int] = []
    """`Service` and numbers that nobody here knows."""
    controller: list[int] = []
    """`ControllerAbility` and other numbers; [] if this socket has no controller service."""
    node_id: str = ""
    max_volumes: int | None = None
    """None: it does not say."""
    topology: dict[str, str] = {}
    problem: str = ""


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="frame", tag="ask"):
    """Make a call. Calls for one volume are made one after the other, in this order."""

    id: str
    plugin: str
    call: Call
    deadline_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """From the moment when the plugin is asked; None: the class of the call says."""


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag_field="frame", tag="cancel"):
    """Do not wait for a call any more. It is still answered; what the plugin makes of it is not known."""

    id: str


class Plugins(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="frame", tag="plugins"
):
    """Which plugins there are: the first frame, and no other."""

    sockets: dict[str, str] = {}
    registration: str = ""
    """Folder where plugins' registrars put their sockets; '' for none."""


ToHelper: TypeAlias = Plugins | Ask | Cancel
FromHelper: TypeAlias = Told | Seen


def frame(message: ToHelper | FromHelper) -> bytes:
    """The line of a frame."""
    line = msgspec.json.encode(message) + b"\n"
    if len(line) > FRAME_BYTES:
        raise ValueError(f"cannot send a frame of {len(line)} bytes: {FRAME_BYTES} is the most")
    return line
