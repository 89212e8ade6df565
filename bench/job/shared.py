"""What the three processes of a job share: its description, and two counters in a mapped file."""

import mmap
import struct
from pathlib import Path

import msgspec


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The description of one run; given to publisher and consumer as JSON."""

    hub: str
    address: str = ""
    """Path of a unix socket, or port on loopback, as the hub wants it."""
    counters: str = ""
    """Path of the file of `Counters`."""
    hosts: int = 500
    values: int = 20
    rounds: int = 60
    """Reports of each host in the phase that runs flat out."""
    rates: tuple[float, ...] = ()
    """Reports per second of the phases that follow."""
    seconds: float = 5
    """Length of each of these."""
    window: int = 1000
    """Flat out, the publisher is never further ahead of the consumer."""
    keys: str = ""
    """Directory with `agent.key`, `controller.key` and `broker.pub`; '' for no CURVE."""

    def total(self, phase: int) -> int:
        """Reports of a phase; 0 is the one that runs flat out."""
        return self.hosts * self.rounds if phase == 0 else int(self.rates[phase - 1] * self.seconds)


class Counters:
    """How many reports of this phase the consumer has, and which phase is on."""

    _RECEIVED, _PHASE = 0, 8

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 16)

    @property
    def received(self) -> int:
        """Reports that the consumer has in this phase."""
        return self._get(self._RECEIVED)

    @received.setter
    def received(self, count: int) -> None:
        self._set(self._RECEIVED, count)

    @property
    def phase(self) -> int:
        """-1 before the first phase."""
        return self._get(self._PHASE) - 1

    @phase.setter
    def phase(self, phase: int) -> None:
        self._set(self._PHASE, phase + 1)

    def _get(self, place: int) -> int:
        number: int = struct.unpack_from("<Q", self._map, place)[0]
        return number

    def _set(self, place: int, number: int) -> None:
        struct.pack_into("<Q", self._map, place, number)
