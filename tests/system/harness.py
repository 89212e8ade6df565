"""Real brokers and agents of a test: started in a folder of their own, with keys, and gone afterwards.

    def test_something(site: Site) -> None:        # fixture in conftest.py
        site.broker.start()
        node = site.agent("node1").start()
        node.script("hello", "#!/bin/sh\necho '{\"a\": 1}'\n", types="[{name: a, kind: numeric}]")
        site.until(lambda: site.value("node1", "a") == 1)

Everything runs as real processes over CURVE on loopback, with the distribution's programs alone. Each site
has a control group for its reporters; what is still in it at the end fails the test. Nothing waits without a
deadline, and what did not happen in time is told with both programs' logs.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from xce.agent.cli import client
from xce.broker.client import Broker, Client
from xce.broker.mirror import Mirror
from xce.linux import cgroup
from xce.linux.cgroup import Cgroup
from xce.model.value import Reading
from xce.wire import keys
from xce.wire.keys import KeyPair

T = TypeVar("T")

WITHIN_S = float(os.environ.get("XCE_TEST_WITHIN_S", "20"))


class Program:
    """One process of the product, started, stopped and started again by the test."""

    def __init__(self, name: str, folder: Path, argv: list[str], environment: Mapping[str, str]) -> None:
        self.name, self.folder, self.argv = name, folder, argv
        self.environment = dict(environment)
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.prefix: list[str] = []
        """Put before the command: `ip netns exec NAME`, `prlimit ...`."""

    def start(self) -> Self:
        """Start it; it may take a moment to be of use."""
        assert self.process is None or self.process.poll() is not None, f"{self.name} is running"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, *self.argv],
                env={"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd(), **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, within_s: float = WITHIN_S) -> int:
        """Ask it to end; its exit status."""
        if self.running():
            self.signal(signal.SIGTERM)
        return self.ended(within_s)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self.running():
            self.signal(signal.SIGKILL)
            self.ended()

    def ended(self, within_s: float = WITHIN_S) -> int:
        """Wait for its end; its exit status."""
        assert self.process is not None
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {within_s} s\n{self.tail()}") from None

    def tail(self, lines: int = 25) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"--- {self.name}", *text[-lines:]])


class BrokerProgram(Program):
    """`xce-broker run`."""

    def __init__(self, site: "Site") -> None:
        folder = site.folder / "broker"
        for part in ("state", "run", "accepted"):
            (folder / part).mkdir(parents=True)
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.settings: dict[str, Any] = {
            "listen": [self.endpoint],
            "local": str(folder / "run" / "broker.sock"),
            "key": str(folder / "broker.key"),
            "accepted_keys": str(folder / "accepted"),
            "state_directory": str(folder / "state"),
            "resources": str(folder / "resources.yaml"),
            "hosts": str(folder / "hosts.yaml"),
            "heartbeat": 1,
            "rejoin": 20,
            "discovered": "admit",
            "metrics": "",
        }
        self.key = keys.new("broker", "broker")
        keys.save(self.key, folder / "broker.key")
        keys.save(public(self.key), folder / "broker.pub")
        self.resources: dict[str, Any] = {}
        self.hosts: dict[str, Any] = {}
        argv = [*python("xce.broker.cli"), "run", "--config", str(folder / "broker.yaml")]
        super().__init__("broker", folder, argv, {})
        self.accepted = folder / "accepted"

    def start(self) -> Self:
        """Start it, and return when it listens."""
        self.begin()
        deadline = time.monotonic() + WITHIN_S
        while self.running() and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(self.endpoint.rpartition(":")[2]))) == 0:
                    return self
            time.sleep(0.02)
        raise AssertionError(f"the broker does not listen\n{self.tail()}")

    def begin(self) -> Self:
        """Start it, and return at once."""
        self.configure()
        return super().start()

    def configure(self) -> None:
        """Write the configuration as it stands."""
        for name, content in (
            ("broker", self.settings),
            ("resources", self.resources),
            ("hosts", self.hosts),
        ):
            (self.folder / f"{name}.yaml").write_text(json.dumps(content))  # JSON is YAML

    def accept(self, key: KeyPair) -> None:
        """Have a key's public half accepted at the next start (or SIGHUP)."""
        keys.save(public(key), self.accepted / f"{key.name}-{secrets.token_hex(3)}.pub")


