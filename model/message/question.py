"""What may be asked of the broker. Nothing is changed by it."""

from xce.model.message.base import Request
from xce.model.message.view import Position


class SnapshotRequest(Request, frozen=True, kw_only=True, tag="snapshot"):
    """Everything at one revision; answered by `SnapshotBegin`, parts, `SnapshotEnd`."""

    only: list[str] = []
    """Location keys; empty: all."""
    detail: bool = False
    """Fill `origins` and `ages_ms`."""


class InventoriesRequest(Request, frozen=True, kw_only=True, tag="inventories"):
    """Bodies of inventories; answered by `InventoryBodies`."""

    wanted: dict[str, list[str]]
    """Location key to reporters."""


class WatchRequest(Request, frozen=True, kw_only=True, tag="watch"):
    """Follow the changes after `since`; answered by `WatchBegin` and `Delta`s, or `Lost`."""

    since: Position
    credit: int = 16
    """Deltas that may come before the next `Credit`."""


class Credit(Request, frozen=True, kw_only=True, tag="credit"):
    """So many more deltas may come; not answered."""

    more: int


class Unwatch(Request, frozen=True, kw_only=True, tag="unwatch"):
    """Stop the deltas."""


class MineRequest(Request, frozen=True, kw_only=True, tag="mine"):
    """An agent asks what the broker holds of its own location; answered by `Mine`."""


class StatusRequest(Request, frozen=True, kw_only=True, tag="status"):
    """The broker about itself; answered by `BrokerStatus`."""

    peers: bool = False
    """List the connected peers."""


class ClaimsRequest(Request, frozen=True, kw_only=True, tag="claims"):
    """Claims and their bindings; answered by `Claims`. What is given narrows the answer."""

    claim: str = ""
    host: str = ""
    gang: str = ""


class KeysRequest(Request, frozen=True, kw_only=True, tag="keys"):
    """All known keys; answered by `Keys`."""


class BackupRequest(Request, frozen=True, kw_only=True, tag="backup"):
    """Write a whole copy of the facts beside the store, as `facts.copy`; answered by `Done` with its last
    revision.
    """
