"""Processes that a benchmark starts, and ends again whatever happens.

Each one has a session of its own, so that ending it ends what it has started, and nothing else.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

ROOT = Path(__file__).resolve().parents[1]
_END_S = 10

Said = dict[str, int | float | bool | str | None]


def say(**what: int | float | bool | str | None) -> None:
    """In a child: one line for `Child.answer`."""
    print(msgspec.json.encode(what).decode(), flush=True)


def environment() -> dict[str, str]:
    """Ours, but bytecode is kept, as that of an installed program is."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class ChildFailed(Exception):
    """A process of a benchmark ended or was late; the message ends with its last output."""


class Child:
    """A running process. What it prints goes to a file; with `answers` stdout is read here, line by line."""

    def __init__(self, argv: Sequence[str], log: Path, *, answers: bool = False, **variables: str) -> None:
        self.argv, self.log = list(argv), log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if answers else errors,
                stderr=errors,
                cwd=ROOT,
                env={**environment(), **variables},
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it is no longer running."""
        return self._process.poll() is not None

    def line(self, timeout_s: float) -> bytes:
        """Its next line of output; raises `ChildFailed` when it ends or is late."""
        output: IO[bytes] | None = self._process.stdout
        assert output is not None
        deadline = time.monotonic() + timeout_s
        text = bytearray()
        os.set_blocking(output.fileno(), False)
        while not text.endswith(b"\n"):
            piece = output.readline()
            if piece:
                text += piece
            elif self.ended or time.monotonic() > deadline:
                raise ChildFailed(self.story("ended" if self.ended else f"said nothing for {timeout_s:g} s"))
            else:
                time.sleep(0.002)
        return bytes(text)

    def answer(self, timeout_s: float) -> Said:
        """Its next line, decoded."""
        return msgspec.json.decode(self.line(timeout_s), type=Said)

    def story(self, what: str) -> str:
        """A sentence for an error, with the last line of its log."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return f"{self.log.parent.name}/{self.log.name}: {what}: {lines[-1] if lines else 'without a word'}"

    def poke(self, number: int) -> None:
        """Send a signal to it alone."""
        os.kill(self.pid, number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it and its session; may be called twice."""
        if not self.ended:
            os.killpg(self.pid, number)
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.pid, signal.SIGKILL)
                self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


@contextmanager
def started(argv: Sequence[str], log: Path, *, answers: bool = False, **variables: str) -> Iterator[Child]:
    """A process for as long as the block lasts; `variables` are added to its environment."""
    child = Child(argv, log, answers=answers, **variables)
    try:
        yield child
    finally:
        child.stop()


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs one of our modules on this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def wait_for(condition: Callable[[], object], child: Child, what: str, timeout_s: float = 20) -> None:
    """Poll until `condition()` is true; raises `ChildFailed` when the child ends or time is over."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if child.ended:
            raise ChildFailed(child.story(f"ended before {what}"))
        if time.monotonic() > deadline:
            raise ChildFailed(child.story(f"was not {what} after {timeout_s:g} s"))
        time.sleep(0.005)


def connects(address: tuple[str, int] | str) -> bool:
    """Whether somebody accepts connections at a TCP address or unix socket path."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.3)
        return probe.connect_ex(address) == 0


def free_port() -> int:
    """A free TCP port below the range from which clients' ports are taken (500 clients would collide)."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
                return port
