"""All that gives values on this machine: the scripts with their supervisor, and the built-in source.

Puts the parts of `xce.reporters` on the agent's loop and between them and the node; decides nothing. It is
imported after the connection to the broker was begun, not before.
"""

import os
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xce.agent import status
from xce.agent.intake import Intake
from xce.agent.memory import Memory
from xce.agent.node import Node
from xce.linux import cgroup, mountinfo
from xce.linux.loop import Loop, Timer
from xce.linux.reaper import Reaper
from xce.model import configuration
from xce.model.builtin_types import BUILTIN, DISCOVERY
from xce.model.configuration import AgentReporters, ReporterSettings
from xce.model.message import ReporterState
from xce.model.reporter import ReporterState as State
from xce.reporters import supervisor
from xce.reporters.builtin import TICK_S, HostSource
from xce.reporters.cage import Node as CageNode
from xce.reporters.directory import Candidate, parse_settings
from xce.reporters.result import View
from xce.reporters.supervisor import Supervisor
from xce.reporters.watch import Watch

if TYPE_CHECKING:
    from xce.agent.discovery.discovery import Discovery

_LASTING = frozenset({State.QUARANTINED.value, State.REFUSED.value, State.ABANDONED.value})


class Crew:
    """`group`: setting of the control group. `external`: in the role of an external reporter `name`."""

    def __init__(
        self,
        loop: Loop,
        reaper: Reaper,
        node: Node,
        memory: Memory,
        *,
        name: str,
        external: bool,
        state_directory: str,
        group: str,
    ) -> None:
        self._loop, self._reaper, self._node, self._memory = loop, reaper, node, memory
        self._home: cgroup.Cgroup | None = None
        self._name, self._external = name, external
        self._state_directory, self._group_setting = state_directory, group
        self._group_fault = ""
        self._supervisor: Supervisor | None = None
        self._claim = -1
        """Holds `_home` against other agents."""
        self.discovery: Discovery | None = None
        self._watch: Watch | None = None
        self._seen: dict[str, Candidate] | None = None
        """At the newest look for this supervisor."""
        self._source = BuiltinSource(loop, node)
        self.intake = Intake(
            node,
            now=loop.now,
            rerun=self.reset,
            assign=self._assign,
            keep_generations=self._keep_generations,
            identity=name if external else "",
        )

    # ---------------------------------------------------------------------------------------- orders

    def begin(self, settings: AgentReporters, discovery: configuration.Discovery | None) -> None:
        """Start what is to be started; what an agent before this one left behind is ended."""
        self._home = self._find_home()
        self._begin_reporters(settings)
        if discovery is not None:
            self._begin_discovery(discovery)

    def _begin_reporters(self, settings: AgentReporters) -> None:
        if settings.load_indices and not self._external:
            self._source.start()
        else:
            self._source.stop()
        self._supervisor = Supervisor(
            self._loop,
            self._reaper,
            self.intake,
            settings,
            node=CageNode(name=self._name, external=self._external),
            state_directory=self._state_directory,
            group=self._home,
            look_again=lambda: self._watch.soon() if self._watch else None,
            write=self._memory.writer.do,
        )
        self._seen, mounts = None, self._supervisor.mounts
        self._watch = Watch(
            self._loop,
            self._reaper,
            settings.directory,
            self._supervisor.trusted,
            self._directory_changed,
            parse=self._parse,
            may_hang=lambda path: mountinfo.may_hang(path, mounts.tops()),
        )
        self._watch.look()

    def _begin_discovery(self, settings: configuration.Discovery) -> None:
        from xce.agent.discovery.discovery import Discovery  # noqa: PLC0415 - not for external reporters

        self.discovery = Discovery(
            self._loop,
            self._reaper,
            self._node,
            settings,
            state_directory=self._state_directory,
            group=self._home,
            keep_generations=self._keep_generations,
            chance=random.random,
            writer=self._memory.writer,
        )
        self.discovery.begin()

    def change(self, settings: AgentReporters) -> None:
        """Go by other settings: runs in progress are ended, values stay until they are given anew."""

        def begin() -> None:
            self._home = self._find_home()
            self._begin_reporters(settings)

        self._stop_reporters(begin)

    def change_discovery(self, settings: configuration.Discovery) -> None:
        """Go by other settings: the probe is started anew, what it has found stays."""
        if self.discovery is not None:
            self.discovery.stop(lambda: self._begin_discovery(settings))

    def reset(self, name: str) -> bool:
        """Forget a reporter's failures and run it soon; False if there is none of that name."""
        if name == DISCOVERY and self.discovery is not None:
            self.discovery.prober.reset()
            return True
        return self._supervisor is not None and self._supervisor.reset(name)

    def apply_types(self) -> None:
        """The types in force may have changed."""
        self.intake.apply_types()

    def stop(self, done: Callable[[], object]) -> None:
        """End everything that runs; `done()` when nothing is left but what cannot be killed."""
        busy = [self._stop_reporters, *([self.discovery.stop] if self.discovery else [])]
        left = [len(busy)]

        def one_less() -> None:
            left[0] -= 1
            if left[0] == 0:
                done()

        for stop in busy:
            stop(one_less)

    def _stop_reporters(self, done: Callable[[], object]) -> None:
        if self._watch is not None:
            self._watch.close()
        if self._supervisor is not None:
            self._supervisor.stop(done)
        else:
            done()

    def kill(self) -> None:
        """Do not wait any longer for those that have been told to end."""
        self._source.stop()
        if self._supervisor is not None:
            self._supervisor.kill()

    # ------------------------------------------------------------------------------------------ show

    def refresh(self) -> None:
        """Bring the counters in the node's states up to date: single runs are not told."""
        if self._supervisor is not None:
            for name, state in self._supervisor.states().items():
                self.intake.state(name, state)

    def documents(self, now: float) -> list[status.Document]:
        """Every reporter as it stands in the status document."""
        self.refresh()
        return [
            status.reporter_document(
                name,
                state,
                self._node,
                view=self._view(name),
                account=self.intake.accounts.get(name),
                now=now,
            )
            for name, state in sorted(self._node.states.items())
        ]

    def refusals_of(self, resource: str) -> list[dict[str, Any]]:
        """What was refused of one resource, by any reporter."""
        return [
            {"reporter": name, "reason": one.reason, "text": one.text, "line": one.line}
            for name, account in self.intake.accounts.items()
            for one in account.refusals
            if one.name == resource
        ]

    def troubles(self) -> dict[str, str]:
        """Reporters with something wrong, and what."""
        warnings = self._supervisor.warnings() if self._supervisor else {}
        causes = {name: state.cause for name, state in self._node.states.items() if state.cause}
        return {**warnings, **causes}

    def lasting(self) -> dict[str, str]:
        """States that end by more than the next good run: a trouble that becomes one of these is news."""
        return {name: one.state for name, one in self._node.states.items() if one.state in _LASTING}

    def faults(self) -> dict[str, str]:
        """What is wrong, by what it is about; '' where nothing is."""
        directory = self._watch.fault if self._watch else ""
        own = self.discovery.faults() if self.discovery else {}
        remains = self._supervisor.remains if self._supervisor else {}
        left = [f"{name}: {', '.join(map(str, found))}" for name, found in sorted(remains.items())]
        return {
            "control group": self._group_fault,
            "reporters' directory": directory,
            "removed reporters": f"cannot be killed: {'; '.join(left)}" if left else "",
            **own,
        }

    # ---------------------------------------------------------------------------------------- inside

    def _view(self, name: str) -> View | None:
        if name == DISCOVERY and self.discovery is not None:
            return self.discovery.view()
        return self._supervisor.view(name) if self._supervisor else None

    def _keep_generations(self) -> None:
        self._memory.keep_generations(self._node.generations)

    def _find_home(self) -> cgroup.Cgroup | None:
        self._let_go()
        self._group_fault = ""
        label = supervisor.label(self._name, self._state_directory)
        try:
            group = supervisor.home(label, setting=self._group_setting, own=cgroup.own())
            self._claim = group.claim() if group is not None else -1
        except BlockingIOError:
            which = self._group_setting or "ours"
            self._group_fault = f"cannot use {which}: it is another agent's; set `cgroup:` to one of our own"
            return None
        except OSError as error:
            self._group_fault = f"cannot make {self._group_setting or 'one'}: {error.strerror}"
            return None
        return group

    def _let_go(self) -> None:
        if self._claim >= 0:
            os.close(self._claim)
            self._claim = -1

    def _directory_changed(self, candidates: dict[str, Candidate]) -> None:
        assert self._supervisor is not None
        if candidates != self._seen:
            self._seen = candidates
            self.intake.update(candidates)
        self._supervisor.update(candidates)
        for name in self.intake.accounts.keys() - candidates.keys():  # of a supervisor before this one
            self.intake.gone(name)

    def _assign(self, name: str, interval: float | None, names: list[str]) -> None:
        if self._supervisor is not None:
            self._supervisor.assign(name, interval=interval, names=names)

    def _parse(self, text: str, path: str) -> ReporterSettings:
        def parse(text: str, path: str, _kind: type[ReporterSettings]) -> ReporterSettings:
            return parse_settings(text, path)

        return self._memory.parsed(text, path, ReporterSettings, parse)


