"""The agent as a process: all parts on one loop, from start to stop.

The order of the start is the point: lock, connection, hello to the broker, the local socket; only then the
first reporter is started. Nothing here decides what is said or taken, and nothing waits: what must end before
the process does has a deadline. External reporters (`xce-reporter run`) are the same program in another role.
"""

import gc
import importlib
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xce.agent import config, identity, lock, status
from xce.agent.control import Control
from xce.agent.core import Core
from xce.agent.effect import Deliver, Effect, Judge, Learn, Ordered
from xce.agent.faults import Faults
from xce.agent.link import Link
from xce.agent.lock import CannotStart
from xce.agent.log import Log
from xce.agent.memory import Memory
from xce.agent.node import Node
from xce.agent.operations import Operations
from xce.agent.service import Service
from xce.agent.types import Types
from xce.linux import listen, proc
from xce.linux.loop import Loop, Timer
from xce.linux.reaper import Reaper
from xce.model import VERSION, configuration
from xce.model.address import host_port
from xce.model.claim import BindingState
from xce.model.configuration import AgentFile, ExternalFile
from xce.model.link import Phase
from xce.model.refusal import ConfigRefused
from xce.model.role import Role
from xce.prepare import journalnames
from xce.wire import journal
from xce.wire.keys import KeyFileError
from xce.wire.trust import Trust

if TYPE_CHECKING:
    from xce.agent.claims import Claims
    from xce.agent.crew import Crew
    from xce.agent.csi_source import CsiSource
    from xce.agent.metrics import Exporter
    from xce.model.message import BindingReport

BEGIN_S = 0.25
"""Reporters start after the hello, or after this long without a link."""
LOOK_S = 1.0
"""How often, at most, faults are looked for that announce themselves by nothing."""
ROUND_S = 5.0
"""How often is looked after what nobody tells of: that the local socket is still there."""
SETTLE_S = 0.001
"""After its last moment a value is stale."""
COLD_S = 10.0
"""The cold start is over after this long, whatever reporters have not been heard yet."""
MINUTE_S = 60.0
"""How often counters are brought up to date for the broker's metrics, and refused types asked about anew."""
KILL_S, STOP_S = 3.0, 4.5
"""A stop kills what is left after the first, and goes on without it after the second."""
CLAIMS_S = 1.0
"""For the thread of claims to end what it does, and for the writer's."""
LAST_WORDS_S = 0.05
"""For the goodbye to leave the socket."""

Settings = AgentFile | ExternalFile


