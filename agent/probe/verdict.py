"""What one reading says of a GPU's health.

Pure: a function of facts, without memory; what was before is added by `health.py`. Nothing here raises for a
state of the hardware.
"""

from collections.abc import Iterator

import msgspec

from xce.agent.probe import facts, xid
from xce.model.instance import Health

LOST_CODES = frozenset({6, 15, 28, 999})
"""NVML's answers for what is gone: Not Found, GPU is lost, GPU not found, Unknown Error."""
RESET_CODES = frozenset({11, 16})
"""Interrupt issue, GPU requires restart: it is there and works for nobody."""

RECOVERIES = {
    "reset": "a GPU reset",
    "reboot": "a reboot of the node",
    "drain-p2p": "its peers to be drained",
    "drain-and-reset": "its peers to be drained and a GPU reset",
    "recover-imex": "its IMEX domain to be recovered",
    "bus-reset": "a reset of its PCIe bus",
    "system-reboot": "a reboot of the whole system",
}
FABRIC_STATES = {1: "not started", 2: "in progress"}
FABRIC_UNHEALTHY, FABRIC_LIMITED = 2, 3
FABRIC_DONE = 3


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong."""

    cause: str
    """A word for its kind, the same in every reading: `remap-pending`."""
    reason: str
    evidence: str = ""
    recovery: str = ""
    health: Health = Health.UNAVAILABLE
    at: float = 0.0
    """Of an event: its place on the clock that `step` is given."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one reading says of one instance."""

    faults: tuple[Fault, ...] = ()
    """What was seen to be wrong in this reading, the worst first."""
    events: tuple[Fault, ...] = ()
    """What is told once and lasts: condemning XIDs."""
    notes: tuple[str, ...] = ()
    cured: bool | None = None
    """The driver says that the GPU needs nothing (True) or something (False); None: it does not say."""

    @property
    def worst(self) -> Fault | None:
        """The fault to name, if there is one: of this reading, or told in it."""
        return next(iter((*self.faults, *self.events)), None)

    @property
    def health(self) -> Health:
        """The health that one reading by itself stands for."""
        return self.worst.health if self.worst is not None else Health.AVAILABLE


def judge(
    gpu: facts.NvidiaGpu,
    *,
    pci: facts.Pci | None = None,
    xids: tuple[facts.Xid, ...] = (),
    table: xid.Table = xid.TABLE,
) -> Verdict:
    """The verdict of one GPU. `pci` is sysfs's word on it, `xids` are those of the whole machine."""
    mine = tuple(each for each in xids if each.uuid and each.uuid == gpu.uuid)
    return Verdict(
        faults=(*_unanswering(gpu), *_driver_asks(gpu), *_memory(gpu), *_fabric(gpu)),
        events=tuple(_event(each, table) for each in mine if xid.entry(each.xid, table).condemns),
        notes=(*_notes(gpu, pci), *_told(mine, table)),
        cured=None if gpu.recovery is None else gpu.recovery == "none",
    )


def unlisted(address: str) -> Verdict:
    """A GPU that its driver holds on PCI, of which the library says nothing at all."""
    return Verdict(faults=(_lost(f"PCI shows {address}, NVML does not list it"),))


def unreadable(nvidia: facts.Nvidia) -> Verdict:
    """Every GPU of a machine whose library says nothing: unknown, and not gone."""
    code = f" ({nvidia.code})" if nvidia.code else ""
    return Verdict(faults=(_unknown(nvidia.error, f"NVML: {nvidia.error}{code}"),))


def _lost(evidence: str) -> Fault:
    return Fault(
        health=Health.LOST,
        cause="lost",
        reason="GPU is lost",
        evidence=evidence,
        recovery="by itself when the library finds it again, mostly after a GPU reset or a reboot",
    )


def _unknown(reason: str, evidence: str) -> Fault:
    return Fault(
        health=Health.UNKNOWN,
        cause="library",
        reason=reason,
        evidence=evidence,
        recovery="by itself when the library answers",
    )


def _unanswering(gpu: facts.NvidiaGpu) -> Iterator[Fault]:
    """What it means that the library gave an error instead of the GPU."""
    evidence = f"NVML: {gpu.error}"
    if not gpu.error:
        return
    if gpu.code in LOST_CODES:
        yield _lost(evidence)
    elif gpu.code in RESET_CODES:
        yield Fault(
            cause="reset-required",
            reason="GPU requires a reset",
            evidence=evidence,
            recovery="after a GPU reset",
        )
    else:
        yield _unknown(f"the library does not answer for it: {gpu.error}", evidence)


def _driver_asks(gpu: facts.NvidiaGpu) -> Iterator[Fault]:
    if gpu.recovery not in (None, "none"):
        needs = RECOVERIES.get(gpu.recovery, gpu.recovery)
        yield Fault(
            cause="recovery",
            reason=f"the driver asks for {needs}",
            evidence=f"GPU recovery action: {gpu.recovery}",
            recovery=f"after {needs}",
        )


