"""One reporter run by itself, exactly as the agent would run it: same user, cage, environment and deadline.

For `xce-agent reporter test` and `record`. It needs no running agent and no broker, and leaves nothing
behind: the state directory is a scratch one, the control group its own. The types are the ones that the agent
on this host has learned, and those that NAME.yaml declares.
"""

import contextlib
import os
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from xce.agent.intake import settings_file
from xce.agent.memory import Memory
from xce.agent.types import Types
from xce.linux import cgroup
from xce.linux.loop import Loop
from xce.linux.reaper import Reaper
from xce.model.configuration import AgentFile, ExternalFile
from xce.model.message import ReporterState
from xce.model.value import Absent, Reading, Value
from xce.reporters import cage, contract, elim, supervisor
from xce.reporters.contract import Context, Outcome
from xce.reporters.directory import SETTINGS, Candidate, look_at
from xce.reporters.frame import Frame, Refusal, TooLong, parse_line, shown
from xce.reporters.result import RunResult
from xce.reporters.supervisor import Supervisor
from xce.reporters.table import kept_by

STOP_S = 10.0


class NoSuchReporter(Exception):
    """There is nothing to try; the message says where was looked."""


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of one line."""

    line: int
    values: dict[str, Reading]
    refusals: list[Refusal]
    notes: list[str]
    outcome: Outcome


class Trial:
    """`on_line` gets each line and what becomes of it as soon as it counts, `on_end` the end of each run."""

    def __init__(
        self,
        candidate: Candidate,
        settings: AgentFile | ExternalFile,
        *,
        identity: str = "",
        owners: Mapping[str, str] | None = None,
        on_line: Callable[[bytes | TooLong, list[Verdict]], None],
        on_end: Callable[[RunResult], None],
    ) -> None:
        self.candidate, self.settings, self.identity = candidate, settings, identity
        self._owners = owners or {}
        """Who gives which name on this host."""
        self.types = types_for(candidate, settings)
        self.refused = ""
        """Why it was not started."""
        self.runs = 0
        self._on_line, self._on_end = on_line, on_end
        self._broken: Exception | None = None
        self._previous: dict[str, Value] = {}
        self._elim = elim.Stream()
        self._loop = Loop()

    def run(self, *, runs: int, at_most_s: float | None = None) -> None:
        """Run it so many times (persistent: so many frames), or for so long."""
        self._wanted = runs
        folder = tempfile.mkdtemp(prefix="xce-trial-")
        try:
            os.chmod(folder, 0o755)  # the reporter's user must be able to go through it
            self._supervisor = self._start(folder)
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.on_signal(number, self._stop)
            if at_most_s is not None:
                self._loop.call_later(at_most_s, self._stop)
            self._supervisor.update({self.candidate.name: self.candidate})
            self._loop.run()
        finally:
            self._loop.close()
            remove_scratch(folder)
        if self._broken is not None:
            raise self._broken

    # ------------------------------------------------------------------------------------------- sink

    def again(self, _name: str, _run: int, _at: float) -> bool:
        """Of the supervisor's sink: each run is shown."""
        return False

    def run_finished(self, _name: str, result: RunResult) -> str:
        """Of the supervisor's sink: the run is over."""
        verdicts = [one for number, line in enumerate(result.lines, 1) for one in self._look(line, number)]
        if not self._streaming and not result.not_applicable:
            whole = contract.finish_run(result.lines, self._context(), fault=result.fault)
            noted = {note for verdict in verdicts for note in verdict.notes}
            told = [note for note in whole.notes if note not in noted]
            told += [str(refusal) for refusal in whole.refusals if not refusal.line]
            result = msgspec.structs.replace(result, notes=[*result.notes, *told])
            if not result.fault:
                self._previous = {}
                self._remember(whole)
        self._tell(self._on_end, result)
        self.runs += 1
        if not self._streaming and self.runs >= self._wanted:
            self._stop()
        return ""

    def frame(self, _name: str, line: bytes | TooLong, number: int, _at: float) -> None:
        """Of the supervisor's sink: a line of one that goes on."""
        if number == 1:
            self._elim = elim.Stream()
        self._look(line, number)
        self.runs += 1
        if self.runs >= self._wanted:
            self._stop()

    def state(self, _name: str, state: ReporterState) -> None:
        """Of the supervisor's sink: only one that keeps it from starting matters here."""
        if state.state == "refused" or (state.state in {"backoff", "quarantined"} and not state.runs):
            self.refused = state.cause
            self._stop()

    def gone(self, _name: str) -> None:
        """Of the supervisor's sink."""

    # ----------------------------------------------------------------------------------------- inside

    @property
    def _streaming(self) -> bool:
        return self.candidate.settings.mode != "one-shot"

    def _look(self, line: bytes | TooLong, number: int) -> list[Verdict]:
        verdicts = list(self._verdicts(line, number))
        self._tell(self._on_line, line, verdicts)
        return verdicts

    def _tell(self, hear: Callable[..., None], *what: object) -> None:
        """Whoever listens may fail (a full disk, a reader that left): the loop must not go on without him."""
        if self._broken is not None:
            return
        try:
            hear(*what)
        except Exception as error:  # noqa: BLE001 - raised again by `run`
            self._broken = error
            self._stop()

    def _verdicts(self, line: bytes | TooLong, number: int) -> Iterator[Verdict]:
        is_elim = self.candidate.settings.mode == "elim"
        frames: list[Frame | Refusal | None] = (
            [*self._elim.feed(line)] if is_elim else [parse_line(line, number)]
        )
        for frame in frames:
            if frame is None:
                continue
            outcome = contract.take_frame(frame, self._context())
            if self._streaming:
                self._remember(outcome)
            theirs = [name for name in outcome.values if self._owner(name) != self.candidate.name]
            rivals = [self._rival(name, outcome.values.pop(name), number) for name in theirs]
            yield Verdict(number, outcome.values, [*outcome.refusals, *rivals], outcome.notes, outcome)

    def _context(self) -> Context:
        return Context(
            reporter=self.identity or self.candidate.name,
            types=self.types.in_force,
            previous=self._previous,
            external=bool(self.identity),
        )

    def _remember(self, outcome: Outcome) -> None:
        """The values that the next run, or frame, is compared with."""
        for name, reading in (outcome.silent | outcome.values).items():
            if isinstance(reading, Absent):
                self._previous.pop(name, None)
            else:
                self._previous[name] = reading

    def _owner(self, name: str) -> str:
        return self._owners.get(name, self.candidate.name)

    def _rival(self, name: str, reading: Reading, number: int) -> Refusal:
        text = "" if isinstance(reading, Absent) else shown(reading)
        return Refusal(name=name, reason=kept_by(self._owner(name)), text=text, line=number)

    def _start(self, folder: str) -> Supervisor:
        label = f"test-{os.getpid()}"
        setting = f"{self.settings.cgroup}-{label}" if self.settings.cgroup else ""
        try:
            group = supervisor.home(label, setting=setting, own=cgroup.own())
        except OSError:
            group = None
        return Supervisor(
            self._loop,
            Reaper(self._loop),
            self,
            self.settings.reporters,
            node=cage.Node(name=self.settings.name or os.uname().nodename, external=bool(self.identity)),
            state_directory=folder,
            group=group,
        )

    def _stop(self) -> None:
        self._loop.call_later(STOP_S, self._loop.stop)
        self._supervisor.stop(lambda: self._loop.call_later(0, self._loop.stop))


