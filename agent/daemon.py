"""The agent as a process: all parts on one loop, from start to stop.

The order of the start is the point: lock, hello to the broker, the local socket; only then the modules that
run reporters are loaded and the first one is started. Nothing here decides what is said or taken, and nothing
waits: what must end before the process does has a deadline. External reporters (`xce-reporter run`) are the
same program in another role.
"""

import gc
import importlib
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xce.agent import config, log, status
from xce.agent.control import Control
from xce.agent.core import Core, Deliver, Effect, Identity, Judge, Learn, Shown
from xce.agent.link import Link
from xce.agent.lock import AlreadyRunning, Lock
from xce.agent.log import Log
from xce.agent.memory import Memory
from xce.agent.node import Node
from xce.agent.operations import Operations
from xce.agent.types import Types
from xce.linux import proc
from xce.linux.loop import Loop, Timer
from xce.linux.reaper import Reaper
from xce.model import VERSION
from xce.model.builtin_types import BUILTIN
from xce.model.configuration import AgentFile, ExternalFile, ReporterSettings
from xce.model.link import Phase
from xce.model.message import ReporterState
from xce.model.refusal import ConfigRefused
from xce.model.role import Role
from xce.wire import keys
from xce.wire.keys import KeyFileError, KeyPair

if TYPE_CHECKING:
    from xce.agent.intake import Intake
    from xce.agent.metrics import Exporter
    from xce.reporters.builtin import HostSource
    from xce.reporters.supervisor import Supervisor
    from xce.reporters.watch import Watch

BEGIN_S = 0.25
"""Reporters start after the hello, or after this long without a link."""
KILL_S, STOP_S = 3.0, 4.5
"""A stop kills what is left after the first, and goes on without it after the second."""
MINUTE_S = 60.0
"""How often counters are brought up to date for the broker's metrics, and refused types asked about anew."""
LAST_WORDS_S = 0.05
"""For the goodbye to leave the socket."""
COLD_S = 10.0
"""The cold start is over after this long, whatever reporters have not been heard yet."""

Settings = AgentFile | ExternalFile


class CannotStart(Exception):
    """The process ends before it began; the message is for whoever started it."""


