"""A plugin in its own process, a helper in another, and a client that asks until it has an answer."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.project import tree
from xce.linux import mountinfo
from xce.model import csi
from xce.prepare.csi.helper import HelperClient

FAKE = tree.ROOT / "tests/fakes/csi_plugin.py"
CAPABILITY = csi.Capability(mode=5)
PATIENCE_S = 15.0


def program(folder: Path) -> str:
    """The helper as a program of its own, as packages have it: a path is all that its parent knows."""
    path = folder / "xce-csi-node-helper"
    lines = (
        f"#!{sys.executable}",
        "import sys",
        f"sys.path.insert(0, {str(tree.ROOT)!r})",
        "from xce.csi_node_helper.main import main",
        "sys.exit(main())",
    )
    path.write_text("\n".join([*lines, ""]))
    path.chmod(0o755)
    return str(path)


def until(what: str, look: Callable[[], Any]) -> Any:
    """What `look` gives once it is something."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {PATIENCE_S:g} s: {what}")


class Plugin:
    """The process of a fake plugin, and its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "backing").mkdir(parents=True)
        self.control()

    @property
    def socket(self) -> str:
        return str(self.folder / "csi.sock")

    def volume(self, name: str, **files: str) -> Path:
        path = self.folder / "backing" / name
        path.mkdir(exist_ok=True)
        for file, text in files.items():
            (path / file).write_text(text)
        return path

    def control(self, **settings: Any) -> None:
        new = self.folder / "control.new"
        new.write_text(json.dumps(settings))
        new.rename(self.folder / "control.json")

    def start(self) -> None:
        environment = {"PYTHONPATH": str(tree.ROOT), "PATH": os.environ["PATH"]}
        self.process = subprocess.Popen(
            [sys.executable, str(FAKE), str(self.folder)], env=environment, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"READY\n"

    def stop(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def renew(self) -> None:
        """As if it were new; the process is another one only if something may be under way in it."""
        control = self.folder / "control.json"
        if self.process and (self.process.poll() is not None or b"faults" in control.read_bytes()):
            self.stop()
        for image in self.folder.glob("*.img"):
            command = ["losetup", "-n", "-O", "NAME", "-j", str(image)]
            devices = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            for device in devices:
                subprocess.run(["losetup", "-d", device], check=False)
        for path in (*self.folder.glob("backing/*"), *self.folder.glob("vol*"), *self.folder.glob("*.jsonl")):
            subprocess.run(["rm", "-rf", "--one-file-system", str(path)], check=True)
        self.control()
        if self.process is None:
            self.start()

    def calls(self, rpc: str = "") -> list[dict[str, Any]]:
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if not rpc or call["rpc"] == rpc]


class World:
    """One helper and one plugin, named `fake`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plugin = Plugin(folder / "plugin")
        self.program = program(folder)
        self.know(sockets={"fake": self.plugin.socket})

    def know(self, **plugins: Any) -> None:
        """A helper that is started with these plugins."""
        self.client = HelperClient(csi.Plugins(**plugins), time.monotonic, program=self.program)

    def call(
        self, call: csi.Call, *, key: str = "k", plugin: str = "fake", s: float | None = None
    ) -> csi.Told:
        told = until(f"answer to {call}", lambda: self.client.ask(key, plugin, call, s))
        assert isinstance(told, csi.Told)
        return told

    def seen(self, plugin: str = "fake", **fields: Any) -> csi.Seen:
        def fits() -> csi.Seen | None:
            seen = self.client.seen(plugin)
            good = seen and all(
                getattr(seen, name) == value for name, value in (fields or {"asked": True}).items()
            )
            return seen if good else None

        seen = until(f"{plugin} with {fields}", fits)
        assert isinstance(seen, csi.Seen)
        return seen

    def place(self, name: str) -> str:
        """A directory below this world's folder."""
        path = self.folder / name
        path.mkdir(parents=True, exist_ok=True)
        return str(path)

    def stage(self, volume: str = "vol1", **fields: Any) -> csi.Stage:
        return csi.Stage(volume=volume, staging=self.place(f"s-{volume}"), capability=CAPABILITY, **fields)

    def close(self) -> None:
        self.client.close()
        self.plugin.stop()
        for mount in reversed(mountinfo.read()):
            if mount.point.startswith(str(self.folder) + "/"):
                subprocess.run(["umount", "-l", mount.point], check=False)


def mounted(path: str) -> list[mountinfo.Mount]:
    return [mount for mount in mountinfo.read() if mount.point == path]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    with contextlib.closing(made):
        made.plugin.volume("vol1", data="payload")
        made.plugin.start()
        yield made
