"""One reading of a machine after another: facts from all sources, and the line that tells what they come to.

The kernel's word is read anew each time; the vendor's library is asked where there is hardware of its
vendor, or its path was configured. `machine` of the settings stands in for all of it. What a source cannot
say is told as such and never guessed.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from xce.agent.probe import classify, facts, instances, links, machinefile, sysfs, xid
from xce.agent.probe.frame import KERNEL, NVIDIA, Line
from xce.agent.probe.topology import AdminTopology, Topology, topology
from xce.model.configuration import Discovery
from xce.model.message import ReportedCondition
from xce.model.refusal import ConfigRefused

if TYPE_CHECKING:
    from xce.agent.probe.nvml import Library

NVIDIA_VENDOR = 0x10DE
SHARE = 20
"""Readings take at most one part in so many of the time."""
SMOOTH, ROOM = 0.3, 0.7
"""Weight of the newest reading in the mean; the share of a shorter interval that must do to take it."""
FABRIC_S = 300.0
"""Between two readings where a port shows its state to nobody who does not look."""
NOTE = 1000
"""Of what is told of the readings, in characters."""
HOLES = 16
"""Of what could not be looked at, told one by one."""
_ASKED = frozenset({classify.GPU, classify.ACCELERATOR})


class Reader:
    """Reads the machine of `settings`. The library is loaded at the first `line` that may ask it."""

    def __init__(self, settings: Discovery, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings, self._clock = settings, clock
        self.library: Library | None = None
        """Once it was asked."""
        self.released = False
        """The library is not to be asked; what it said stays."""
        self._took, self._stretch = 0.0, 1
        """Seconds of a reading, smoothed, and by how much the interval is longer than set."""

    def machine(self, *, library: bool = True, everything: bool = True) -> facts.Machine:
        """The facts. Without `library` it is not asked. Raises `ConfigRefused` for a bad machine file."""
        if self.settings.machine:
            return machinefile.load(self.settings.machine)
        machine = sysfs.read(Path(self.settings.root))
        if self.settings.root == "/":
            machine = links.refine(machine)
        if library and self.wants_library(machine):
            machine = msgspec.structs.replace(machine, nvidia=self._ask(machine, everything=everything))
        return machine

    def line(self, *, library: bool = True, everything: bool = True) -> Line:
        """What a reading comes to. `everything`: also what seldom changes and takes long."""
        begun = self._clock()
        ask = library and not self.released
        conditions: list[ReportedCondition] = []
        admin = self._admin(conditions)
        try:
            machine = self.machine(library=ask, everything=everything)
        except ConfigRefused as refused:
            why = f"cannot use machine: {refused}"
            return Line(
                xce=1,
                instances=[],
                complete=False,
                blind={KERNEL: why, NVIDIA: why},
                conditions=[ReportedCondition(name="machine", reason=why[:1024])],
                interval_s=self.settings.interval,
            )
        place = topology(machine, admin)
        opinion = xid.with_site(self.settings.xids_out, self.settings.xids_noted)
        found = instances.found(machine, place, xids=opinion)
        if ask:
            self._measure(self._clock() - begun)
        pending = not ask and self.wants_library(machine)
        return self._told(machine, place, found, conditions, pending=pending)

    def wants_library(self, machine: facts.Machine) -> bool:
        """Whether there is something that the library could speak of."""
        if self.settings.machine:
            return False
        kinds = classify.kinds(machine)
        shown = any(one.vendor == NVIDIA_VENDOR and kinds[one.address] == classify.GPU for one in machine.pci)
        return shown or bool(machine.nvidia_proc or self.settings.library)

    def close(self) -> None:
        """Give up all handles."""
        if self.library is not None:
            self.library.close()

    # ---------------------------------------------------------------------------------------- inside

    def _ask(self, machine: facts.Machine, *, everything: bool) -> facts.Nvidia:
        held = {one.address for one in machine.pci if one.driver == "nvidia" and one.vendor == NVIDIA_VENDOR}
        kinds = classify.kinds(machine)
        expected = {address for address in held if kinds[address] == classify.GPU} | {*machine.nvidia_proc}
        if self.library is None:
            from xce.agent.probe import nvml  # noqa: PLC0415 - most nodes have nothing to ask it

            self.library = nvml.Library(self.settings.library, clock=self._clock)
        return self.library.read(tuple(sorted(expected)), everything=everything)

    def _admin(self, conditions: list[ReportedCondition]) -> AdminTopology | None:
        """What an admin says of the topology; a file that does not fit is told and left aside."""
        settings = self.settings
        admin = None
        try:
            if path := settings.topology or settings.machine:
                admin = machinefile.load_admin(path) if settings.topology or Path(path).is_dir() else None
        except ConfigRefused as refused:
            conditions.append(ReportedCondition(name="topology", reason=f"not taken: {refused}"[:1024]))
        if settings.rails:
            rails = tuple(tuple(rail) for rail in settings.rails)
            admin = msgspec.structs.replace(admin or AdminTopology(), rails=rails)
        return admin

    def _told(
        self,
        machine: facts.Machine,
        place: Topology,
        found: instances.Findings,
        conditions: list[ReportedCondition],
        *,
        pending: bool,
    ) -> Line:
        conditions += [ReportedCondition(name="topology", reason=text[:1024]) for text in place.conflicts[:8]]
        rest = not self.settings.machine and not self._has_accelerators(machine)
        blind = {} if pending else dict(found.blind)
        if machine.nvidia is not None and machine.nvidia.error:
            blind[NVIDIA] = machine.nvidia.error
        return Line(
            xce=1,
            instances=list(found.laid_out),
            complete=found.complete and not pending and not blind,
            verdicts=found.verdicts,
            conditions=conditions,
            blind=blind,
            pending=[NVIDIA] if pending else [],
            partial=list(found.partial),
            holes=[*machine.faults, *found.faults][:HOLES],
            present=sorted(
                {*machine.nvidia_proc, *(one.address for one in machine.pci if one.vendor is not None)}
            ),
            rest=rest,
            interval_s=self._interval(machine, rest=rest),
            note=self._note(rest=rest),
        )

    def _measure(self, took: float) -> None:
        """Longer at once where readings take their time, and shorter again only when there is room for it."""
        self._took += SMOOTH * (took - self._took)
        wanted = SHARE * self._took / self.settings.interval
        if wanted > self._stretch or wanted < ROOM * (self._stretch - 1):
            self._stretch = max(1, math.ceil(wanted))

    def _has_accelerators(self, machine: facts.Machine) -> bool:
        return self.wants_library(machine) or bool(_ASKED.intersection(classify.kinds(machine).values()))

    def _interval(self, machine: facts.Machine, *, rest: bool) -> float:
        settings = self.settings
        if not rest:
            return settings.interval * self._stretch
        unseen = any(not port.nets for device in machine.rdma for port in device.ports)
        return min(settings.rest, max(FABRIC_S, settings.interval)) if unseen else settings.rest

    def _note(self, *, rest: bool) -> str:
        stretched = not rest and self._stretch > 1
        own = (f"readings take more than 1/{SHARE} of the interval that is set",) if stretched else ()
        return "; ".join((*own, *(self.library.notes() if self.library is not None else ())))[:NOTE]
