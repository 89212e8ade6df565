"""What the process half of the reporters tells: a run's result, a reporter's view; and whom it tells."""

from typing import Protocol

import msgspec

from xce.linux.reaper import Exit
from xce.model import message
from xce.reporters.ending import Stuck
from xce.reporters.frame import TooLong


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run came out."""

    run: int
    """Number of the run since the agent's start, from 1."""
    script: str = ""
    """SHA-256 of the script that was run."""
    lines: list[bytes | TooLong] = []
    """One-shot: all lines of standard output, blank ones included."""
    exit: Exit | None = None
    """None: it was never started, or cannot be killed."""
    fault: str = ""
    """Why nothing of it counts; '' if it does."""
    not_applicable: bool = False
    started_at: float = 0
    """Of the loop's clock."""
    duration: float = 0
    stderr: str = ""
    """The last 8 KiB; not escaped."""
    notes: list[str] = []
    """What went on beside: processes left behind, output slowed down."""


class Sink(Protocol):
    """Where it all goes: the agent's core."""

    def run_finished(self, name: str, result: RunResult) -> str:
        """A run is over. Returns what is wrong with its output ('' if usable): then it counts as failed."""

    def again(self, name: str, run: int, at: float) -> bool:
        """A run that began `at` was byte for byte as the newest one, and there is no more to say of it.

        False: it is to be told in full all the same.
        """

    def frame(self, name: str, line: bytes | TooLong, number: int, at: float) -> None:
        """A line of a persistent or elim reporter; `number` from 1 in its run, `at` of the loop's clock."""

    def state(self, name: str, state: message.ReporterState) -> None:
        """A reporter's state as others see it is new. `refused` and `conditions` are for the sink to fill."""

    def gone(self, name: str) -> None:
        """The reporter was removed, and its values with it."""


class View(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `status` and `explain` show of a reporter beside its `message.ReporterState`.

    Times are seconds, ages count from now.
    """

    state: str
    """What it does at this moment: running and stopping are shown, too."""
    warning: str = ""
    """What is wrong with its files although it runs: a NAME.yaml that is not taken."""
    user: str = ""
    pid: int | None = None
    running_for: float | None = None
    next_run_in: float | None = None
    last_run_ago: float | None = None
    """Since the start of the last run that is over."""
    last_duration: float | None = None
    last_exit: str = ""
    last_script: str = ""
    """Digest of the script of the newest run that has told something: until a changed one has ended its first
    run, another than that of its file."""
    stderr: str = ""
    unkillable: list[Stuck] = []
    unkillable_for: float | None = None
