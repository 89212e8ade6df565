"""Discovery on the agent's loop: the probe's readings, the memory of them, and what the node tells of both.

The inventory that is published is never smaller than what is known: until the first reading it is the one of
before, and readings that fail change how things are, not what there is. A new generation is made only when
something differs. Ports are the configuration's, and told with or without a probe.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from xce.agent.discovery import expect, ill, keep, ports
from xce.agent.discovery.keep import Memory, Moment
from xce.agent.discovery.prober import Prober
from xce.agent.discovery.store import Store
from xce.agent.discovery.wake import Wakeup
from xce.agent.node import Node
from xce.agent.probe.frame import Line
from xce.agent.probe.health import Rules
from xce.agent.probe.verdict import Verdict
from xce.agent.writer import Writer
from xce.linux import proc
from xce.linux.cgroup import Cgroup
from xce.linux.loop import Loop
from xce.linux.reaper import Reaper
from xce.model import configuration, message
from xce.model.builtin_types import DISCOVERY
from xce.model.instance import Instance
from xce.model.message import ReportedCondition
from xce.model.reporter import ReporterState
from xce.reporters.inventory import Found
from xce.reporters.result import View

GROUP = "probe"
"""Name of the probe's control group, beside those of reporters."""
MODE = "probe"
_QUIET = Verdict()
_RELEASED = "the vendor's library is given up until: xce-agent discovery resume"


def _rules(settings: configuration.Probation) -> Rules:
    return Rules(
        probation_s=tuple(settings.probation) or (0.0,),
        event_probation_s=settings.event_probation,
        settle_s=settings.settle,
        memory_s=settings.memory,
        falls=settings.falls,
    )


