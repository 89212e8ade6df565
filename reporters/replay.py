"""Recorded runs, and a reporter that plays them again.

A recording is JSON lines, one per event, in order: `{"at": SECONDS, "line": TEXT}` for a line of output,
`"stderr"` for text written there, `"exit"` for the status that ends a run (negative: the signal's number).
Times count from the start of the recording. A frame stays what the reporter printed, byte for byte, so what
is wrong in it is still wrong when it is played.

Played as a persistent reporter, a run that ended badly is silent, as it was for the agent: its output is left
out and its stderr kept. Reading raises `RecordingError` with the line.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

SURROGATES = "surrogateescape"
"""How bytes that are not UTF-8 stay themselves inside a JSON string of a recording."""


class RecordingError(Exception):
    """A line of a recording is not an event; the message names it."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One event of a recording; exactly one of the three is there."""

    at: float
    line: str | None = None
    stderr: str | None = None
    exit: int | None = None

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.line, self.stderr, self.exit)) != 1:
            raise ValueError("an event has one of: line, stderr, exit")
        if self.at < 0:
            raise ValueError("'at' is below 0")


class Recorder:
    """Writes events as they happen. `write` takes the bytes of one line."""

    def __init__(self, write: Callable[[bytes], object], now: Callable[[], float]) -> None:
        self._write, self._now, self._start = write, now, now()

    def line(self, data: bytes) -> None:
        """A line of output, with or without its newline."""
        self._event(line=_text(data.removesuffix(b"\n")))

    def stderr(self, data: bytes) -> None:
        """Text written to stderr."""
        self._event(stderr=_text(data))

    def exited(self, status: int) -> None:
        """The end of a run."""
        self._event(exit=status)

    def _event(self, **what: str | int) -> None:
        event = {"at": round(self._now() - self._start, 3), **what}
        self._write(msgspec.json.encode(event) + b"\n")


def read(lines: Iterable[bytes]) -> Iterator[Event]:
    """The events of a recording."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield msgspec.json.decode(line, type=Event)
        except (msgspec.MsgspecError, ValueError) as error:
            raise RecordingError(f"line {number} is no event of a recording: {error}") from error


def runs(events: Iterable[Event]) -> Iterator[tuple[list[Event], int]]:
    """Events grouped by run, each with the status that ended it; 0 for one that was still going."""
    run: list[Event] = []
    for event in events:
        run.append(event)
        if event.exit is not None:
            yield run, event.exit
            run = []
    if run:
        yield run, 0


def play(
    events: Iterable[Event],
    *,
    out: Callable[[bytes], object],
    err: Callable[[bytes], object],
    sleep: Callable[[float], object],
    speed: float = 1.0,
) -> None:
    """Print what was recorded, at its times divided by `speed`."""
    at = 0.0
    for run, status in runs(events):
        for event in run:
            if event.at > at:
                sleep((event.at - at) / speed)
                at = event.at
            if event.line is not None and status == 0:
                out(_bytes(event.line) + b"\n")
            elif event.stderr is not None:
                err(_bytes(event.stderr))


def main(argv: Sequence[str]) -> int:
    """`xce-reporter replay FILE [--speed N] [--loop]`: to be run as a persistent reporter."""
    import argparse  # noqa: PLC0415 - only this program needs them
    import time  # noqa: PLC0415

    parser = argparse.ArgumentParser(
        prog="xce-reporter replay",
        description="Print a recording again, as a persistent reporter.",
        epilog="example: xce-reporter replay gpu_health.jsonl --speed 10 --loop",
    )
    parser.add_argument("file", help="made by: xce-agent reporter record NAME")
    parser.add_argument("--speed", type=_positive, default=1.0, help="times as fast (default 1)")
    parser.add_argument("--loop", action="store_true", help="begin again at the end")
    options = parser.parse_args(argv)
    try:
        while True:
            with open(options.file, "rb") as file:
                play(read(file), out=_to(1), err=_to(2), sleep=time.sleep, speed=options.speed)
            if not options.loop:
                return 0
            time.sleep(1)
    except (OSError, RecordingError) as error:
        words = error.strerror if isinstance(error, OSError) else error
        _to(2)(f"xce-reporter replay: cannot play {options.file}: {words}\n".encode())
        return 1


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


def _to(descriptor: int) -> Callable[[bytes], object]:
    """A writer that is not buffered: a frame counts when it arrives."""

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(descriptor, data) :]

    return write


def _text(data: bytes) -> str:
    """Text that JSON can hold; a byte that is not UTF-8 becomes a private character (see `_bytes`)."""
    return "".join(
        chr(0xF700 + ord(char) - 0xDC00) if "\udc80" <= char <= "\udcff" else char
        for char in data.decode("utf-8", SURROGATES)
    )


def _bytes(text: str) -> bytes:
    """What `_text` was made from."""
    return "".join(
        chr(0xDC00 + ord(char) - 0xF700) if "\uf780" <= char <= "\uf7ff" else char for char in text
    ).encode("utf-8", SURROGATES)
