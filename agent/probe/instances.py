"""From facts to instances: what a machine offers, what it has and does not offer, and what could not be seen.

Pure. Every device is one instance, however many witnesses it has (PCI, the vendor's library, KFD). What is
unknown is absent and never guessed. Displays and management chips are none. Parents come before their parts.
"""

from collections.abc import Iterable, Iterator

import msgspec

from xce.agent.probe import amd, classify, facts, nics, nvidia, xid
from xce.agent.probe.topology import Topology
from xce.agent.probe.units import Unit
from xce.agent.probe.verdict import Verdict
from xce.model.instance import Instance
from xce.reporters.frame import escape

FAULT = 400
"""Of what is told of a device that makes no sense, in characters."""
NVIDIA_ID, AMD_ID = 0x10DE, 0x1002


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What one reading of a machine came to."""

    instances: tuple[Instance, ...]
    """Each with its health as this reading alone shows it."""
    laid_out: tuple[Instance, ...]
    """The same without any fault: what remembered faults are laid over, since a fault may end before the
    reading stops to tell it."""
    verdicts: dict[str, Verdict]
    """By id, of whatever has a health of its own: what the agent's memory of faults is fed with."""
    complete: bool
    """Whether what is missing is known to be gone."""
    partial: tuple[str, ...] = ()
    """Instances whose parts could not be read."""
    blind: dict[str, str] = {}
    """Sources that said nothing although there is hardware of theirs, with the reason."""
    faults: tuple[str, ...] = ()
    """Devices of which no instance can be made, each with the reason: what is told of them makes no sense."""


def found(machine: facts.Machine, topology: Topology, *, xids: xid.Table = xid.TABLE) -> Findings:
    """All instances of a machine. `xids`: what each XID asks for, where the site has its own opinion."""
    units, faults = _sound(_units(machine, topology, xids))
    partial = tuple(_id(gpu) for gpu in _library(machine).gpus if gpu.mig.error)
    blind = _blind(machine, units)
    return Findings(
        instances=tuple(unit.instance() for unit in units),
        laid_out=tuple(unit.laid_out() for unit in units),
        verdicts={unit.id: unit.verdict for unit in units if unit.kind not in ("mig", "gpu-partition")},
        complete=not (partial or blind or machine.faults or faults),
        partial=partial,
        blind=blind,
        faults=tuple(faults),
    )


def _sound(units: Iterable[Unit]) -> tuple[list[Unit], list[str]]:
    """Those that are instances by all rules; the others, with their parts, cost nobody else anything."""
    sound: dict[str, Unit] = {}
    faults, refused = [], set()
    for unit in units:
        try:
            unit.laid_out()
            problem = f"instance {unit.id}: its id occurs twice" if unit.id in sound else ""
        except ValueError as error:
            problem = str(error)
        if problem or unit.parent in refused:
            faults.append(problem or f"instance {unit.id}: it is a part of {unit.parent}")
            refused.add(unit.id)
        else:
            sound[unit.id] = unit
    return list(sound.values()), [escape(fault, FAULT) for fault in faults]


def _units(machine: facts.Machine, topology: Topology, xids: xid.Table) -> Iterator[Unit]:
    kinds = classify.kinds(machine)
    gpus = [pci for pci in machine.pci if kinds[pci.address] == classify.GPU]
    nvidias = [pci.address for pci in gpus if _is_nvidia(pci, machine)]
    amds = [pci.address for pci in gpus if pci.vendor == AMD_ID]
    rest = [pci.address for pci in gpus if pci.address not in {*nvidias, *amds}]
    accelerators = [pci.address for pci in machine.pci if kinds[pci.address] == classify.ACCELERATOR]
    yield from nvidia.found(machine, nvidias, topology, xids)
    yield from amd.found(machine, amds, topology)
    yield from amd.others(machine, rest, "gpu", topology)
    yield from amd.others(machine, accelerators, "accelerator", topology)
    yield from nics.found(machine, kinds, topology)


def _is_nvidia(pci: facts.Pci, machine: facts.Machine) -> bool:
    """By its vendor; where that was not read, by who holds it."""
    if pci.vendor is not None:
        return pci.vendor == NVIDIA_ID
    held = {*machine.nvidia_proc, *(gpu.pci for gpu in _library(machine).gpus)}
    return pci.driver == "nvidia" or pci.address in held


def _library(machine: facts.Machine) -> facts.Nvidia:
    return machine.nvidia or facts.Nvidia()


def _id(gpu: facts.NvidiaGpu) -> str:
    return gpu.uuid or f"pci:{gpu.pci}"


def _blind(machine: facts.Machine, units: list[Unit]) -> dict[str, str]:
    if not any(unit.attributes.get("vendor") == "nvidia" for unit in units):
        return {}
    if machine.nvidia is None:
        return {"nvidia": "the NVIDIA library was not asked"}
    return {"nvidia": machine.nvidia.error} if machine.nvidia.error else {}