def _wall() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Discovery:
    """Implements `Listener`. `keep_generations()` is called when an inventory is new."""

    def __init__(
        self,
        loop: Loop,
        reaper: Reaper,
        node: Node,
        settings: configuration.Discovery,
        *,
        state_directory: str,
        group: Cgroup | None,
        keep_generations: Callable[[], object],
        chance: Callable[[], float],
        writer: Writer | None = None,
        command: Sequence[str] = (),
        wall: Callable[[], str] = _wall,
    ) -> None:
        self._loop, self._node, self.settings = loop, node, settings
        self._keep_generations, self._wall = keep_generations, wall
        self._boot = proc.boot_id()
        self._store = Store(state_directory, writer)
        self._memory, self.damage = self._store.read()
        self._ill = ill.told(self._memory.instances.values())
        self._suspect = bool(self.damage)
        self._rules = _rules(settings.health)
        self._line: Line | None = None
        self._unheard: dict[str, str] = {}
        """Sources that have not been read for too long, each with the reason."""
        self._wakeup = Wakeup(loop, self._woken, settle=settings.settle, calm=settings.calm)
        self._was_woken = False
        self.prober = Prober(
            loop,
            reaper,
            self,
            settings,
            group=group.child(GROUP) if group else None,
            chance=chance,
            command=command,
        )

    # ---------------------------------------------------------------------------------------- orders

    def begin(self) -> None:
        """Start the probe; without one only ports are told, and without those nothing."""
        if not (self.settings.enabled or self.settings.ports):
            self._node.remove(DISCOVERY)
            return
        if self._memory.instances or self.damage or not self.settings.enabled:
            self._publish()  # as of before, so that nobody takes it for gone
        if self.settings.enabled:
            self.prober.begin()
        self.changed()

    def stop(self, done: Callable[[], object]) -> None:
        """Let the probe leave."""
        self._wakeup.close()
        self.prober.stop(done)

    def clear(self, id_: str, *, who: str, why: str) -> None:
        """An admin's word; raises ValueError with the reason why not."""
        verdict = self._line.verdicts.get(id_, _QUIET) if self._line else _QUIET
        memory = keep.cleared(self._memory, id_, verdict, who=who, why=why, moment=self._moment())
        self._remember(memory)
        self._settle()
        self.changed()

    def release(self, done: Callable[[str], object]) -> None:
        """Have nothing of the vendor's library open until `resume`; `done` as in `Prober.release`."""
        self.prober.release(done)
        self.changed()

    def resume(self) -> None:
        """The library may be asked again."""
        self.prober.resume()
        self.changed()

    # ------------------------------------------------------------------------------- from the prober

    def heard(self, line: Line) -> None:
        """Listener."""
        before = self._memory
        for one in self._unheard.keys() - set(line.pending):
            del self._unheard[one]
        if self._unheard:  # not asked yet, and for so long that what it said is not known any more
            line = keep.deafened(line, self._unheard)
        self._line = line
        self._apply(line)
        if self._was_woken and not line.pending:
            self._was_woken = False
            self._wakeup.learned(news=self._memory is not before)

    def alive(self) -> None:
        """Listener."""
        if not self._unheard and keep.restless(self._memory):
            self._settle()
            self.changed()

    def unheard(self, blind: Mapping[str, str]) -> None:
        """Listener."""
        self._unheard.update(blind)
        self._settle()
        self.changed()

    def changed(self) -> None:
        """Listener: tell the state, and listen for events while nobody else does."""
        if self.settings.enabled and self.prober.child is None and not self.prober.stopping:
            self._wakeup.open()
        else:
            self._wakeup.close()
        self._node.set_state(DISCOVERY, self._state())

    # ------------------------------------------------------------------------------------------ show

    def instances(self) -> list[Instance]:
        """All instances as they are published."""
        found = self._memory.instances.values() if self.settings.enabled else ()
        return [*found, *ports.instances(self.settings.ports, self.settings.root)]

    def faults(self) -> dict[str, str]:
        """What is wrong with the memory and with what it holds, by what it is about."""
        devices = self._ill if self.settings.enabled else ""
        return {"inventory file": self._store.fault or self.damage, "devices": devices}

    def unseen(self) -> str:
        """What keeps the inventory from being complete."""
        if self.prober.cause or self._line is None:
            return self.prober.cause or "nothing has been read yet"
        blind = {**self._line.blind, **self._unheard}
        parts = [f"the parts of {one} could not be read" for one in self._line.partial]
        waiting = [f"{one} has not answered yet" for one in self._line.pending]
        return "; ".join(
            [*(f"{one}: {why}" for one, why in blind.items()), *waiting, *parts, *self._line.holes]
        )

    def view(self) -> View:
        """What `status` shows of the probe beside its state."""
        prober, now = self.prober, self._loop.now()
        run = prober.child.run if prober.child else None
        return View(
            state=prober.state.value,
            pid=prober.child.pid if prober.child else None,
            running_for=now - run.started_at if run else None,
            next_run_in=prober.due - now if prober.due is not None else None,
            last_exit=prober.last_exit,
            stderr=prober.stderr,
            unkillable=prober.unkillable,
        )

    # ---------------------------------------------------------------------------------------- inside

    def _woken(self) -> None:
        self._was_woken = True
        self.prober.wake()

    def _settle(self) -> None:
        """Time has passed, or an admin has spoken: what is known now of what was read last."""
        if self._unheard:
            self._remember(keep.blinded(self._memory, self._unheard, self._moment()))
            self._publish()
        elif self._line is not None:
            self._apply(self._line)
        else:
            self._publish()

    def _apply(self, line: Line) -> None:
        memory = keep.after(
            self._memory,
            line,
            self._moment(),
            forget=lambda kind: expect.forgettable(self.settings.expected, kind),
            suspect=self._suspect,
            rules=self._rules,
        )
        self._remember(memory)
        self._publish()

    def _remember(self, memory: Memory) -> None:
        if memory != self._memory:
            self._memory, self._ill = memory, ill.told(memory.instances.values())
            self._store.write(memory)

    def _publish(self) -> None:
        complete = self._memory.complete or not self.settings.enabled
        if self._node.stock(DISCOVERY, Found(self.instances(), complete)):
            self._keep_generations()

    def _state(self) -> message.ReporterState:
        prober = self.prober
        shown = prober.shown if self.settings.enabled else ReporterState.NOT_APPLICABLE
        return message.ReporterState(
            state=shown.value,
            cause=prober.cause,
            note=prober.note,
            mode=MODE,
            interval_ms=round(prober.interval * 1000),
            ttl_ms=round(prober.ttl * 1000),
            runs=prober.runs,
            failures=prober.failures,
            abandoned=len(prober.unkillable),
            conditions=self._conditions(),
        )

    def _conditions(self) -> list[ReportedCondition]:
        found = list(self._line.conditions) if self._line else []
        for source, why in self._line.blind.items() if self._line else ():
            found.append(ReportedCondition(name=f"{source}_unread", reason=f"{source}: {why}"))
        if self.prober.released:
            found.append(ReportedCondition(name="released", reason=_RELEASED))
        if self.settings.enabled and (self._line is not None or self._memory.instances):
            found += expect.conditions(self.settings.expected, self._memory.instances.values())
        return found + ports.conditions(self.settings.ports, self.settings.root)

    def _moment(self) -> Moment:
        return Moment(now=time.monotonic(), wall=self._wall(), boot=self._boot)