class Daemon:
    """One agent or external reporter. `read` gives the configuration, again at each reload.

    Construction takes the lock. Raises `CannotStart`, `ConfigRefused`.
    """

    def __init__(self, read: Callable[[], Settings], path: str, *, role: Role, logger: Log) -> None:
        self.settings = settings = read()
        self._read, self.path, self.role, self.log = read, path, role, logger
        self.started = time.monotonic()
        self.faults: dict[str, str] = {}
        """What is wrong with the agent itself, by what it is about."""
        self._lock = _prepare(settings)
        self.loop = Loop(on_error=self._internal_error)
        self.memory = Memory(settings.state_directory)
        self.types = Types(self.memory.types(), alone=not settings.broker)
        self.node = Node(self.types, generations=self.memory.generations(), cold=True)
        self.name = settings.name or _own_name(settings, role)
        self.core = Core(self._identity(), self.node, now=self.loop.now(), random=random.uniform)
        self.loop.after_turn(self._settle)
        self.link = Link(
            self.loop,
            self.core,
            endpoint=settings.broker,
            credentials=self._credentials,
            on_effect=self._on_effect,
        )
        self.loop.after_turn(self._after_turn)
        self.operations = Operations(self)
        self.intake: Intake | None = None
        self.supervisor: Supervisor | None = None
        self._control: Control | None = None
        self._watch: Watch | None = None
        self._source: HostSource | None = None
        self._source_runs = 0
        self._exporter: Exporter | None = None
        self._expiry: Timer | None = None
        self._notify: log.Notify | None = None
        self._told_status = ""
        self._begun = self._stopping = False

    def run(self) -> int:
        """Serve until a signal; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.on_signal(number, self.stop)
        self.loop.on_signal(signal.SIGHUP, self.reload)
        self.link.turn()
        _load()  # while the sockets exchange keys
        self.loop.call_later(BEGIN_S, self._begin)
        self.loop.run()
        self._close()
        return 0

    # ---------------------------------------------------------------------------------------- start

    def _begin(self) -> None:
        """Everything that may wait until hello was said."""
        if self._begun or self._stopping:
            return
        self._begun = True
        self.log.notice(f"{self.role.value} {self.name} {VERSION} runs, pid {os.getpid()}")
        self._open_control()
        self._notify = log.service_manager()
        self._reaper = Reaper(self.loop)
        self._begin_reporters()
        self._begin_metrics()
        self.loop.call_later(COLD_S, self.node.warm_up)
        self.loop.call_later(MINUTE_S, self._each_minute)
        if self._notify is not None:
            self._notify("READY=1")
            if (every := log.watchdog_interval_s()) is not None:
                self._kick_watchdog(every)
        gc.freeze()  # what a start leaves is for ever: no later collection looks at it again
        gc.enable()

    def _open_control(self) -> None:
        try:
            self._control = Control(
                self.loop, f"{self.settings.run_directory}/agent.sock", self.operations.table()
            )
            self.faults.pop("local socket", None)
        except OSError as error:
            self.faults["local socket"] = f"cannot listen: {error.strerror or error}"

    def _begin_reporters(self) -> None:
        from xce.agent.intake import Intake  # noqa: PLC0415 - after the hello
        from xce.linux import cgroup  # noqa: PLC0415
        from xce.reporters import supervisor  # noqa: PLC0415
        from xce.reporters.cage import Node as CageNode  # noqa: PLC0415
        from xce.reporters.watch import Watch  # noqa: PLC0415

        settings = self.settings
        external = self.role is Role.REPORTER
        if self.intake is None:
            self.intake = Intake(
                self.node,
                now=self.loop.now,
                rerun=self.reset,
                assign=self._assign,
                keep_generations=lambda: self.memory.keep_generations(self.node.generations),
                identity=self.name if external else "",
            )
        try:
            group = supervisor.home(self.name, setting=settings.cgroup, own=cgroup.own())
            self.faults.pop("control group", None)
        except OSError as error:
            group = None
            self.faults["control group"] = f"cannot make {settings.cgroup or 'one'}: {error.strerror}"
        self.supervisor = supervisor.Supervisor(
            self.loop,
            self._reaper,
            self.intake,
            settings.reporters,
            node=CageNode(name=self.name, external=external),
            state_directory=settings.state_directory,
            group=group,
            look_again=lambda: self._watch.soon() if self._watch else None,
        )
        self._watch = Watch(
            self.loop,
            settings.reporters.directory,
            self.supervisor.trusted,
            self._directory_changed,
            parse=self._parse_settings,
        )
        self._begin_source()
        self._watch.look()

    def _begin_source(self) -> None:
        wanted = self.settings.reporters.load_indices and self.role is Role.AGENT
        if not wanted:
            self._source = None
            self.node.remove(BUILTIN)
        elif self._source is None:
            from xce.reporters.builtin import HostSource  # noqa: PLC0415 - after the hello

            self._source = HostSource(now=self.loop.now, wall=time.time)
            self._read_source()

    def _read_source(self) -> None:
        from xce.reporters.builtin import TICK_S  # noqa: PLC0415

        if self._source is None or self._stopping:
            return
        self.loop.call_later(TICK_S, self._read_source)
        now = self.loop.now()
        self._source_runs += 1
        readings = {
            name: reading for name, reading in self._source.read().items() if name in self.types.in_force
        }
        self.node.table.publish(BUILTIN, readings, run=self._source_runs, at=now, ttl=3 * TICK_S, now=now)
        self.node.set_state(
            BUILTIN,
            ReporterState(
                state="running",
                note="; ".join(self._source.notes),
                mode="builtin",
                interval_ms=int(TICK_S * 1000),
                ttl_ms=int(3 * TICK_S * 1000),
            ),
        )

    def _begin_metrics(self) -> None:
        wanted = self.settings.metrics if isinstance(self.settings, AgentFile) else ""
        if self._exporter is not None:
            self._exporter.close()
            self._exporter = None
        address = config.address(wanted)
        if address is None:
            self.faults.pop("metrics", None)
            return
        from xce.agent.metrics import Exporter  # noqa: PLC0415 - 10 MB, for sites that ask for it

        try:
            self._exporter = Exporter(self.loop, *address, self.status)
            self.faults.pop("metrics", None)
        except OSError as error:
            self.faults["metrics"] = f"cannot listen on {wanted}: {error.strerror}"

    def _each_minute(self) -> None:
        self._refresh()
        self.types.ask_about_refused()
        self.loop.call_later(MINUTE_S, self._each_minute)

    # --------------------------------------------------------------------------------------- running

    def status(self) -> dict[str, Any]:
        """The status document; see `status.py`."""
        self._refresh()
        now = self.loop.now()
        document: dict[str, Any] = {
            "running": True,
            "agent": {
                "name": self.name,
                "role": self.role.value,
                "pid": os.getpid(),
                "software": VERSION,
                "running_s": now - self.started,
                "memory_kb": proc.resident_bytes() // 1024,
                "configuration": self.path,
            },
            "link": status.link_document(self.core, self.link.endpoint, now),
            "host": status.host_document(self.core),
            "reporters": [
                status.reporter_document(
                    name,
                    self.node.states[name],
                    self.node,
                    view=self.supervisor.view(name) if self.supervisor else None,
                    account=self.intake.accounts.get(name) if self.intake else None,
                    now=now,
                )
                for name in sorted(self.node.states)
            ],
        }
        document["trouble"] = status.troubles(document, self._all_faults())
        return document

    def reset(self, name: str) -> bool:
        """Forget a reporter's failures and run it soon; False if there is none of that name."""
        return self.supervisor is not None and self.supervisor.reset(name)

    def refusals_of(self, resource: str) -> list[dict[str, Any]]:
        """What was refused of one resource, by any reporter."""
        accounts = self.intake.accounts if self.intake else {}
        return [
            {"reporter": name, "reason": one.reason, "text": one.text, "line": one.line}
            for name, account in accounts.items()
            for one in account.refusals
            if one.name == resource
        ]

    def _refresh(self) -> None:
        """Bring the states' counters up to date: single runs are not told."""
        if self.supervisor is not None and self.intake is not None:
            for name, state in self.supervisor.states().items():
                self.intake.state(name, state)

    def _on_effect(self, effect: Effect) -> None:
        if isinstance(effect, Learn):
            self.types.learn(effect.types)
            self._types_changed()
            self.memory.keep_types(effect.types)
        elif isinstance(effect, Judge):
            self.types.judge(effect.types)
            self._types_changed()
        elif isinstance(effect, Deliver):
            self.operations.deliver(effect.answer)
        elif isinstance(effect, Shown):
            self._tell_manager()

    def _types_changed(self) -> None:
        if self.intake is not None:
            self.intake.apply_types()
        else:
            self.node.apply_types(self.loop.now())

    def _directory_changed(self, candidates: dict[str, Any]) -> None:
        assert self.intake is not None
        assert self.supervisor is not None
        self.intake.update(candidates)
        self.supervisor.update(candidates)
        for name in self.intake.accounts.keys() - candidates.keys():
            self.intake.gone(name)

    def _assign(self, name: str, interval: float | None, names: list[str]) -> None:
        if self.supervisor is not None:
            self.supervisor.assign(name, interval=interval, names=names)

    def _parse_settings(self, text: str, path: str) -> ReporterSettings:
        from xce.reporters.directory import parse_settings  # noqa: PLC0415 - after the hello

        return self.memory.parsed(
            text, path, ReporterSettings, lambda *known: parse_settings(known[0], known[1])
        )

    def _settle(self) -> None:
        """Before the link speaks: what is over its time is not told as fresh."""
        table, now = self.node.table, self.loop.now()
        expiry = table.next_expiry()
        if expiry is not None and expiry < now:
            table.settle(now)
            expiry = table.next_expiry()
        if self._expiry is not None and self._expiry.active:
            if self._expiry.when == expiry:
                return
            self._expiry.cancel()
        if expiry is not None:
            self._expiry = self.loop.call_at(expiry + 0.001, lambda: None)

    def _after_turn(self) -> None:
        if not self._begun and self.core.phase in {Phase.GREETING, Phase.SYNCED, Phase.REFUSED}:
            self.loop.call_later(0, self._begin)
        now = self.loop.now()
        trouble = self.core.trouble if self.settings.broker and not self._stopping else ""
        self.log.fault("broker", "" if self.core.phase is Phase.SYNCED else trouble, now)
        for about, text in self._all_faults().items():
            self.log.fault(about, text, now)
        self._tell_manager()

    def _all_faults(self) -> dict[str, str]:
        directory = self._watch.fault if self._watch else ""
        return {
            **dict.fromkeys(("configuration", "local socket", "control group", "metrics"), ""),
            **self.faults,
            "state directory": self.memory.fault,
            "reporters' directory": directory,
            "link": self.link.fault,
        }

    def _tell_manager(self) -> None:
        """STATUS= for `systemctl status`, when it has changed."""
        if self._notify is None:
            return
        standing = f", host {self.core.standing.state}" if self.core.standing.state else ""
        bad = sum(bool(state.cause) for state in self.node.states.values())
        text = f"{self.core.phase.value}{standing}, {len(self.node.states)} reporters, {bad} in trouble"
        if text != self._told_status:
            self._told_status = text
            self._notify(f"STATUS={text}")

    def _kick_watchdog(self, every: float) -> None:
        if self._notify is not None:
            self._notify("WATCHDOG=1")
            self.loop.call_later(every, self._kick_watchdog, every)

    def _internal_error(self, error: Exception, callback: Callable[..., object]) -> None:
        """An exception in a callback is a bug: it is shown until the next start, and costs nobody else."""
        where = getattr(callback, "__qualname__", repr(callback))
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        line = f" ({Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno})" if place else ""
        self.faults["internal error"] = f"{where}: {error!r}{line}; please report it"

    # ---------------------------------------------------------------------------------------- reload

    def reload(self) -> None:
        """Read the configuration anew. A file that does not fit changes nothing."""
        if self._notify is not None:
            self._notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            wanted = self._read()
        except ConfigRefused as refused:
            self.faults["configuration"] = f"not taken: {'; '.join(str(error) for error in refused.errors)}"
        else:
            fixed = config.fixed_changes(self.settings, wanted)
            before, self.settings = self.settings, config.with_fixed(self.settings, wanted)
            self.faults["configuration"] = (
                f"{', '.join(fixed)} changed: takes effect at the next start" if fixed else ""
            )
            self._apply(before)
        if self._notify is not None:
            self._notify("READY=1")

    def _apply(self, before: Settings) -> None:
        """Go by `settings`, which were `before`."""
        now = self.settings
        self.types.alone = not now.broker
        # Keys may have been replaced under the same path, so that the link starts anew in any case but this.
        if (now.broker, now.key, now.broker_key) != (before.broker, before.key, before.broker_key) or (
            self.core.phase is not Phase.SYNCED
        ):
            self.link.redirect(now.broker)
        if not self._begun:
            return
        if now.reporters != before.reporters and self.supervisor is not None:
            if self._watch is not None:
                self._watch.close()
            self.supervisor.stop(self._begin_reporters)
        self._begin_metrics()
        self.log.notice("configuration read anew")

    # ------------------------------------------------------------------------------------------ stop

    def stop(self) -> None:
        """Say goodbye, end all children, and leave; at once if asked again."""
        if self._stopping:
            self._kill()
            self.loop.stop()
            return
        self._stopping = True
        self.log.notice("stopping")
        if self._notify is not None:
            self._notify("STOPPING=1")
        self.core.goodbye(0, self.loop.now())
        if self._watch is not None:
            self._watch.close()
        self.loop.call_later(KILL_S, self._kill)
        self.loop.call_later(STOP_S, self._give_up)
        if self.supervisor is None:
            self._leave()
        else:
            self.supervisor.stop(self._leave)

    def _kill(self) -> None:
        if self.supervisor is not None and self.supervisor.group is not None:
            self.supervisor.group.kill()

    def _give_up(self) -> None:
        self.log.warning("some children cannot be ended; leaving without them")
        self.loop.stop()

    def _leave(self) -> None:
        self.loop.call_later(LAST_WORDS_S, self.loop.stop)

    def _close(self) -> None:
        for part in (self._control, self._exporter, self.link, self.loop):
            if part is not None:
                part.close()
        self._lock.release()

    # ------------------------------------------------------------------------------------------ who

    def _identity(self) -> Identity:
        return Identity(
            role=self.role.value,
            name=self.name,
            software=VERSION,
            machine_id=proc.machine_id(),
            boot_id=proc.boot_id(),
            nonce=os.urandom(8).hex(),
            address=f"{socket.gethostname()} pid {os.getpid()}",
        )

    def _credentials(self) -> tuple[KeyPair | None, bytes | None]:
        """The keys for the next connection: read anew each time, so that a repaired file is enough."""
        if self.settings.broker.startswith("ipc://"):
            return None, None
        try:
            ours = keys.load(Path(self.settings.key), secret=True)
            theirs = keys.load(Path(self.settings.broker_key), secret=False)
        except KeyFileError as error:
            raise ValueError(str(error)) from error
        return ours, theirs.public


