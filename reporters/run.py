"""One run of one reporter: a process started, its end and its leftovers. Its kinds: `OneShot`, `Stream`.

Exit and end of output are two things: a child that the script left behind may hold the pipe for ever, so
what was written until the exit is what counts, and what is left in the group is ended. What lines mean, and
when to start or end a run, is its owner's business (`RunOwner`); nothing is retried.
"""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from xce.linux.loop import Loop, Timer
from xce.linux.reaper import Exit, Reaper
from xce.linux.session import Session
from xce.linux.spawn import Child, spawn
from xce.reporters.ending import PATIENCE, Ending, Group, Stuck, describe
from xce.reporters.output import Pipe, Tail

STDERR_PER_S = 1 << 20


class RunOwner(Protocol):
    """What every run tells: `exited` and `over`; `stuck` before them, if at all."""

    def exited(self, how: Exit, left: list[Stuck]) -> None:
        """The main process has ended. `left`: others of its group, which are being ended now."""

    def stuck(self, processes: list[Stuck]) -> None:
        """These cannot be killed."""

    def over(self) -> None:
        """Nothing of the run is left. The last call."""


class Start(NamedTuple):
    """What a run is started from; the same for all runs of a reporter while its files are the same."""

    command: list[str] | list[bytes]
    environment: Mapping[str, str] | Mapping[bytes, bytes]
    """Both are quicker as bytes."""
    group: Group | None
    """The control group that the command joins; None where there is none: then the run is held by its session
    and `mark`."""
    mark: str
    """An entry of `environment`."""
    line_bytes: int
    patience: float = PATIENCE


class Run:
    """A run from its start to `over`. Raises OSError from the constructor if it cannot be started.

    `fds`: its descriptors beside 0, 1 and 2, as ours.
    """

    _ending: Ending | None = None
    _pipes: tuple[Pipe, ...] = ()
    """Of both outputs, once they are watched; before that, their descriptors are in `_fds`."""
    _fds: tuple[int, ...] = ()
    _timer: Timer | None = None
    """What the kind of run waits for while its process runs."""

    def __init__(
        self, loop: Loop, reaper: Reaper, owner: RunOwner, start: Start, fds: Mapping[int, int]
    ) -> None:
        self._loop, self._owner, self._start = loop, owner, start
        self.started_at = loop.now()
        self.stderr = Tail()
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            out, child_out, err, child_err = ends
            os.set_blocking(out, False)
            os.set_blocking(err, False)
            self.child: Child = spawn(
                start.command, start.environment, fds={1: child_out, 2: child_err, **fds}
            )
        except (OSError, ValueError):
            for fd in ends:
                os.close(fd)
            raise
        self._fds = out, err
        os.close(child_out)
        os.close(child_err)
        self.group: Group = start.group or Session(self.child.pid, start.mark)
        reaper.watch(self.child, self._ended)

    slowed = False
    """Whether it has had to wait, because it prints more than it may: what it says is late."""

    def notes(self, left: Sequence[Stuck]) -> list[str]:
        """What people should know about the run although it may be good. `left`: what it left behind."""
        if not left:
            return []
        return [f"left {len(left)} processes behind, which were ended: {left[0]}"]

    def end(self, grace: float) -> None:
        """TERM now, KILL after `grace` seconds (0: KILL now) to all of the run; `over` will come."""
        if self._ending is None:
            self._ending = Ending(
                self._loop,
                self.group,
                grace=grace,
                on_end=self._over,
                on_stuck=self._stuck,
                also=self.child.signal,
                patience=self._start.patience,
            )
        elif grace == 0:
            self._ending.kill()

    @property
    def ending(self) -> bool:
        """Whether it has been told to end."""
        return self._ending is not None

    # ------------------------------------------------------------------------------------------ output

    def _output(self, data: bytes) -> None:
        """Something was read of standard output."""
        raise NotImplementedError

    def _read_all(self) -> None:
        """The process has ended: what it has written and was not read yet is all that counts."""
        raise NotImplementedError

    def _watch(self, per_s: int = 0) -> None:
        """Take what comes as it comes, from now on."""
        (out, err), self._fds = self._fds, ()
        self._pipes = (
            Pipe(self._loop, out, self._output, per_s),
            Pipe(self._loop, err, self.stderr.add, STDERR_PER_S),
        )

    # --------------------------------------------------------------------------------------------- end

    def _ended(self, how: Exit) -> None:
        left_behind = False
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._read_all()
            left_behind = self._ending is None and self.group.populated()
            self._owner.exited(how, describe(self.group.pids()) if left_behind else [])
        finally:  # whatever is wrong with what it said: the run must be over some time
            if self._ending is not None:
                self._ending.look()
            elif left_behind:
                self.end(0)
            elif self._pipes:
                self._over()
            else:
                self._owner.over()

    def _stuck(self, processes: list[Stuck]) -> None:
        self._close()
        self._owner.stuck(processes)

    def _over(self) -> None:
        self._close()
        self._owner.over()

    def _close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = ()
        for pipe in self._pipes:
            pipe.close()
        if self._timer is not None:
            self._timer.cancel()