class Daemon:
    """One agent or external reporter. `read` gives the configuration, again at each reload.

    Construction takes the lock. Raises `CannotStart`, `ConfigRefused`. `loop` has the clock.
    """

    def __init__(
        self,
        read: Callable[[], Settings],
        path: str,
        *,
        role: Role,
        logger: Log,
        loop: Loop | None = None,
    ) -> None:
        self.settings = settings = read()
        self._read, self.path, self.role, self.log = read, path, role, logger
        self.started = time.monotonic()
        self.faults = Faults(self)
        self.memory = Memory(settings.state_directory)
        self._locks = lock.take(settings.run_directory, self.memory.directory)
        try:
            self.name = identity.name_of(settings, role)
        except KeyFileError as error:
            way_out = "xce-reporter join BROKER --token FILE --name NAME, or `name:` in reporter.yaml"
            raise CannotStart(f"cannot know whose values these are: {error} ({way_out})") from error
        logger.host = self.name
        self.loop = loop or Loop()
        self.loop.on_error = self.faults.internal
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.on_signal(number, self.stop)
        self.loop.on_signal(signal.SIGHUP, self.reload)
        self.reaper = Reaper(self.loop)
        self.types = Types(self.memory.types(), alone=not settings.broker)
        self.node = Node(self.types, generations=self.memory.generations(), cold=True)
        who = identity.identity(self.name, role)
        self.claims = self._serve_claims(who.boot_id)
        holdings = self.claims.holdings if self.claims else None
        logger.claims = holdings.claims if holdings else {}
        self.core = Core(who, self.node, now=self.loop.now(), random=random.uniform, holdings=holdings)
        self.loop.after_turn(self._settle)
        self.trust = Trust(lambda: identity.broker_key(self.settings))
        self.link = Link(
            self.loop,
            self.core,
            endpoint=settings.broker,
            credentials=lambda: identity.credentials(self.settings, self.trust),
            trust=self.trust,
            on_effect=self._on_effect,
        )
        self.loop.after_turn(self._after_turn)
        self.operations = Operations(self)
        self.crew: Crew | None = None
        """All that gives values; None until hello was said."""
        self.csi: CsiSource | None = None
        self._service = Service()
        self.control: Control | None = None
        self._exporter: Exporter | None = None
        self._expiry: Timer | None = None
        self._expiry_at = math.inf
        """When a value may be over its time, if a turn is planned for that."""
        self._stopping = False
        self._seen: tuple[object, ...] = ()
        self._look_at = 0.0
        """What was looked at last for the log and the service manager, and when all is looked at anew."""

    def run(self) -> int:
        """Serve until a signal; the exit code."""
        listen.raise_limit()
        self.link.turn()
        importlib.import_module("xce.agent.crew")  # while the sockets exchange keys
        self.loop.call_later(BEGIN_S, self._begin)
        self.loop.run()
        self._close()
        return 0

    # ---------------------------------------------------------------------------------------- start

    def _begin(self) -> None:
        """Everything that may wait until hello was said."""
        if self.crew is not None or self._stopping:
            return
        from xce.agent.crew import Crew  # noqa: PLC0415 - see `run`

        self.log.notice(f"{self.role.value} {self.name} {VERSION} runs, pid {os.getpid()}")
        self._round()
        self.crew = Crew(
            self.loop,
            self.reaper,
            self.node,
            self.memory,
            name=self.name,
            external=self.role is Role.REPORTER,
            state_directory=self.memory.directory or f"{self.settings.run_directory}/state",
            group=self.settings.cgroup,
        )
        self.crew.begin(self.settings.reporters, _discovery(self.settings))
        self._begin_csi()
        self.faults.look_at_scratch()
        self._open_metrics()
        self.loop.call_later(COLD_S, self.node.warm_up)
        self.loop.call_later(MINUTE_S, self._each_minute)
        self._service.ready()
        if (every := self._service.watchdog_s()) is not None:
            self._kick_watchdog(every)
        gc.freeze()  # what a start leaves is for ever: no later collection looks at it again
        gc.enable()

    def _begin_csi(self) -> None:
        """Ask CSI plugins, if there are any, what they say of this node."""
        settings = self.settings
        if self.claims is None or not isinstance(settings, AgentFile) or self.crew is None:
            return
        if settings.claims.csi.plugins or settings.claims.csi.registration:
            from xce.agent.csi_source import CsiSource  # noqa: PLC0415 - for nodes with plugins
            from xce.prepare.csi.survey import Survey  # noqa: PLC0415

            self.csi = CsiSource(self.loop, self.node, self.claims, self.crew.apply_types, survey=Survey())
            self.csi.start()

    def _round(self) -> None:
        """Listen on the local socket, again if somebody has removed it."""
        if self._stopping:
            return
        path = f"{self.settings.run_directory}/agent.sock"
        try:
            if self.control is None:
                self.control = Control(self.loop, path, self.operations.table())
            elif self.control.missing():
                self.log.notice(f"{path} was removed; made anew")
                self.control.listen()
            self.faults["local socket"] = ""
        except OSError as error:
            self.faults["local socket"] = f"cannot listen at {path}: {error.strerror or error}"
        self.loop.call_later(ROUND_S, self._round)

    def _open_metrics(self) -> None:
        wanted = self.settings.metrics if isinstance(self.settings, AgentFile) else ""
        if self._exporter is not None:
            self._exporter.close()
            self._exporter = None
        self.faults["metrics"] = ""
        if (address := host_port(wanted)) is None:
            return
        from xce.agent.metrics import Exporter  # noqa: PLC0415 - 10 MB, for sites that ask for it

        try:
            self._exporter = Exporter(self.loop, *address, self.status)
        except OSError as error:
            self.faults["metrics"] = f"cannot listen on {wanted}: {error.strerror}"

    def _each_minute(self) -> None:
        if self.crew is not None:
            self.crew.refresh()
        self.types.ask_about_refused()
        self.memory.write_again()
        self.faults.look_at_scratch()
        self.loop.call_later(MINUTE_S, self._each_minute)

    def _kick_watchdog(self, every: float) -> None:
        self._service.alive()
        self.loop.call_later(every, self._kick_watchdog, every)

    # --------------------------------------------------------------------------------------- running

    def status(self) -> dict[str, Any]:
        """The status document; see `status.py`."""
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
            "reporters": self.crew.documents(now) if self.crew else [],
            "bindings": self.claims.holdings.documents() if self.claims else [],
            "claims": self.claims.document() if self.claims else None,
        }
        document["trouble"] = status.troubles(document, self.faults.all() | self.faults.bindings())
        return document

    def _on_effect(self, effect: Effect) -> None:
        if isinstance(effect, Learn):
            self.types.learn(effect.types)
            self.memory.keep_types(effect.types)
        elif isinstance(effect, Judge):
            self.types.judge(effect.types)
        elif isinstance(effect, Deliver):
            self.operations.deliver(effect.answer)
        elif isinstance(effect, Ordered) and self.claims is not None:
            self.claims.ordered(effect.order)
        if self.crew is not None:
            self.crew.apply_types()
        else:
            self.node.apply_types(self.loop.now())

    def _serve_claims(self, boot_id: str) -> "Claims | None":
        """The claims of this node, if it takes or has any: read from its journal before the first hello."""
        settings, directory = self.settings, self.memory.directory
        if not isinstance(settings, AgentFile) or not directory:
            return None
        taking = settings.claims.enabled
        if not taking and not _has_claims(directory):
            return None
        from xce.agent.claims import Claims, executor_of  # noqa: PLC0415 - 5 MB, for nodes that take claims

        make = executor_of(settings.claims, directory, boot_id, self.mark)
        claims = Claims(self.loop, make, self.node.inventory, self._greet_anew, taking=taking)
        claims.tell = self._log_binding
        claims.tidied = lambda orphan: self.log.notice(f"no claim owned it, taken away: {orphan}")
        return claims

    @staticmethod
    def mark(_point: str) -> None:
        """Passed wherever a crash would matter for a claim: there tests let things happen."""

    def _log_binding(self, name: str, report: "BindingReport") -> None:
        write = self.log.warning if report.state is BindingState.FAILED else self.log.notice
        about = f"binding {name}"
        write(": ".join(filter(None, (about, report.state.value, report.reason))), about)

    def _greet_anew(self) -> None:
        """The journal was read after the first hello: the broker is to be told."""
        if hasattr(self, "link") and self.core.phase is not Phase.DISCONNECTED:
            self.core.reopen(self.loop.now())

    def _settle(self, now: float) -> None:
        """Before the link speaks: what is over its time is not told as fresh."""
        if self.claims is not None:
            self.claims.turn()
        table = self.node.table
        if table.soonest < now:
            table.settle(now)
        if table.soonest + SETTLE_S < self._expiry_at:
            self._expire_at(table.soonest + SETTLE_S)

    def _expire_at(self, when: float) -> None:
        """Have a turn then; one that was planned for later is not needed."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry, self._expiry_at = self.loop.call_at(when, self._expired), when

    def _expired(self) -> None:
        self._expiry_at = math.inf

    def _after_turn(self, now: float) -> None:
        phase = self.core.phase
        seen = (phase, self.core.trouble, self.node.changes)
        if seen == self._seen and now < self._look_at:
            return
        self._seen, self._look_at = seen, now + LOOK_S
        if self.crew is None and phase in {Phase.GREETING, Phase.SYNCED, Phase.REFUSED}:
            self.loop.call_later(0, self._begin)
        self.faults.log(now, stopping=self._stopping)
        standing = f", host {self.core.standing.state}" if self.core.standing.state else ""
        bad = sum(bool(state.cause) for state in self.node.states.values())
        self._service.status(f"{phase.value}{standing}, {len(self.node.states)} reporters, {bad} in trouble")

    # ---------------------------------------------------------------------------------------- reload

    def reload(self) -> None:
        """Read the configuration anew. A file that does not fit changes nothing."""
        self._service.reloading()
        try:
            wanted = self._read()
            if wanted != self.settings:
                config.refuse_blank(self.path)
        except ConfigRefused as refused:
            self.faults["configuration"] = f"not taken: {'; '.join(str(error) for error in refused.errors)}"
        else:
            fixed = config.fixed_changes(self.settings, wanted)
            before, self.settings = self.settings, config.with_fixed(self.settings, wanted)
            told = f"{', '.join(fixed)} changed: takes effect at the next start"
            self.faults["configuration"] = told if fixed else ""
            self._apply(before)
            self.log.notice("configuration read anew")
        self._service.ready()

    def _apply(self, before: Settings) -> None:
        """Go by `settings`, which were `before`."""
        now = self.settings
        self.types.alone = not now.broker
        same = (now.broker, now.key, now.broker_key) == (before.broker, before.key, before.broker_key)
        if not same or self.core.phase is not Phase.SYNCED:  # a key may be new under its old path
            self.link.redirect(now.broker)
        if self.crew is None:
            return
        if now.reporters != before.reporters:
            self.crew.change(now.reporters)
        wanted = _discovery(now)
        if wanted is not None and wanted != _discovery(before):
            self.crew.change_discovery(wanted)
        self._open_metrics()

    # ------------------------------------------------------------------------------------------ stop

    def stop(self) -> None:
        """Say goodbye, end all children, and leave; at once if asked again."""
        if self._stopping:
            self._kill()
            self.loop.stop()
            return
        self._stopping = True
        self.log.notice("stopping")
        self._service.stopping()
        self.core.goodbye(0, self.loop.now())
        if self.csi is not None:
            self.csi.stop()
        self.loop.call_later(KILL_S, self._kill)
        self.loop.call_later(STOP_S, self._give_up)
        if self.crew is not None:
            self.crew.stop(self._leave)
        else:
            self._leave()

    def _kill(self) -> None:
        if self.crew is not None:
            self.crew.kill()

    def _give_up(self) -> None:
        self.log.warning("some children cannot be ended; leaving without them")
        self.loop.stop()

    def _leave(self) -> None:
        self.loop.call_later(LAST_WORDS_S, self.loop.stop)

    def _close(self) -> None:
        if self.claims is not None and not self.claims.close(CLAIMS_S):
            self.log.warning("the disk of the journal of claims does not answer; leaving without it")
        if not self.memory.writer.close(CLAIMS_S):
            self.log.warning("the disk of the state directory does not answer; leaving without it")
        for part in (self.control, self._exporter, self.link, self.loop):
            if part is not None:
                part.close()
        for held in self._locks:
            held.release()


def run(read: Callable[[], Settings], path: str, *, role: Role) -> int:
    """Run until told to end; the exit code. Raises `CannotStart`, `ConfigRefused`."""
    gc.disable()
    log = Log(send=journal.listening(sys.stderr, f"xce-{role.value}"))
    return Daemon(read, path, role=role, logger=log).run()


def _discovery(settings: Settings) -> configuration.Discovery | None:
    return settings.discovery if isinstance(settings, AgentFile) else None


def _has_claims(directory: str) -> bool:
    """Whether there are claims on record, or nobody can say."""
    if not journalnames.exists(directory):
        return False
    from xce.prepare import journal  # noqa: PLC0415 - not for a node that never took claims

    try:
        return bool(journal.live(directory))
    except ValueError:
        return True
