"""What an answer means, and how long to wait for one. Pure; the codes are those of gRPC as CSI uses them."""

from typing import Any

from xce.model import csi
from xce.model.csi import Outcome

OUTCOMES: dict[int, Outcome] = {
    0: Outcome.OK,
    3: Outcome.REFUSED,  # INVALID_ARGUMENT
    5: Outcome.REFUSED,  # NOT_FOUND
    6: Outcome.REFUSED,  # ALREADY_EXISTS
    7: Outcome.REFUSED,  # PERMISSION_DENIED
    8: Outcome.REFUSED,  # RESOURCE_EXHAUSTED
    9: Outcome.REFUSED,  # FAILED_PRECONDITION
    10: Outcome.BUSY,  # ABORTED
    11: Outcome.REFUSED,  # OUT_OF_RANGE
    12: Outcome.UNSUPPORTED,  # UNIMPLEMENTED
    16: Outcome.REFUSED,  # UNAUTHENTICATED
}
"""Codes that CSI gives a meaning to. All others say nothing about what was done."""

DEADLINES_S: dict[type[Any], float] = {
    csi.Stage: 120,
    csi.Unstage: 120,
    csi.Publish: 120,
    csi.Unpublish: 120,
    csi.Expand: 300,
    csi.Create: 300,
    csi.Delete: 300,
    csi.Statistics: 30,
    csi.Look: 10,
}
"""By class of call; a deadline ends our waiting, not the plugin's work."""


def outcome(code: int) -> Outcome:
    """Of a call that the plugin, or the library in its place, has answered with a code."""
    return OUTCOMES.get(code, Outcome.UNCERTAIN)


def volume(call: csi.Call) -> str | None:
    """The volume that may have one call in flight."""
    if isinstance(call, csi.Create):
        return f"new {call.name}"
    return None if isinstance(call, csi.Look) else call.volume
