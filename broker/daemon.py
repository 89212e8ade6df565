"""The broker as a process: files, keys, the store, systemd, signals. What it decides is in `core/`.

Anything that is wrong at the start ends it with words on stderr and exit status 1. Later nothing does: files
that do not fit are refused whole and what was good stays in force, shown as trouble by `xce-broker status`.
"""

import gc
import os
import resource
import secrets
import signal
import socket
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import msgspec

from xce.broker.audit import AuditLog
from xce.broker.background import Background
from xce.broker.commits import answered
from xce.broker.config import filled, read_config, read_site
from xce.broker.core.ledger import Ledger
from xce.broker.core.machine import Broker
from xce.broker.core.peer import Peer
from xce.broker.keeping import Keeper
from xce.broker.logs import log, log_to_stderr
from xce.broker.server import Server
from xce.broker.store import Loaded, StoreError
from xce.broker.store.sqlite import SqliteStore
from xce.model import VERSION
from xce.model.configuration import BrokerFile
from xce.model.fact import KeyAdded
from xce.model.refusal import ConfigError, ConfigRefused
from xce.model.site import Site
from xce.wire import keys
from xce.wire.notify import notifier
from xce.wire.router import ListenError, Router, wait_to_be_scheduled
from xce.wire.trust import next_to
from xce.wire.zap import Authenticator

AUDIT_S = 0.1
STOP_S = 10.0
SWITCH_S = 0.0005
"""How long the loop waits at most for a thread that computes: the store's, the cache's."""
START_S = 120
"""More time for a start that gets on; the service manager ends one that does not."""
FACTS = 20_000
"""After so many facts a start says again that it gets on."""
SPARE_FILES = 256
"""Descriptors for everything that is no peer."""


def run(
    config: Path,
    *,
    start_empty: bool = False,
    router: type[Router[Peer]] = Router,
    store: type[SqliteStore] = SqliteStore,
) -> int:
    """Serve until TERM or INT; 0 after a clean stop, 1 when it could not start.

    `router` opens the endpoints, `store` the store.
    """
    log_to_stderr()
    sys.setswitchinterval(SWITCH_S)
    gc.disable()  # a start makes half a million objects that stay; `Server.run` goes on with it
    try:
        settings = read_config(config)
        with ExitStack() as stack:
            Daemon(config, settings, stack, store, start_empty=start_empty).run(router)
    except ConfigRefused as refused:
        for error in refused.errors:
            print(f"xce-broker: {error}", file=sys.stderr)
        return 1
    except (keys.KeyFileError, ListenError, StoreError) as error:
        hint = "; `xce-broker doctor` says how it is made" if isinstance(error, keys.KeyFileError) else ""
        print(f"xce-broker: {error}{hint}", file=sys.stderr)
        return 1
    except OSError as error:
        what = f"cannot use {error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"xce-broker: {what}", file=sys.stderr)
        return 1
    return 0


@dataclass
class _Signals:
    """What signals have asked for."""

    stop: bool = False
    reload: bool = False