def types_for(candidate: Candidate, settings: AgentFile | ExternalFile) -> Types:
    """What its values are checked against: as if the broker let in all that it declares."""
    types = Types(Memory(settings.state_directory).types(), alone=True)
    types.declare(settings_file(candidate), candidate.settings.types)
    return types


def find(what: str, settings: AgentFile | ExternalFile) -> Candidate:
    """The reporter that a FILE or NAME means. Raises `NoSuchReporter`."""
    directory = settings.reporters.directory
    path = os.path.abspath(what) if "/" in what or os.path.exists(what) else os.path.join(directory, what)
    if path.endswith(SETTINGS):
        path = path.removesuffix(SETTINGS)
    if not os.path.lexists(path):
        raise NoSuchReporter(f"cannot find {what}: there is no {path}")
    candidate = look_at(path, {0, os.geteuid()})
    if candidate is None:
        what_to_do = (
            "is a directory" if os.path.isdir(path) else f"is not an executable file (chmod 755 {path})"
        )
        raise NoSuchReporter(f"cannot use {path}: it {what_to_do}")
    return candidate


def remove_scratch(folder: str) -> None:
    """Remove what a reporter may have written: through descriptors, on one file system, following no link."""
    device = os.stat(folder).st_dev
    for _path, folders, files, at in os.fwalk(folder, topdown=False):
        if os.fstat(at).st_dev != device:
            continue
        for name in files:
            os.unlink(name, dir_fd=at)
        for name in folders:
            if stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=at)
            else:
                with contextlib.suppress(OSError):  # a mount point stays
                    os.rmdir(name, dir_fd=at)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def now() -> float:
    """The clock of a recording."""
    return time.monotonic()