def _memory(gpu: facts.NvidiaGpu) -> Iterator[Fault]:
    """Remapped rows with nothing pending and nothing failed are no fault."""
    if gpu.remap_failed:
        yield Fault(
            cause="remap-failed",
            reason="row remapping failed",
            evidence="remapped rows: failure",
            recovery="by an admin, after repair",
        )
    if gpu.remap_pending:
        yield Fault(
            cause="remap-pending",
            reason="row remapping waits for a GPU reset",
            evidence=f"remapped rows: {gpu.remapped_uncorrectable} after uncorrectable errors, pending",
            recovery="after a GPU reset",
        )
    if gpu.retired_pending:
        yield Fault(
            cause="retirement-pending",
            reason="page retirement waits for a GPU reset",
            evidence="retired pages: pending",
            recovery="after a GPU reset",
        )
    if gpu.uncorrected and gpu.recovery is None:
        yield Fault(
            cause="uncorrected",
            reason="uncorrected memory errors",
            evidence=f"uncorrected ECC errors since the driver was loaded: {gpu.uncorrected}",
            recovery="after a GPU reset",
        )


def _fabric(gpu: facts.NvidiaGpu) -> Iterator[Fault]:
    fabric = gpu.fabric
    if fabric is None or not fabric.state:  # None: unknown; 0: it has none
        return
    if fabric.state != FABRIC_DONE:
        words = FABRIC_STATES.get(fabric.state, f"in state {fabric.state}")
        yield Fault(
            cause="fabric",
            reason=f"registration with the NVLink fabric is {words}",
            evidence=f"GPU fabric state: {fabric.state}",
            recovery="by itself when it is completed (fabric manager)",
        )
    elif fabric.status:
        yield Fault(
            cause="fabric-status",
            reason="registration with the NVLink fabric failed",
            evidence=f"GPU fabric status: {fabric.status}",
            recovery="by itself when it succeeds (fabric manager)",
        )
    elif fabric.summary == FABRIC_UNHEALTHY:
        yield Fault(
            cause="fabric-unhealthy",
            reason="the NVLink fabric is unhealthy at this GPU",
            evidence=f"GPU fabric health: unhealthy, mask {fabric.health}",
            recovery="by itself when the fabric is healthy",
        )


def _notes(gpu: facts.NvidiaGpu, pci: facts.Pci | None) -> tuple[str, ...]:
    """What a person should know and no choice depends on. A slow link of an idle GPU is not worth a note."""
    notes = []
    width, most = gpu.pcie_width, gpu.pcie_width_max
    if width is None and pci is not None:
        width, most = pci.width, pci.max_width
    if width and most and width < most:
        notes.append(f"PCIe width {width} of {most}")
    if gpu.uncorrected and gpu.recovery is not None:
        notes.append(f"{gpu.uncorrected} uncorrected memory errors since the driver was loaded")
    if gpu.remapped_uncorrectable:
        notes.append(f"{gpu.remapped_uncorrectable} rows remapped after uncorrectable errors")
    if gpu.fabric is not None and gpu.fabric.summary == FABRIC_LIMITED:
        notes.append("the NVLink fabric works with limited capacity")
    notes.extend(f"no answer: {call}" for call in gpu.unanswered)
    return tuple(notes)


def _where(each: facts.Xid) -> str:
    return "" if each.gi is None else f" in GPU instance {each.gi}"


def _told(xids: tuple[facts.Xid, ...], table: xid.Table) -> tuple[str, ...]:
    """One note for each XID that does not condemn, however often it came."""
    counts: dict[str, int] = {}
    for each in xids:
        row = xid.entry(each.xid, table)
        if not row.condemns:
            text = f"XID {each.xid} ({row.name}){_where(each)}: {row.action}"
            counts[text] = counts.get(text, 0) + 1
    return tuple(text if times == 1 else f"{text}, {times} times" for text, times in counts.items())


_MENDED = {
    xid.Action.RESET_GPU: "after a GPU reset or a reboot",
    xid.Action.REBOOT: "after a reboot",
    xid.Action.CHECK_NVLINK: "after a look at its NVLinks and a GPU reset",
}


def _event(each: facts.Xid, table: xid.Table) -> Fault:
    row = xid.entry(each.xid, table)
    mended = _MENDED.get(row.action, "after a GPU reset or a reboot")
    return Fault(
        cause=f"xid-{each.xid}",
        reason=f"XID {each.xid}: {row.name}",
        evidence=f"XID {each.xid}{_where(each)}, action {row.action}",
        recovery=f"{mended}, when the driver asks for nothing, or by an admin",
        at=each.at,
    )
