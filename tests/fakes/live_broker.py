"""The real broker as a process of its own, in a directory of its own, with keys of its own."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from xce.broker.client import Broker, BrokerError, Client
from xce.model.message import BrokerStatus, StatusRequest
from xce.model.role import Role
from xce.wire import keys

PROGRAM = "import sys; from xce.broker.cli import main; sys.exit(main())"
RESOURCES = """\
types:
  - {name: level, kind: numeric, unit: MB, minimum: 0, ttl: 60}
  - {name: label, kind: string, ttl: 60}
  - {name: lic_free, kind: numeric, scope: pool, reporter: lics, ttl: 60}
  - {name: lic, kind: numeric, scope: pool, consumable: true}
pools:
  - {name: matlab, resources: {lic: {base: 10}}}
"""
HOSTS = """\
hosts:
  - {name: "node[1-3]", groups: [rack1]}
groups:
  - {name: rack1}
"""


class LiveBroker:
    """A broker below `directory`; `settings` are keys of broker.yaml."""

    def __init__(self, directory: Path, *, tcp: bool = False, **settings: Any) -> None:
        self.directory = directory
        self.local = Broker(f"ipc://{directory}/b.sock")
        self.key = keys.new("broker", "broker")
        self.port = _free_port() if tcp else 0
        self._process: subprocess.Popen[bytes] | None = None
        self.log = directory / "log"
        self.command = [sys.executable, "-c", PROGRAM, "run", "--config", str(directory / "broker.yaml")]
        accepted = directory / "accepted"
        accepted.mkdir(mode=0o755)
        (directory / "state").mkdir(mode=0o700)
        keys.save(self.key, directory / "broker.key")
        (directory / "resources.yaml").write_text(RESOURCES)
        (directory / "hosts.yaml").write_text(HOSTS)
        configuration = {
            "listen": [f"tcp://127.0.0.1:{self.port}"] if tcp else [],
            "local": f"{directory}/b.sock",
            "key": f"{directory}/broker.key",
            "accepted_keys": str(accepted),
            "state_directory": f"{directory}/state",
            "resources": f"{directory}/resources.yaml",
            "hosts": f"{directory}/hosts.yaml",
            "audit": f"{directory}/audit",
            "metrics": "",
            "heartbeat": 1,
            **settings,
        }
        (directory / "broker.yaml").write_text(msgspec.json.encode(configuration).decode())

    def new_key(self, name: str, role: Role) -> Broker:
        """Where the broker is for a peer with a new key that it accepts from its next start."""
        pair = keys.new(name, role)
        keys.save(pair, self.directory / f"{name}.key")
        keys.save(keys.KeyPair(name, role.value, pair.public), self.directory / "accepted" / f"{name}.pub")
        return self.remote(pair)

    def remote(self, pair: keys.KeyPair) -> Broker:
        """Where the broker is for a peer with this key."""
        return Broker(f"tcp://127.0.0.1:{self.port}", pair, self.key.public)

    def audited(self) -> set[str]:
        """Orders that have a line in the audit log."""
        lines = (self.directory / "audit").read_bytes().splitlines()
        return {msgspec.json.decode(line)["op_id"] for line in lines}

    def begin(self) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def answers(self) -> BrokerStatus | None:
        """Wait until it answers; None: it has ended."""
        deadline = time.monotonic() + 30
        while True:
            try:
                with Client(self.local, timeout=1) as client:
                    return client.ask(StatusRequest(id=""))
            except BrokerError:
                if self.ended():
                    return None
                assert time.monotonic() < deadline, f"the broker does not answer: {self.log.read_text()}"
                time.sleep(0.05)

    def start(self) -> BrokerStatus:
        """Start it and wait until it answers."""
        self.begin()
        status = self.answers()
        assert status is not None, f"the broker has ended: {self.log.read_text()}"
        return status

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)

    def ended(self) -> bool:
        """Whether it does not run any more."""
        return self._process is None or self._process.poll() is not None

    def stop(self) -> int:
        """Ask it to end; its exit status."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(20)

    def reload(self) -> None:
        """Ask it to read its files again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def __enter__(self) -> "LiveBroker":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return int(unused.getsockname()[1])