class BuiltinSource:
    """Reads the load indices and the host's attributes into the node, in this process."""

    def __init__(self, loop: Loop, node: Node) -> None:
        self._loop, self._node = loop, node
        self._source: HostSource | None = None
        self._timer: Timer | None = None
        self._runs = 0

    def start(self) -> None:
        """Read now and from now on; nothing if it does so already."""
        if self._source is None:
            self._source = HostSource(now=self._loop.now, wall=time.time)
            self._read(self._source)

    def stop(self) -> None:
        """Read no more, and withdraw what was read."""
        if self._timer is not None:
            self._timer.cancel()
        if self._source is not None:
            self._source = None
            self._node.remove(BUILTIN)

    def _read(self, source: HostSource) -> None:
        self._timer = self._loop.call_later(TICK_S, self._read, source)
        now, ttl = self._loop.now(), 3 * TICK_S
        self._runs += 1
        known = {name: value for name, value in source.read().items() if name in self._node.types.in_force}
        self._node.table.publish(BUILTIN, known, run=self._runs, at=now, ttl=ttl, now=now)
        state = ReporterState(
            state="running",
            note="; ".join(source.notes),
            mode="builtin",
            interval_ms=int(TICK_S * 1000),
            ttl_ms=int(ttl * 1000),
        )
        self._node.set_state(BUILTIN, state)
