"""A program under test, with its output read line by line as it comes."""

import os
import queue
import subprocess
import threading
import time
from collections.abc import Sequence
from types import TracebackType


class Program:
    """A running program; killed at the end of the `with` block if it is still there."""

    def __init__(self, argv: Sequence[str], **environment: str) -> None:
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment or None,
        )
        self.lines: list[str] = []
        """Everything that was waited for and came."""
        self._queue: queue.Queue[str] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def until(self, text: str, seconds: float = 20) -> str:
        """The next line with `text` in it."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                line = self._queue.get(timeout=left)
            except queue.Empty:
                break
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"no line with {text!r} within {seconds} s; there were: {self.lines[-20:]}")

    def wait(self, seconds: float = 20) -> int:
        """The exit status."""
        return self.process.wait(seconds)

    def __enter__(self) -> "Program":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._thread.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))


def without_reader(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """A program that has ended by itself, though nobody read what it printed: the pipe was closed before."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
