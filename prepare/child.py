"""The children that do errands, and their parent's side: `python -m xce.prepare.child`.

A child does one errand after another, since starting it takes longer than most errands: questions come as
lines of JSON on its standard input, answers go to its standard output. Without an errand it is kept for a
while. One that hangs in the kernel cannot be ended: it is sent SIGKILL, left behind, and counted while it is
there.

A place, a volume or a file server, has half of all children at most: one that does not answer holds up nobody
else. What finds no child waits for one, in the order of asking.

A child that is killed, as by the kernel where memory has run out, is not the errand's fault: it is done once
more, after whoever wants it has looked what came of the first time. There is no third time.

A child ends with its parent: one of an agent that was killed and one of its successor never work on one
thing. What it is in the middle of, a mount for instance, the kernel finishes first; so the successor waits
until the last of them is gone (`alone`), which a lock tells that all children of an agent share.
"""

import contextlib
import errno
import fcntl
import os
import select
import signal
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from xce.linux import spawn, syscalls
from xce.prepare import directories, quota
from xce.prepare import errand as files
from xce.prepare.handler import StepFailed
from xce.prepare.step import Evidence

ERRANDS = files.ERRANDS | quota.ERRANDS | directories.ERRANDS
AT_ONCE = 16
"""Children at work."""
ABANDONED = 16
"""Children that did not end; with so many of them none is sent any more."""
LEFT_S = 2.0
"""A predecessor's child that is still there so long after our start hangs, and is not waited for."""
HANGS_S = 1.0
"""Whoever was told to end and is there so long after hangs."""
IDLE_S = 5.0
"""For which a child without an errand is kept."""
_ANSWER_BYTES = 1 << 20
_DIED = "the child that was sent for it was killed"
_HINT = "the kernel's log says whether memory ran out"
_LOCK = 3
"""A child's descriptor of the lock."""


class Answer(msgspec.Struct, frozen=True):
    """What a child says: evidence, or why there is none."""

    evidence: Evidence = {}
    code: int = 0
    words: str = ""
    path: str = ""


