"""Everything that is said on the wire between programs.

Two forms. *Documents* are maps with a `type`, in MessagePack or JSON: all of the controllers' and admins'
protocol, and the rare messages of agents. *Ticks* are positional MessagePack arrays, agent to broker only:
what an agent sends all day. The first byte tells them apart (`{` JSON, array head: tick, else document).

Unknown fields are ignored, so that a newer peer can add some. Every field that can be left out has a default.
`PROTOCOL` rises only when an old reader would misunderstand.

`gc=False` stands where there are ten thousand of a kind: plain data has no cycles, and the collector need not
look.
"""

from typing import TypeAlias

from xce.model.message.answer import (
    BrokerStatus,
    Claims,
    Delta,
    Done,
    Failed,
    InventoryBodies,
    Keys,
    KeyView,
    Lost,
    Mine,
    NextKey,
    PeerView,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    WatchBegin,
)
from xce.model.message.link import (
    BindingNews,
    BindingPrepare,
    BindingRelease,
    BindingReport,
    BindingStanding,
    Declare,
    Declared,
    Goodbye,
    Hello,
    InventoryGone,
    InventoryNews,
    Pulse,
    Refused,
    ReportedCondition,
    ReporterNews,
    ReporterState,
    Resync,
    Standing,
    TypesNews,
    Welcome,
)
from xce.model.message.order import (
    BindingForce,
    ClaimBind,
    ClaimCreate,
    ClaimDelete,
    ClaimProvide,
    ClaimRelease,
    HoldAdd,
    HoldRelease,
    HostAdd,
    HostAdmit,
    HostDrain,
    HostRelease,
    HostUndrain,
    Join,
    KeyAdd,
    KeyRetire,
    KeyRevoke,
    KeyRotate,
    Pick,
    Place,
    PoolSet,
    QuarantineClear,
    QuarantineSet,
)
from xce.model.message.question import (
    BackupRequest,
    ClaimsRequest,
    Credit,
    InventoriesRequest,
    KeysRequest,
    MineRequest,
    SnapshotRequest,
    StatusRequest,
    Unwatch,
    WatchRequest,
)
from xce.model.message.tick import (
    FeedTick,
    Heartbeat,
    Report,
    Tick,
)
from xce.model.message.view import (
    BindingView,
    ClaimView,
    LocationChange,
    LocationView,
    Position,
    Quality,
)

__all__ = [
    "DOCUMENT_BYTES",
    "PROTOCOL",
    "TICK_BYTES",
    "Answer",
    "BackupRequest",
    "BindingForce",
    "BindingNews",
    "BindingPrepare",
    "BindingRelease",
    "BindingReport",
    "BindingStanding",
    "BindingView",
    "BrokerStatus",
    "ClaimBind",
    "ClaimCreate",
    "ClaimDelete",
    "ClaimProvide",
    "ClaimRelease",
    "ClaimView",
    "Claims",
    "ClaimsRequest",
    "Credit",
    "Declare",
    "Declared",
    "Delta",
    "Done",
    "Failed",
    "FeedTick",
    "FromAgent",
    "FromBroker",
    "Goodbye",
    "Heartbeat",
    "Hello",
    "HoldAdd",
    "HoldRelease",
    "HostAdd",
    "HostAdmit",
    "HostDrain",
    "HostRelease",
    "HostUndrain",
    "InventoriesRequest",
    "InventoryBodies",
    "InventoryGone",
    "InventoryNews",
    "Join",
    "KeyAdd",
    "KeyRetire",
    "KeyRevoke",
    "KeyRotate",
    "KeyView",
    "Keys",
    "KeysRequest",
    "LocationChange",
    "LocationView",
    "Lost",
    "Mine",
    "MineRequest",
    "NextKey",
    "Order",
    "PeerView",
    "Pick",
    "Place",
    "PoolSet",
    "Position",
    "Pulse",
    "Quality",
    "QuarantineClear",
    "QuarantineSet",
    "Read",
    "Refused",
    "Report",
    "ReportedCondition",
    "ReporterNews",
    "ReporterState",
    "Resync",
    "SnapshotBegin",
    "SnapshotEnd",
    "SnapshotPart",
    "SnapshotRequest",
    "Standing",
    "StatusRequest",
    "Tick",
    "ToAgent",
    "ToBroker",
    "TypesNews",
    "Unwatch",
    "WatchBegin",
    "WatchRequest",
    "Welcome",
]

PROTOCOL = 1
TICK_BYTES = 1 << 20
DOCUMENT_BYTES = 4 << 20
"""Limits on one message; a longer one is refused and counted."""

FromAgent: TypeAlias = Hello | ReporterNews | InventoryNews | InventoryGone | Declare | BindingNews | Goodbye
ToAgent: TypeAlias = (
    Welcome
    | Refused
    | Resync
    | Pulse
    | Standing
    | TypesNews
    | Declared
    | BindingPrepare
    | BindingRelease
    | BindingStanding
)
Read: TypeAlias = (
    SnapshotRequest
    | InventoriesRequest
    | WatchRequest
    | Credit
    | Unwatch
    | MineRequest
    | StatusRequest
    | ClaimsRequest
    | KeysRequest
    | BackupRequest
)
Order: TypeAlias = (
    HostAdd
    | HostAdmit
    | HostDrain
    | HostUndrain
    | HostRelease
    | HoldAdd
    | HoldRelease
    | PoolSet
    | KeyAdd
    | KeyRevoke
    | KeyRotate
    | KeyRetire
    | Join
    | ClaimCreate
    | ClaimProvide
    | ClaimBind
    | ClaimRelease
    | ClaimDelete
    | BindingForce
    | QuarantineSet
    | QuarantineClear
)
Answer: TypeAlias = (
    Done
    | Failed
    | SnapshotBegin
    | SnapshotPart
    | SnapshotEnd
    | InventoryBodies
    | WatchBegin
    | Delta
    | NextKey
    | Lost
    | Mine
    | BrokerStatus
    | Claims
    | Keys
)
ToBroker: TypeAlias = FromAgent | Read | Order
FromBroker: TypeAlias = ToAgent | Answer
