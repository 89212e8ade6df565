"""A supervisor in a process of its own: `python -m tests.reporters.solo BASE LABEL COUNT`.

Runs what is in BASE/reporters.d, prints one JSON line per finished run and state, and stops in an orderly way
after COUNT runs (0: never).
"""

import json
import sys
from pathlib import Path

from xce.linux import cgroup
from xce.linux.loop import Loop
from xce.linux.reaper import Reaper
from xce.model import message
from xce.model.configuration import AgentReporters
from xce.reporters.cage import Node
from xce.reporters.frame import TooLong
from xce.reporters.result import RunResult
from xce.reporters.supervisor import Supervisor, home
from xce.reporters.watch import Watch


class Printer:
    """The sink."""

    def __init__(self) -> None:
        self.finished = 0

    def again(self, name: str, run: int, at: float) -> bool:
        return False

    def run_finished(self, name: str, result: RunResult) -> str:
        self.finished += 1
        lines = [line.decode() for line in result.lines if isinstance(line, bytes)]
        self.say(run=name, lines=lines, fault=result.fault, notes=result.notes)
        return ""

    def frame(self, name: str, line: bytes | TooLong, number: int, at: float) -> None:
        self.say(frame=name)

    def state(self, name: str, state: message.ReporterState) -> None:
        self.say(name=name, state=state.state, cause=state.cause, note=state.note)

    def gone(self, name: str) -> None:
        self.say(gone=name)

    def say(self, **what: object) -> None:
        print(json.dumps(what), flush=True)


def main(base: Path, label: str, count: int) -> None:
    """See the module."""
    loop, sink = Loop(), Printer()
    reaper = Reaper(loop)
    own = cgroup.own()
    supervisor = Supervisor(
        loop,
        reaper,
        sink,
        AgentReporters(user="nobody", interval=0.2, timeout=5),
        node=Node(name="solo"),
        state_directory=str(base / "state"),
        group=home(label, own=own),
    )
    sink.say(group=bool(supervisor.group))
    watch = Watch(loop, reaper, str(base / "reporters.d"), supervisor.trusted, supervisor.update)
    watch.look()
    while not count or sink.finished < count:
        loop.turn()
    supervisor.stop(loop.stop)
    loop.run()
    sink.say(stopped=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
