"""How a command ends that nobody reads any more, or whose output has no room: never with a traceback.

Here because the commands of both programs can import it; it imports nothing that they would have to pay for.
"""

import os
import select
import sys
from collections.abc import Callable

UNREAD, UNWRITTEN = 0, 2
"""Exit codes: whoever read it has seen enough (`| head`), or its output cannot be written."""


def carried_out(name: str, command: Callable[[], int]) -> int:
    """The exit code of `command`, which prints; `name` is what a person has typed."""
    try:
        try:
            return command()
        finally:
            print(end="", flush=True)  # at Python's own end it would be too late for words
    except BrokenPipeError:
        _silence()
        return UNREAD
    except OSError as error:  # a full disk behind `>`, mostly
        _silence()
        what = error.filename or "the output"
        print(f"{name}: cannot use {what}: {error.strerror or error}", file=sys.stderr)
        return UNWRITTEN


def need_reader() -> None:
    """Raise BrokenPipeError if whoever reads our output has left: who prints nothing would not notice."""
    poll = select.poll()
    poll.register(1, 0)
    if any(events & select.POLLERR for _, events in poll.poll(0)):
        raise BrokenPipeError


def _silence() -> None:
    """Python would try to write once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
