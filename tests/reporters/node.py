"""A node for tests: a directory of real scripts, the supervisor on a real loop, and everything it told."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.linux.kernel import Kernel
from xce.linux import cgroup, proc, users
from xce.linux.mountinfo import Mount
from xce.model import message
from xce.model.configuration import AgentReporters
from xce.reporters.cage import Node as Where
from xce.reporters.frame import TooLong
from xce.reporters.result import RunResult
from xce.reporters.supervisor import Supervisor, home
from xce.reporters.watch import Watch

ROOT = os.geteuid() == 0


class Node:
    """See the module. It is a `Sink`."""

    def __init__(self, kernel: Kernel, base: Path, group: cgroup.Cgroup | None) -> None:
        self.kernel, self.base, self.group = kernel, base, group
        self.directory = base / "reporters.d"
        self.directory.mkdir()
        self.results: dict[str, list[RunResult]] = {}
        self.frames: dict[str, list[bytes | TooLong]] = {}
        self.told: dict[str, list[message.ReporterState]] = {}
        self.left: list[str] = []
        self.complaint = ""
        self.repeated: dict[str, int] = {}
        """The newest run of each reporter that was as the one before it."""
        self.knows = False
        """Whether that is all it wants to hear of such a run."""
        self.supervisor: Supervisor = None  # type: ignore[assignment]  # see start
        self.watch: Watch = None  # type: ignore[assignment]
        self.passwd = "/etc/passwd"

    # ------------------------------------------------------------------------------------------- sink

    def again(self, name: str, run: int, at: float) -> bool:
        self.repeated[name] = run
        return self.knows

    def run_finished(self, name: str, result: RunResult) -> str:
        self.results.setdefault(name, []).append(result)
        return self.complaint

    def frame(self, name: str, line: bytes | TooLong, number: int, at: float) -> None:
        self.frames.setdefault(name, []).append(line)

    def state(self, name: str, state: message.ReporterState) -> None:
        self.told.setdefault(name, []).append(state)

    def gone(self, name: str) -> None:
        self.left.append(name)

    # ----------------------------------------------------------------------------------------- orders

    def start(self, *, patience: float = 5.0, mount: Mount | None = None, **settings: object) -> "Node":
        """Start supervising, with these settings of agent.yaml's `reporters`; the directory is on `mount`."""
        values: dict[str, object] = {"user": "nobody", "interval": 0.5, "timeout": 5.0} | settings
        self.supervisor = Supervisor(
            self.kernel.loop,
            self.kernel.reaper,
            self,
            AgentReporters(**values),  # type: ignore[arg-type]
            node=Where(name="node17"),
            state_directory=str(self.base / "state"),
            group=self.group,
            patience=patience,
            look_again=lambda: self.watch.soon(),  # noqa: PLW0108 - made below
            find_user=lambda name: users.find(name, self.passwd),
        )
        self.watch = Watch(
            self.kernel.loop,
            self.kernel.reaper,
            str(self.directory),
            {0, os.geteuid()},
            self.supervisor.update,
        )
        if mount is not None:
            self.watch._may_hang = lambda _: mount
        self.watch.look()
        return self

    def script(self, name: str, text: str, settings: str = "", *, mode: int = 0o755) -> Path:
        """Put a reporter into the directory, as an admin's `mv` would. Settings go first."""
        if settings:
            (self.directory / f"{name}.yaml").write_text(settings)
        path = self.directory / name
        new = self.base / f"new-{name}"
        new.write_text(text)
        new.chmod(mode)
        new.rename(path)
        return path

    def until(self, condition: Callable[[], object], within: float = 20.0) -> None:
        self.kernel.until(condition, within)

    def runs(self, name: str) -> list[RunResult]:
        return self.results.get(name, [])

    def ran(self, name: str, times: int = 1, within: float = 20.0) -> RunResult:
        """Waits for that many runs; the last one."""
        self.until(lambda: len(self.runs(name)) >= times, within)
        return self.runs(name)[-1]

    def now(self, name: str) -> message.ReporterState:
        """What was told last of a reporter."""
        return self.told[name][-1]

    def reaches(self, name: str, state: str, within: float = 20.0) -> message.ReporterState:
        self.until(lambda: name in self.told and self.now(name).state == state, within)
        return self.now(name)

    def stop(self) -> None:
        if self.supervisor is not None:
            done: list[bool] = []
            self.supervisor.stop(lambda: done.append(True))
            self.until(lambda: done)
            self.watch.close()

    def children(self) -> list[proc.Process]:
        """All live processes that descend from this one."""
        everyone = {one.pid: one for one in proc.processes()}
        return [one for one in everyone.values() if _descends(one, everyone) and one.state != "Z"]


def _descends(one: proc.Process, everyone: dict[int, proc.Process]) -> bool:
    at = one
    while at.parent in everyone:
        if at.parent == os.getpid():
            return True
        at = everyone[at.parent]
    return False


def make_node(kernel: Kernel, tmp_path: Path) -> Iterator[Node]:
    """Body of the fixture. Reporters run as nobody, who must be able to reach their own directories."""
    with tempfile.TemporaryDirectory(prefix="xce-test-") as base:
        os.chmod(base, 0o755)
        group = home(f"test-{os.getpid()}-{tmp_path.name}"[:200], own=cgroup.own())
        node = Node(kernel, Path(base), group)
        yield node
        node.stop()
        left = node.children()
        for one in left:
            os.kill(one.pid, signal.SIGKILL)
        assert left == []
        if group is not None:
            kernel.until(group.remove)