def run(read: Callable[[], Settings], path: str, *, role: Role) -> int:
    """Run until told to end; the exit code. Raises `CannotStart`, `ConfigRefused`."""
    gc.disable()
    return Daemon(read, path, role=role, logger=Log()).run()


def _load() -> None:
    """Import what runs reporters: not before the connection is being made."""
    for name in ("agent.intake", "reporters.builtin", "reporters.supervisor", "reporters.watch"):
        importlib.import_module(f"xce.{name}")


def _prepare(settings: Settings) -> Lock:
    """Directories and the lock."""
    try:
        os.makedirs(settings.run_directory, mode=0o755, exist_ok=True)
        os.makedirs(settings.state_directory, mode=0o755, exist_ok=True)
        return Lock(f"{settings.run_directory}/agent.pid")
    except AlreadyRunning as error:
        raise CannotStart(str(error)) from error
    except OSError as error:
        hint = "; it needs root, or directories of its own (run_directory, state_directory)"
        raise CannotStart(f"cannot use {error.filename}: {error.strerror}{hint}") from error


def _own_name(settings: Settings, role: Role) -> str:
    """The host's name; of an external reporter, its key's."""
    if role is Role.AGENT:
        return socket.gethostname()
    try:
        return keys.load(Path(settings.key), secret=False).name
    except KeyFileError as error:
        raise CannotStart(f"cannot know whose values these are: {error}; or set 'name:'") from error