class Daemon:
    """One start of the broker. Everything that it opens is closed by the stack, in reverse order."""

    def __init__(
        self,
        path: Path,
        config: BrokerFile,
        stack: ExitStack,
        opened: type[SqliteStore],
        *,
        start_empty: bool,
    ) -> None:
        self.path, self.config, self._stack = path, config, stack
        self._signals = _Signals()
        self._notify = notifier() or (lambda _text: None)
        self._signal_socket = self._catch_signals()
        self._key = keys.load(Path(config.key), secret=True) if config.listen else None
        site = read_site(config)
        self._filled = filled(str(path), config.resources, config.hosts)
        """Files that said something when they were last taken up."""
        self.config = self._with_room(config)
        state = Path(config.state_directory)
        background = Background(say=lambda text: log.warning("%s", text))
        stack.callback(background.close, STOP_S)
        self._keeper = Keeper(state, background)
        self._audit = AuditLog(config.audit, background, head=state / "audit.head", every_s=AUDIT_S)
        self._background = background
        self._getting_on("checking the store")
        store = opened(state, start_empty=start_empty)
        stack.callback(store.close, STOP_S)
        self._getting_on("reading the store")
        loaded = store.load()
        self._audit.recover(loaded.facts)
        self.broker = self._new_broker(site, loaded)
        self._server = Server(self.broker, store, self._audit)

    def run(self, opened: type[Router[Peer]]) -> None:
        """Serve until a signal says stop."""
        now = time.monotonic()
        self._server.begin(self.broker.announce(self._next_key()))
        self._server.begin(self.broker.start(now))
        self._server.begin(self.broker.add_keys(self._accepted_keys()))
        wait_to_be_scheduled()
        zap = Authenticator(self.broker.accepts) if self.config.listen else None
        if zap is not None:
            self._stack.callback(zap.close)
        router = opened(
            listen=self.config.listen,
            local=self.config.local,
            key=self._key,
            admit=self._server.admit,
            gone=self._server.ended,
            most=resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_FILES // 2,
        )
        self._stack.callback(router.close)
        self._server.listen(router, zap)
        for endpoint in router.endpoints:
            log.info("listening on %s", endpoint)
        self._serve_metrics()
        self._notify(f"READY=1\nSTATUS={self._status()}")
        self._server.run(self)
        self._notify("STOPPING=1\nSTATUS=stopping")
        self._server.finish()
        self._keeper.keep_all(self.broker)

    def _serve_metrics(self) -> None:
        """Open the metrics' endpoint; without it the broker serves all the same, and says what is missing."""
        if not self.config.metrics:
            return
        from xce.broker.line import Broker as Address  # noqa: PLC0415 - 6 MB that only a scraped broker needs
        from xce.broker.metrics import Exporter, MetricsError  # noqa: PLC0415

        try:
            if not self.config.local:
                raise MetricsError(
                    "cannot serve metrics without the local socket: set 'local' in broker.yaml"
                )
            exporter = Exporter(self.config.metrics, Address(f"ipc://{self.config.local}"))
        except MetricsError as error:
            log.warning("%s", error)
            self.broker.questions.trouble["metrics"] = str(error)
        else:
            self._stack.callback(exporter.close)
            exporter.start()
            log.info("metrics at http://%s/metrics", self.config.metrics)

    # ------------------------------------------------------------------------------- the server's chores

    def fileno(self) -> int:
        """Readable when there are signals."""
        return self._signal_socket.fileno()

    def signals(self) -> bool:
        """Do what signals asked for; False: stop."""
        if self._signals.reload:
            self._signals.reload = False
            self._reload()
        try:
            while self._signal_socket.recv(64):
                pass
        except BlockingIOError:
            pass
        return not self._signals.stop

    def second(self, now: float) -> None:
        """The watchdog, the state for `systemctl status`, the caches."""
        self._notify(f"WATCHDOG=1\nSTATUS={self._status()}")
        trouble = self.broker.questions.trouble
        for gone in [key for key in trouble if key.startswith("background ")]:
            del trouble[gone]
        for name, words in self._background.faults().items():
            trouble[f"background {name}"] = words
        self._keeper.second(self.broker, now)

    # ------------------------------------------------------------------------------------------- start

    def _new_broker(self, site: Site, loaded: Loaded) -> Broker:
        ledger = Ledger()
        gc.disable()  # all of it is there to stay: looking for garbage meanwhile takes five times as long
        try:
            for number, fact in enumerate(loaded.facts):
                if number % FACTS == 0:
                    self._getting_on(f"took up {number} of {len(loaded.facts)} facts")
                ledger.apply(fact)
        finally:
            gc.enable()
        broker = Broker(
            self.config,
            ledger,
            site,
            incarnation=secrets.token_hex(4),
            wall=_wall,
            now=time.monotonic(),
            answers=answered(loaded.answers),
            least_epoch=self._keeper.last_epoch + 1,
            own_key=self._key.public.decode() if self._key else "",
            software=f"xce-broker {VERSION}",
            pid=os.getpid(),
        )
        self._keeper.restore(broker)
        return broker

    def _getting_on(self, what: str) -> None:
        """A large store takes its time: the start may go on as long as there is progress."""
        self._notify(f"EXTEND_TIMEOUT_USEC={START_S}000000\nSTATUS={what}")

    def _with_room(self, config: BrokerFile) -> BrokerFile:
        """The settings, with no more peers than there can be descriptors for; raises the limit for them."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = config.max_peers + SPARE_FILES
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft < limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        if limit == wanted:
            return config
        most = max(1, limit - SPARE_FILES)
        log.warning("serving at most %d peers: only %d files may be open (LimitNOFILE)", most, limit)
        return msgspec.structs.replace(config, max_peers=most)

    def _catch_signals(self) -> socket.socket:
        ours, wake = socket.socketpair()
        for end in (ours, wake):
            end.setblocking(False)
            self._stack.callback(end.close)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._stack.callback(signal.set_wakeup_fd, -1)

        def stop(_number: int, _frame: object) -> None:
            self._signals.stop = True

        def reload(_number: int, _frame: object) -> None:
            self._signals.reload = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGHUP, reload)
        return ours

    # ------------------------------------------------------------------------------------------ reload

    def _reload(self) -> None:
        """Take up files that have changed; what does not fit is refused whole and told."""
        self._notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        trouble = self.broker.questions.trouble
        try:
            config = read_config(self.path)
            named = (str(self.path), config.resources, config.hosts)
            said = filled(*named)
            if emptied := sorted((self._filled & set(named)) - said):
                # A file that an editor or a full disk has just cut to nothing must not empty the cluster.
                hint = "to mean it, start the broker anew"
                problem = "was not empty before, and is empty or not there now"
                raise ConfigRefused([ConfigError(path, 0, "", problem, hint) for path in emptied])
            site = read_site(config)
        except (ConfigRefused, OSError) as error:
            words = "; ".join(map(str, error.errors)) if isinstance(error, ConfigRefused) else str(error)
            log.warning("files are refused, the old ones stay in force: %s", words)
            trouble["files"] = f"files are refused, the old ones stay in force: {words}"
        else:
            trouble.pop("files", None)
            self._filled = said
            self._server.perform(self.broker.reload(site, time.monotonic(), config=self._with_room(config)))
            log.info("took up broker.yaml, resources.yaml and hosts.yaml")
        self._server.perform(self.broker.announce(self._next_key()))
        self._server.perform(self.broker.add_keys(self._accepted_keys()))
        self._notify(f"READY=1\nSTATUS={self._status()}")

    def _next_key(self) -> str:
        """The public key that is to be ours soon, '' if none is."""
        path = Path(next_to(self.config.key)).with_suffix(".pub")
        trouble = self.broker.questions.trouble
        trouble.pop("next key", None)
        try:
            found = keys.load(path, secret=False).public.decode() if path.exists() else ""
            return found if found != self.broker.own_key else ""
        except keys.KeyFileError as error:
            trouble["next key"] = f"it is not announced: {error}"
            return ""

    def _accepted_keys(self) -> list[KeyAdded]:
        """Keys of the directory of accepted ones; those that cannot be used are trouble."""
        found, problems = keys.load_directory(Path(self.config.accepted_keys))
        trouble = self.broker.questions.trouble
        trouble.pop("keys", None)
        if problems:
            trouble["keys"] = "; ".join(problems)
            for problem in problems:
                log.warning("%s", problem)
        return [
            KeyAdded(name=key.name, role=key.role, public=key.public.decode(), hosts=list(key.hosts))
            for key in found
        ]

    # ------------------------------------------------------------------------------------------ status

    def _status(self) -> str:
        quality = self.broker.state.supply.quality()
        available = quality.hosts.get("available", 0)
        return f"{available} of {sum(quality.hosts.values())} hosts available"


@lru_cache(maxsize=1)
def _written(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat(timespec="seconds")


def _wall() -> str:
    return _written(int(time.time()))
