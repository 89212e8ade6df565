"""What NVIDIA's XID numbers mean and what each asks for: a table, no code that decides.

Pure data. The actions are those of the vendor's catalogue for Ampere and newer GPUs ("Immediate Action"), the
names are ours. An XID is *condemning* when the GPU should take no new work until something was done to it.
That follows from the action, but for the rows that say otherwise in `why`. A number that is not in the table
is unknown and condemns: what nobody can explain is not taken for harmless. Where a driver says itself what a
GPU needs (recovery action, XID 154), its word ends what this table began (health.py). A site changes a row
with a table of its own, not here.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

SOURCE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"


class Action(StrEnum):
    """What an XID asks for."""

    NONE = "none"
    RESTART_APP = "restart-app"
    RESET_GPU = "reset-gpu"
    REBOOT = "reboot"
    CHECK_NVLINK = "check-nvlink"
    CHECK_MECHANICS = "check-mechanics"
    UPDATE_SOFTWARE = "update-software"
    CONTACT_VENDOR = "contact-vendor"
    AS_DRIVER_SAYS = "as-driver-says"
    UNKNOWN = "unknown"


CONDEMNING = frozenset({Action.RESET_GPU, Action.REBOOT, Action.CHECK_NVLINK, Action.UNKNOWN})


class Entry(msgspec.Struct, frozen=True):
    """One row."""

    xid: int
    name: str
    action: Action
    condemns: bool
    why: str = ""
    """Where `condemns` does not follow from the action: the reason."""


Table = dict[int, Entry]

_NAMES: dict[Action, dict[int, str]] = {
    Action.NONE: {
        14: "test of the error path",
        37: "context switch firmware: unknown method",
        38: "context switch firmware: watchdog",
        43: "GPU stopped for one process",
        44: "fault during a context switch",
        45: "work removed before its end",
        63: "row remapping or page retirement recorded",
        66: "context switch firmware: register access",
        67: "context switch firmware: verification",
        92: "many corrected memory errors",
        93: "too many writes to the board's memory of facts",
        106: "test message of the management bus",
        107: "silent test message of the management bus",
        108: "NVLink address translation at the other end",
        121: "error on the link between CPU and GPU",
        137: "NVLink access without right",
        141: "error on the fast path",
        152: "DLA: memory management",
        153: "DLA: time-out",
        157: "retirement of a unit failed",
        160: "channel retired",
        161: "retirement of a channel failed",
        162: "power smoothing engaged",
        163: "power smoothing disengaged",
        164: "power smoothing: little life left",
        165: "power smoothing: no life left",
    },
    Action.RESTART_APP: {
        8: "GPU stopped working on a channel",
        11: "broken command stream",
        13: "graphics engine exception",
        25: "illegal notification",
        31: "memory page fault of an application",
        32: "broken command stream, seen by the DMA engine",
        60: "video security engine error",
        68: "video decoder 0 error",
        69: "graphics engine class error",
        80: "checksum of a command stream is wrong",
        86: "optical flow engine 0 error",
        94: "memory error contained in one application",
        139: "optical flow engine 1 error",
    },
    Action.RESET_GPU: {
        46: "GPU does not answer in time",
        48: "double bit memory error",
        62: "power management unit halted",
        64: "row remapping or page retirement failed",
        95: "memory error not contained",
        109: "context switch took too long",
        110: "security fault",
        119: "GPU firmware does not answer",
        120: "GPU firmware error",
        136: "NVLink training failed",
        140: "memory error that escaped correction",
        143: "GPU initialisation failed",
        155: "NVLink error defined by software",
        156: "a unit of the GPU was retired",
        158: "fatal time-out of the GPU",
    },
    Action.REBOOT: {
        79: "GPU has fallen off the bus",
        151: "key rotation failed",
    },
    Action.CHECK_NVLINK: {
        74: "NVLink error",
        144: "NVLink error (SAW)",
        145: "NVLink error (RLW)",
        146: "NVLink error (TLW)",
        147: "NVLink error (TREX)",
        148: "NVLink error (NVLPW)",
        149: "NVLink error (NETIR)",
        150: "NVLink error (MSE)",
    },
    Action.CHECK_MECHANICS: {54: "auxiliary power not connected, reduced clocks"},
    Action.UPDATE_SOFTWARE: {78: "vGPU could not start"},
    Action.CONTACT_VENDOR: {142: "video encoder 3 error"},
    Action.AS_DRIVER_SAYS: {
        154: "recovery action changed",
        159: "coherent interface: error without data",
    },
    Action.UNKNOWN: {
        166: "NVLink encryption error",
        167: "fatal PCIe time-out",
        168: "less GPU memory than before",
        169: "security engine halted",
        170: "NVLink security: other",
        171: "uncorrectable DRAM error",
        172: "uncorrectable SRAM error",
    },
}

_ENGINES: tuple[tuple[range, int, str], ...] = (
    (range(39, 42), 0, "copy engine {} error"),
    (range(70, 73), 3, "copy engine {} error"),
    (range(75, 78), 6, "copy engine {} error"),
    (range(82, 83), 0, "JPEG engine {} error"),
    (range(83, 85), 1, "video decoder {} error"),
    (range(85, 86), 9, "copy engine {} error"),
    (range(88, 90), 3, "video decoder {} error"),
    (range(96, 99), 5, "video decoder {} error"),
    (range(99, 106), 1, "JPEG engine {} error"),
    (range(126, 136), 10, "copy engine {} error"),
)
"""Numbers in a row that say the same of one engine each; all ask to start the application again."""

_EXCEPTIONS: dict[int, tuple[bool, str]] = {
    109: (False, "mostly a hanging application; a driver that wants a reset says so as its recovery action"),
    168: (False, "the catalogue names no action; the memory that is left works and is shown"),
}


def _table() -> Table:
    rows = {
        xid: Entry(xid, name, action, action in CONDEMNING)
        for action, names in _NAMES.items()
        for xid, name in names.items()
    }
    for numbers, first, name in _ENGINES:
        for position, xid in enumerate(numbers):
            rows[xid] = Entry(xid, name.format(first + position), Action.RESTART_APP, False)
    for xid, (condemns, why) in _EXCEPTIONS.items():
        rows[xid] = Entry(xid, rows[xid].name, rows[xid].action, condemns, why)
    return dict(sorted(rows.items()))


TABLE: Table = _table()


def with_site(out: Iterable[int], noted: Iterable[int], table: Table = TABLE) -> Table:
    """The table with a site's opinion: XIDs that take a GPU out, and others that are only noted."""
    words = dict.fromkeys(noted, False) | dict.fromkeys(out, True)
    rows = {number: entry(number, table) for number in words}
    return table | {
        number: Entry(number, row.name, row.action, words[number], "set by the site")
        for number, row in rows.items()
    }


def entry(xid: int, table: Table = TABLE) -> Entry:
    """The row of an XID; one that nobody described is unknown and condemns."""
    return table.get(xid) or Entry(xid, "not in the table", Action.UNKNOWN, True)
