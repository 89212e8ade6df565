"""The agent's side of `looker.py`: asks for a look, and goes on without it when none comes in time.

One child at a time. One that does not answer is killed; while the kernel cannot end it (a dead file server),
no other is started, and what was known stays known.
"""

import os
import signal
import sys
from collections.abc import Callable, Collection

import msgspec

from xce.linux import proc
from xce.linux.loop import Loop, Timer
from xce.linux.reaper import Exit, Reaper
from xce.linux.spawn import Child, spawn
from xce.reporters.frame import escape
from xce.reporters.looker import ANSWER_BYTES, HEAD, Answer

PATIENCE = 5.0
"""Seconds for one look."""
_ENVIRONMENT = ("PATH", "PYTHONHOME", "VIRTUAL_ENV", "LC_ALL", "LANG")

Done = Callable[[Answer], object]


class RemoteLook:
    """Looks at `path` on a file system that may hang."""

    def __init__(self, loop: Loop, reaper: Reaper, path: str, trusted: Collection[int]) -> None:
        self._loop, self._reaper = loop, reaper
        self._argv = [sys.executable, "-P", "-m", "xce.reporters.looker", path, *map(str, sorted(trusted))]
        self._path = path
        self._child: Child | None = None
        self._ask = self._answers = -1
        self._received = bytearray()
        self._done: Done | None = None
        self._deadline: Timer | None = None

    def look(self, done: Done) -> None:
        """Have `done(answer)` called once: when the look is over, or its time is, or at once if one hangs."""
        if self._done is not None:
            return  # one is under way, and its answer is as new
        if self._child is not None and self._ask < 0:
            done(Answer(fault=self._hanging()))
            return
        self._done = done
        try:
            if self._child is None:
                self._start()
            os.write(self._ask, b"?")
        except (OSError, ValueError) as error:
            self._tell(Answer(fault=f"cannot look at {escape(self._path)}: {error}"))
            self.close()
            return
        self._deadline = self._loop.call_later(PATIENCE, self._too_late)

    def close(self) -> None:
        """End the child, and forget who asked; may be called twice."""
        self._done = None
        if self._deadline is not None:
            self._deadline.cancel()
        if self._answers >= 0:
            self._loop.remove_reader(self._answers)
        for fd in (self._ask, self._answers):
            if fd >= 0:
                os.close(fd)
        self._ask = self._answers = -1
        self._received.clear()
        if self._child is not None:
            self._child.signal(signal.SIGKILL)

    def _start(self) -> None:
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)  # where packages put us is on no path
        theirs, self._ask = os.pipe()
        try:
            self._answers, out = os.pipe()
            os.set_blocking(self._ask, False)
            os.set_blocking(self._answers, False)
            try:
                self._child = spawn(self._argv, environment, fds={0: theirs, 1: out})
            finally:
                os.close(out)
        finally:
            os.close(theirs)
        self._reaper.watch(self._child, self._ended)
        self._loop.add_reader(self._answers, self._ready)

    def _ready(self) -> None:
        try:
            data = os.read(self._answers, 1 << 20)
        except BlockingIOError:
            return
        self._received += data
        if not data:
            self._loop.remove_reader(self._answers)  # the reaper tells the rest
            return
        if len(self._received) < HEAD.size:
            return
        (length,) = HEAD.unpack_from(self._received)
        if len(self._received) < HEAD.size + length <= HEAD.size + ANSWER_BYTES:
            return
        try:
            answer = msgspec.msgpack.decode(memoryview(self._received)[HEAD.size :], type=Answer)
        except msgspec.MsgspecError as error:
            answer = Answer(fault=f"cannot look at {escape(self._path)}: {error}")
        self._received = bytearray()
        self._tell(answer)

    def _tell(self, answer: Answer) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        done, self._done = self._done, None
        if done is not None:
            done(answer)

    def _too_late(self) -> None:
        done = self._done
        self.close()
        if done is not None:
            done(Answer(fault=self._hanging()))

    def _hanging(self) -> str:
        """Where it hangs. Its first words do not change while it does."""
        pid = self._child.pid if self._child else 0
        where = proc.wait_channel(pid)
        told = f" (pid {pid}{f' in {where}' if where else ''})"
        return f"cannot look at {escape(self._path)}: no answer within {PATIENCE:g} s{told}"

    def _ended(self, how: Exit) -> None:
        self._child = None
        done = self._done
        self.close()
        if done is not None:
            done(Answer(fault=f"cannot look at {escape(self._path)}: the look ended ({how})"))
