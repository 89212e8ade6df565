"""The product's own programs, started as an admin would: from their commands and configuration files."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bench.children import Child, connects, free_port, python, started, wait_for
from xce.model.resource import ResourceType
from xce.wire import keys

_REMEMBERS_S = 2.0
AGENT_KEY, CONTROLLER_KEY, BROKER_KEY = "agent", "controller", "broker"


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's files and addresses."""

    directory: Path
    local: str
    """Path of its unix socket."""
    port: int = 0
    """Of its CURVE endpoint on loopback; 0: none."""

    @property
    def keys(self) -> Path:
        """Directory with the keys of the broker, of agents (all hosts) and of a controller."""
        return self.directory / "keys"

    @property
    def state(self) -> Path:
        """Its state directory."""
        return self.directory / "state"

    @property
    def configuration(self) -> Path:
        """Its broker.yaml."""
        return self.directory / "broker.yaml"


def new_broker(
    directory: Path,
    *,
    hosts: Sequence[str] = (),
    types: Sequence[ResourceType] = (),
    curve: bool = False,
    settings: Mapping[str, object] | None = None,
) -> Broker:
    """Write the files of a broker into an existing directory. `hosts` may be ranges: `node[00000-00499]`."""
    port = free_port() if curve else 0
    broker = Broker(directory=directory, local=str(directory / "broker.sock"), port=port)
    accepted = directory / "accepted"
    for path in (directory, broker.keys, accepted, directory / "state"):
        path.mkdir(mode=0o755, exist_ok=True)
    if curve:
        _new_keys(broker.keys, accepted)
    _write(
        broker.configuration,
        {
            "listen": [f"tcp://127.0.0.1:{port}"] if curve else [],
            "local": broker.local,
            "key": str(broker.keys / "broker.key"),
            "accepted_keys": str(accepted),
            "state_directory": str(directory / "state"),
            "resources": str(directory / "resources.yaml"),
            "hosts": str(directory / "hosts.yaml"),
            "metrics": "",
            "audit": str(directory / "audit.log"),
            **(settings or {}),
        },
    )
    _write(directory / "resources.yaml", {"types": [msgspec.to_builtins(kind) for kind in types]})
    _write(directory / "hosts.yaml", {"hosts": [{"name": name} for name in hosts]})
    return broker


def existing_broker(directory: Path) -> Broker:
    """A broker (without a CURVE endpoint) whose files `new_broker` wrote."""
    return Broker(directory=directory, local=str(directory / "broker.sock"))


@contextmanager
def running(broker: Broker, *, module: str = "") -> Iterator[Child]:
    """The broker's process, accepting connections; `module`: another way in than its command."""
    file = str(broker.configuration)
    argv = python(module, file) if module else command("xce.broker.cli", "run", "--config", file)
    with started(argv, broker.directory / "broker.log") as child:
        wait_for(lambda: connects(broker.local), child, "accepting")
        if broker.port:
            wait_for(lambda: connects(("127.0.0.1", broker.port)), child, "accepting")
        yield child


def new_agent(
    directory: Path,
    broker: Broker,
    *,
    name: str,
    reporters: Mapping[str, str] | None = None,
    settings: Mapping[str, object] | None = None,
) -> Path:
    """Write an agent's files, with executable `reporters` by name, and return its agent.yaml.

    It reaches the broker by its unix socket, so it needs no key.
    """
    drop_ins = directory / "reporters.d"
    for path in (directory, drop_ins, directory / "state", directory / "run"):
        path.mkdir(mode=0o755)
        path.chmod(0o755)
    for reporter, text in (reporters or {}).items():
        (drop_ins / reporter).write_text(text)
        (drop_ins / reporter).chmod(0o755)
    _write(
        directory / "agent.yaml",
        {
            "broker": f"ipc://{broker.local}",
            "name": name,
            "state_directory": str(directory / "state"),
            "run_directory": str(directory / "run"),
            "reporters": {"directory": str(drop_ins), "user": "nobody", **(settings or {})},
        },
    )
    return directory / "agent.yaml"


def running_agent(configuration: Path) -> AbstractContextManager[Child]:
    """The agent's process, with the directory that its unit gives it."""
    argv = command("xce.agent.cli", "run", "--config", str(configuration))
    state, log = configuration.parent / "state", configuration.with_suffix(".log")
    return started(argv, log, STATE_DIRECTORY=str(state))


def start_once(configuration: Path) -> None:
    """Let an agent find out what it remembers from then on, as on any host where it ran before."""
    with running_agent(configuration) as child:
        wait_for((configuration.parent / "run" / "agent.sock").exists, child, "running")
        time.sleep(_REMEMBERS_S)


def command(module: str, *arguments: str) -> list[str]:
    """The command line of one of the product's programs, as its installed script would run it."""
    return [sys.executable, "-c", f"import sys; from {module} import main; sys.exit(main())", *arguments]


def _new_keys(directory: Path, accepted: Path) -> None:
    for name, role, hosts in (
        (BROKER_KEY, "broker", ()),
        (AGENT_KEY, "agent", ("*",)),
        (CONTROLLER_KEY, "controller", ()),
    ):
        pair = keys.new(name, role, hosts)
        keys.save(pair, directory / f"{name}.key")
        public = keys.KeyPair(name=name, role=role, public=pair.public, hosts=hosts)
        keys.save(public, (directory if role == "broker" else accepted) / f"{name}.pub")


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(content))
