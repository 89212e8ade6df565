"""The child that does one errand and ends, and its parent's side: `python -m xce.prepare.child`.

The question comes as JSON on its standard input, the answer goes as JSON to its standard output. A child that
hangs in the kernel cannot be ended: it is sent SIGKILL, left behind, and counted while it is there.

It ends with its parent: a child of an agent that was killed and one of its successor never work on one thing.
What it is in the middle of, a mount for instance, the kernel finishes first; so the successor waits until the
last of them is gone (`alone`), which a lock tells that all children of an agent share.
"""

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from xce.linux import spawn, syscalls
from xce.prepare.errand import ERRANDS
from xce.prepare.step import Evidence, StepFailed

ABANDONED = 16
"""Children that did not end; with so many of them none is sent any more."""
LEFT_S = 2.0
"""A predecessor's child that is still there so long after our start hangs, and is not waited for."""
_ANSWER_BYTES = 1 << 20
_LOCK = 3
"""A child's descriptor of the lock."""


class Answer(msgspec.Struct, frozen=True):
    """What a child says: evidence, or why there is none."""

    evidence: Evidence = {}
    code: int = 0
    words: str = ""
    path: str = ""


class _Sent:
    """A child on its way."""

    def __init__(self, errand: str, arguments: dict[str, Any], until: float, lock: int) -> None:
        self.errand, self.until = errand, until
        asked = os.pipe2(os.O_CLOEXEC)
        told = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(told[0], False)
        self.out, self.text = told[0], b""
        try:
            environment = {"PYTHONPATH": os.pathsep.join(sys.path), "LC_ALL": "C.UTF-8"}
            command = [sys.executable, "-m", "xce.prepare.child"]
            fds = {0: asked[0], 1: told[1], _LOCK: lock}
            self.handle = spawn.handle(spawn.spawn(command, environment, fds=fds))
            question = {"errand": errand, "arguments": arguments, "parent": os.getpid()}
            with contextlib.suppress(BrokenPipeError):  # it has died: it will not answer either
                os.write(asked[1], msgspec.json.encode(question))
        except OSError:
            os.close(self.out)
            raise
        finally:
            for fd in (*asked, told[1]):
                os.close(fd)

    def answer(self) -> Answer | None:
        """What it said; None if it has not ended yet."""
        try:
            while len(self.text) < _ANSWER_BYTES and (more := os.read(self.out, 1 << 16)):
                self.text += more
        except BlockingIOError:
            return None
        try:
            return msgspec.json.decode(self.text, type=Answer)
        except msgspec.MsgspecError:
            return Answer(code=5, words="the child that was sent for it died")

    def kill(self) -> None:
        """Tell it to end, whatever it does."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def gone(self) -> bool:
        """Whether it has ended; it is reaped if the agent's reaper has not been there before.

        Not by its number: that may be another child's by then, which the reaper would never hear of.
        """
        try:
            return os.waitid(os.P_PIDFD, self.handle, os.WEXITED | os.WNOHANG) is not None
        except ChildProcessError:
            return True

    def close(self) -> None:
        """Let go of the descriptors."""
        os.close(self.out)
        os.close(self.handle)


class Errands:
    """Does errands, here or in children; `(key, errand, arguments, remote) -> evidence or None`."""

    def __init__(
        self, clock: Callable[[], float], seconds: float, *, home: str, abandoned: int = ABANDONED
    ) -> None:
        """`home` is a directory of ours alone; it carries the lock. Raises OSError."""
        self._clock, self._seconds, self._room = clock, seconds, abandoned
        self._lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._locked, self._patience = False, clock() + LEFT_S
        self._sent: dict[str, _Sent] = {}
        self._left: list[_Sent] = []

    def __call__(self, key: str, errand: str, arguments: dict[str, Any], remote: bool) -> Evidence | None:
        """The evidence, or None: ask again. One child for each key. Raises OSError, `StepFailed`."""
        sent = self._sent.get(key)
        if sent is None and not remote:
            return ERRANDS[errand](**arguments)
        if sent is None:
            self.sweep()
            if len(self._left) >= self._room:
                raise StepFailed(f"{self._room} children hang in file systems that do not answer")
            self._sent[key] = _Sent(errand, arguments, self._clock() + self._seconds, self._lock)
            return None
        answer = sent.answer()
        if answer is None and self._clock() < sent.until:
            return None
        self._end(key)
        if answer is None:
            raise TimeoutError(110, f"the file system did not answer within {self._seconds:g} s")
        if answer.code:
            raise OSError(answer.code, answer.words, answer.path or None)
        # To an older question: what came of it is looked at anew.
        return answer.evidence if sent.errand == errand else None

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
        self.sweep()
        return len(self._left)

    def sweep(self) -> None:
        """Forget those that have ended."""
        for sent in [sent for sent in self._left if sent.gone()]:
            sent.close()
            self._left.remove(sent)

    def close(self) -> None:
        """End all; may be called twice."""
        for key in list(self._sent):
            self._end(key)
        for sent in self._left:
            sent.close()
        self._left.clear()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _end(self, key: str) -> None:
        sent = self._sent.pop(key)
        sent.kill()
        self._left.append(sent)
        self.sweep()


def main() -> None:
    """Do what standard input asks, but not for a parent that is gone: its successor asks anew."""
    syscalls.end_with_parent()
    question = msgspec.json.decode(sys.stdin.buffer.read())
    if os.getppid() != question["parent"]:
        return
    try:
        answer = Answer(evidence=ERRANDS[question["errand"]](**question["arguments"]))
    except OSError as error:
        path = error.filename if isinstance(error.filename, str) else ""
        answer = Answer(code=error.errno or 5, words=error.strerror or str(error), path=path)
    os.write(1, msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