class AgentProgram(Program):
    """`xce-agent run` of one host; with `external` `xce-reporter run`."""

    def __init__(self, site: "Site", name: str, key: KeyPair, *, external: bool = False) -> None:
        folder = site.folder / f"agent-{name}-{secrets.token_hex(2)}"
        for part in ("state", "run", "reporters.d"):
            (folder / part).mkdir(parents=True)
        self.host, self.key = name, key
        keys.save(key, folder / "agent.key")
        keys.save(public(site.broker.key), folder / "broker.pub")
        self.settings: dict[str, Any] = {
            "broker": site.broker.endpoint,
            "broker_key": str(folder / "broker.pub"),
            "key": str(folder / "agent.key"),
            "name": name,
            "state_directory": str(folder / "state"),
            "run_directory": str(folder / "run"),
            "cgroup": site.cgroup_of(folder.name),
            "reporters": {"directory": str(folder / "reporters.d"), "user": "nobody", "load_indices": False},
            **({} if external else {"discovery": {"enabled": False}}),
        }
        self.reporters = folder / "reporters.d"
        self.socket = str(folder / "run" / "agent.sock")
        entry = "xce.agent.reporter_cli" if external else "xce.agent.cli"
        argv = [*python(entry), "run", "--config", str(folder / "agent.yaml")]
        super().__init__(f"agent {name}", folder, argv, {"STATE_DIRECTORY": str(folder / "state")})

    def start(self) -> Self:
        self.configure()
        return super().start()

    def configure(self) -> None:
        """Write the configuration as it stands."""
        (self.folder / "agent.yaml").write_text(json.dumps(self.settings))

    def script(self, name: str, text: str, **settings: Any) -> Path:
        """Put a reporter into place, as an installer would: whole, by renaming."""
        if settings:
            replace(self.reporters / f"{name}.yaml", json.dumps(settings), 0o644)
        return replace(self.reporters / name, text, 0o755)

    def ask(self, **request: Any) -> dict[str, Any]:
        """A question over the local socket."""
        return client.ask(self.socket, **request)

    def status(self) -> dict[str, Any]:
        """The agent's status; {} while it does not answer."""
        try:
            return self.ask(op="status")
        except client.NotRunning:
            return {}

    def reporter(self, name: str) -> dict[str, Any]:
        """One reporter of the status; {} if it is not there."""
        return next((one for one in self.status().get("reporters", ()) if one["name"] == name), {})

    def command(self, *argv: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
        """Run an `xce-agent` command against this agent."""
        return subprocess.run(
            [*python("xce.agent.cli"), *argv],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.getcwd(),
                "XCE_AGENT_SOCKET": self.socket,
                **self.environment,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )


class Site:
    """A broker and any number of agents; a context manager that leaves nothing behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agents: list[AgentProgram] = []
        self.others: list[Program] = []
        self.cgroup: Cgroup | None = None
        own = cgroup.own()  # below it, `./dev test` sweeps what a test that was killed has left
        if os.geteuid() == 0 and own and own.writable():
            self.cgroup = own.child(f"xce-test-{os.getpid()}-{secrets.token_hex(3)}")
            self.cgroup.create()
        self.broker = BrokerProgram(self)
        self.admin = self.key("tester", "admin")
        self._client: Client | None = None
        self._mirror: Mirror | None = None

    def cgroup_of(self, name: str) -> str:
        """The path of a control group for one agent; '' if there can be none."""
        return f"{self.cgroup.path}/{name}" if self.cgroup else ""

    def key(self, name: str, role: str, *, hosts: tuple[str, ...] = (), accept: bool = True) -> KeyPair:
        """A new key, accepted by the broker from its next start on."""
        key = keys.new(name, role, hosts)
        if accept:
            self.broker.accept(key)
        return key

    def agent(self, name: str, *, key: KeyPair | None = None) -> AgentProgram:
        """An agent that is not started yet; its key is accepted if the broker starts (or reloads) later."""
        agent = AgentProgram(self, name, key or self.key(name, "agent", hosts=(name,)))
        self.agents.append(agent)
        return agent

    def external(self, name: str) -> AgentProgram:
        """An external reporter of this identity, not started yet."""
        reporter = AgentProgram(self, name, self.key(name, "reporter"), external=True)
        self.agents.append(reporter)
        return reporter

    def fleet(
        self, count: int, *, prefix: str = "sim", interval: float = 15, machine: str = "", claims: str = ""
    ) -> Program:
        """`xce-reporter fleet`: simulated hosts, not started yet; to be made before the broker starts."""
        key = self.key(prefix, "agent", hosts=(f"{prefix}*",))
        folder = self.folder / f"fleet-{prefix}"
        folder.mkdir()
        keys.save(key, folder / "fleet.key")
        argv = [*python("xce.agent.reporter_cli"), "fleet", "--broker", self.broker.endpoint]
        argv += ["--key", str(folder / "fleet.key"), "--broker-key", str(self.broker.folder / "broker.pub")]
        argv += ["--prefix", prefix, "--interval", str(interval), "--machine", machine]
        argv += [*(["--claims", claims] if claims else []), str(count)]
        program = Program(f"fleet {prefix}", folder, argv, {})
        self.others.append(program)
        return program

    def provider(self, name: str, rules: str) -> Program:
        """`xce-broker provide`: a simulated provider, not started yet."""
        folder = self.folder / f"provider-{name}"
        folder.mkdir()
        keys.save(self.key(name, "provider"), folder / "provider.key")
        argv = [*python("xce.broker.cli"), "provide", rules, "--broker", self.broker.endpoint]
        argv += ["--key", str(folder / "provider.key")]
        argv += ["--broker-key", str(self.broker.folder / "broker.pub")]
        program = Program(f"provider {name}", folder, argv, {})
        self.others.append(program)
        return program

    def client(self, key: KeyPair | None = None, **options: Any) -> Client:
        """A client of the running broker; the caller closes it."""
        key = key or self.admin
        return Client(Broker(self.broker.endpoint, key=key, broker_key=self.broker.key.public), **options)

    def snapshot(self) -> Mirror:
        """What the broker holds now."""
        with self.client() as one:
            return one.snapshot()

    def values(self, host: str) -> dict[str, Reading]:
        """What the broker holds of a host; {} if it does not know it."""
        place = self.snapshot().locations.get(f"host:{host}")
        return dict(place.values) if place else {}

    def value(self, host: str, name: str) -> Reading | None:
        """What the broker holds of one name."""
        return self.values(host).get(name)

    def until(
        self, condition: Callable[[], T | None], *, within_s: float = WITHIN_S, every_s: float = 0.05
    ) -> T:
        """Wait until the condition holds and return what it gave; fails with the logs after the deadline."""
        deadline = time.monotonic() + within_s
        last: object = None
        while time.monotonic() < deadline:
            try:
                last = result = condition()
                if result:
                    return result
            except Exception as error:  # noqa: BLE001 - a broker that is just starting, for example
                last = error
            time.sleep(every_s)
        programs = "\n".join(program.tail() for program in (self.broker, *self.agents, *self.others))
        raise AssertionError(f"did not happen within {within_s} s; last: {last!r}\n{programs}")

    def close(self) -> None:
        """End everything and fail if a reporter outlived its agent."""
        for program in (*self.agents, *self.others, self.broker):
            if program.running():
                program.signal(signal.SIGTERM)
        for program in (*self.agents, *self.others, self.broker):
            try:
                if program.process is not None:
                    program.ended()
            finally:
                program.kill()
        left = self.cgroup.pids() if self.cgroup else []
        if self.cgroup:
            self.cgroup.kill()
            deadline = time.monotonic() + WITHIN_S
            while not self.cgroup.remove() and time.monotonic() < deadline:
                time.sleep(0.01)
        assert not left, f"processes {left} outlived their agents"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def python(entry: str) -> list[str]:
    """The command that an installed script of this entry point is."""
    return [sys.executable, "-c", f"import sys; from {entry} import main; sys.exit(main())"]


def public(key: KeyPair) -> KeyPair:
    """A key without its secret."""
    return KeyPair(name=key.name, role=key.role, public=key.public, hosts=key.hosts)


def replace(path: Path, text: str, mode: int) -> Path:
    """Write a file and rename it into place."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.chmod(mode)
    new.rename(path)
    return path


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