class _Child:
    """A child, from the parent's side."""

    def __init__(self, lock: int) -> None:
        asked = os.pipe2(os.O_CLOEXEC)
        told = os.pipe2(os.O_CLOEXEC)
        try:
            environment = {"PYTHONPATH": os.pathsep.join(sys.path), "LC_ALL": "C.UTF-8"}
            command = [sys.executable, "-m", "xce.prepare.child"]
            fds = {0: asked[0], 1: told[1], _LOCK: lock}
            self._handle = spawn.handle(spawn.spawn(command, environment, fds=fds))
        except OSError:
            os.close(asked[1])
            os.close(told[0])
            raise
        finally:
            os.close(asked[0])
            os.close(told[1])
        self._in, self.out, self._text = asked[1], told[0], b""
        self.died = False
        """It ended without an answer: it was killed, and not by us."""
        self._signal = 0
        self.left = 0.0
        """When it was told to end."""
        os.set_blocking(self._in, False)
        os.set_blocking(self.out, False)
        self.idle_since = 0.0

    def ask(self, errand: str, arguments: dict[str, Any]) -> bool:
        """Give it an errand; False if it is not there any more."""
        question = {"errand": errand, "arguments": arguments, "parent": os.getpid()}
        line = msgspec.json.encode(question) + b"\n"
        try:
            return os.write(self._in, line) == len(line)
        except (BrokenPipeError, BlockingIOError):
            return False

    def answer(self) -> Answer | None:
        """What it said; None if it has not said it yet, or never will (`died`)."""
        try:
            while len(self._text) < _ANSWER_BYTES and not self._text.endswith(b"\n"):
                more = os.read(self.out, 1 << 16)
                self._text += more
                if not more:
                    self.died = self.gone()
                    return None
        except BlockingIOError:
            return None
        text, self._text = self._text, b""
        try:
            return msgspec.json.decode(text, type=Answer)
        except msgspec.MsgspecError:
            return Answer(code=errno.EIO, words="the child that was sent for it said what is no answer")

    def how(self) -> str:
        """How it died, as far as that is known."""
        return f"{_DIED} ({signal.Signals(self._signal).name}; {_HINT})" if self._signal else _DIED

    def kill(self) -> None:
        """Tell it to end, whatever it does."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def gone(self) -> bool:
        """Whether it has ended; it is reaped if the agent's reaper has not been there before.

        Not by its number: that may be another child's by then, which the reaper would never hear of.
        """
        try:
            ended = os.waitid(os.P_PIDFD, self._handle, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return True
        if ended is not None and ended.si_code != os.CLD_EXITED:
            self._signal = ended.si_status
        return ended is not None

    def close(self) -> None:
        """Let go of the descriptors."""
        for fd in (self._in, self.out, self._handle):
            os.close(fd)


class _Errand:
    """What was asked, and how far it is: waiting for a child, at work with one, or answered."""

    def __init__(self, name: str, arguments: dict[str, Any], died: str = "") -> None:
        self.name, self.arguments, self.died = name, arguments, died
        """`died`: how the child of the first try did, if this is the second."""
        self.again = False
        """Its child was killed: whoever asked looks what is there, and may ask once more."""
        self.place = str(next((arguments[key] for key in _PLACES if arguments.get(key)), "users"))
        self.child: _Child | None = None
        self.until = 0.0
        self.answer: Answer | None = None
        self.late = False

    @property
    def over(self) -> bool:
        """Whether no child is to be sent for it, and none is at work."""
        return self.answer is not None or self.late or self.again


_PLACES = ("root", "source", "point", "devices")


class Errands:
    """Does errands, here or in children; see `handler.ErrandCalls`."""

    def __init__(
        self, clock: Callable[[], float], seconds: float, *, home: str, abandoned: int = ABANDONED
    ) -> None:
        """`home` is a directory of ours alone; it carries the lock. Raises OSError."""
        self._clock, self._seconds, self._room = clock, seconds, abandoned
        self._lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._locked, self._patience = False, clock() + LEFT_S
        self._errands: dict[str, _Errand] = {}
        self._idle: list[_Child] = []
        self._left: list[tuple[_Child, str]] = []
        self._news: list[str] = []
        self._died: dict[str, str] = {}
        self._poll = select.epoll()

    def __call__(self, key: str, errand: str, arguments: dict[str, Any], remote: bool) -> Evidence | None:
        """The evidence, or None: ask again. One errand for each key. Raises OSError, `StepFailed`."""
        asked = self._errands.get(key)
        if asked is not None and asked.again:
            del self._errands[key]
            self._died[key] = asked.died
        if asked is None or asked.again:
            if not remote:
                return ERRANDS[errand](**arguments)
            second = asked is not None and asked.name == errand
            new = _Errand(errand, arguments, self._died[key] if second else "")
            self._refuse(new)
            self._errands[key] = new
            self._begin()
            return None
        self._look()
        if asked.again or (asked.answer is None and not asked.late):
            return None
        del self._errands[key]
        if asked.name != errand:
            self._news.append(key)  # an older question: what came of it is to be looked at first
            return None
        if asked.answer is None:
            raise TimeoutError(errno.ETIMEDOUT, f"the file system did not answer within {self._seconds:g} s")
        if asked.answer.code:
            raise OSError(asked.answer.code, asked.answer.words, asked.answer.path or None)
        return asked.answer.evidence

    def answered(self) -> list[str]:
        """Keys under which there is something new since the last call."""
        self._look()
        news, self._news = self._news, []
        return news

    def pending(self, key: str) -> bool:
        """Whether something was asked under this key and is not answered yet."""
        asked = self._errands.get(key)
        return asked is not None and not asked.over

    def died(self, key: str) -> str:
        """How a child that was sent under this key died, so that there was a second try; ''."""
        return self._died.get(key, "")

    def due(self) -> float | None:
        """When, by the clock, to look again though no child has said anything; None: never."""
        ends = [one.until for one in self._errands.values() if one.child is not None]
        if any(place for _, place in self._left):
            ends.append(self._clock() + HANGS_S)  # whether one has ended
        return min([*ends, *(child.idle_since + IDLE_S for child in self._idle)], default=None)

    def fileno(self) -> int:
        """Readable when a child has said something."""
        return self._poll.fileno()

    def forget(self, key: str) -> None:
        """Nobody asks for it any more, nor for what is below it; a child at work for it is ended."""
        for name in [name for name in self._errands if name == key or name.startswith(f"{key}/")]:
            self._leave(self._errands.pop(name))
        for name in [name for name in self._died if name == key or name.startswith(f"{key}/")]:
            del self._died[name]

    def alone(self) -> bool:
        """Whether no child of a predecessor is at work any more, as far as such a child ends at all."""
        if not self._locked:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._locked = True
        return self._locked or self._clock() >= self._patience

    @property
    def abandoned(self) -> int:
        """Children that do not end."""
        self._sweep()
        return sum(1 for _, place in self._left if place)

    @property
    def hanging(self) -> str:
        """Where children do not end though they were told to, and how many; ''."""
        self._sweep()
        since = self._clock() - HANGS_S
        places = Counter(place for child, place in self._left if place and child.left <= since)
        return ", ".join(f"{count} at {place}" for place, count in sorted(places.items()))

    def close(self) -> None:
        """End all; may be called twice."""
        for errand in self._errands.values():
            self._leave(errand)
        for child in self._idle:
            self._end(child, "")
        self._sweep()
        for child, _ in self._left:
            child.close()
        self._errands.clear()
        self._idle.clear()
        self._left.clear()
        self._poll.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # ------------------------------------------------------------------------------------------- children

    def _refuse(self, errand: _Errand) -> None:
        """Whoever hangs is not joined by others without end."""
        if self.abandoned >= self._room:
            raise StepFailed(f"{self._room} children hang in file systems that do not answer")
        here = sum(1 for _, place in self._left if place == errand.place)
        if here >= max(1, self._room // 2):
            raise StepFailed(f"{here} children hang at {errand.place}, which does not answer")

    def _look(self) -> None:
        """Take what children have said, leave those that are late, and give the free ones something to do."""
        self._begin()
        spoken = {fd for fd, _ in self._poll.poll(0)}
        now = self._clock()
        for key, errand in self._errands.items():
            child = errand.child
            if child is None or (child.out not in spoken and now < errand.until):
                continue
            answer = child.answer()
            if answer is None and not child.died and now < errand.until:
                continue
            if child.died and errand.died:
                answer = Answer(code=errno.EIO, words=f"{child.how()}, twice")
            elif child.died:
                errand.died, errand.again = child.how(), True
            errand.answer, errand.late = answer, answer is None and not child.died
            self._news.append(key)
            if answer is None or child.died:
                self._leave(errand)
            else:
                self._poll.unregister(child.out)
                errand.child, child.idle_since = None, now
                self._idle.append(child)
        for child in [child for child in self._idle if now - child.idle_since >= IDLE_S]:
            self._idle.remove(child)
            self._end(child, "")
        self._begin()

    def _begin(self) -> None:
        """Give children to errands that wait for one."""
        busy = Counter(one.place for one in self._errands.values() if one.child is not None)
        for key, errand in self._errands.items():
            if busy.total() >= AT_ONCE:
                return
            if errand.child or errand.over or busy[errand.place] >= AT_ONCE // 2:
                continue
            try:
                errand.child = self._given(errand)
            except OSError as error:  # no more processes, or descriptors
                errand.answer = Answer(code=error.errno or errno.EIO, words=error.strerror or str(error))
                self._news.append(key)
                continue
            errand.until = self._clock() + self._seconds
            self._poll.register(errand.child.out, select.EPOLLIN)
            busy[errand.place] += 1

    def _given(self, errand: _Errand) -> _Child:
        """A child that has got the errand; one that rests may have died meanwhile."""
        while self._idle:
            child = self._idle.pop()
            if child.ask(errand.name, errand.arguments):
                return child
            self._end(child, "")
        child = _Child(self._lock)
        if not child.ask(errand.name, errand.arguments):
            self._end(child, "")
            raise OSError(errno.EIO, _DIED)
        return child

    def _leave(self, errand: _Errand) -> None:
        if errand.child is not None:
            self._poll.unregister(errand.child.out)
            self._end(errand.child, errand.place)
            errand.child = None

    def _end(self, child: _Child, place: str) -> None:
        """`place`: where it may hang; '' if it was at rest."""
        child.kill()
        child.left = self._clock()
        self._left.append((child, place))
        self._sweep()

    def _sweep(self) -> None:
        """Forget those that have ended."""
        for child, place in [one for one in self._left if one[0].gone()]:
            child.close()
            self._left.remove((child, place))


def main() -> None:
    """Do what standard input asks, but not for a parent that is gone: its successor asks anew."""
    syscalls.end_with_parent()
    for line in sys.stdin.buffer:
        question = msgspec.json.decode(line)
        if os.getppid() != question["parent"]:
            return
        try:
            answer = Answer(evidence=ERRANDS[question["errand"]](**question["arguments"]))
        except OSError as error:
            path = error.filename if isinstance(error.filename, str) else ""
            answer = Answer(code=error.errno or errno.EIO, words=error.strerror or str(error), path=path)
        except Exception as error:  # noqa: BLE001 - who ends without an answer was killed
            answer = Answer(code=errno.EIO, words=f"internal error: {error!r}; please report it")
        os.write(1, msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main()
