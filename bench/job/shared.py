"""What the three processes of a job share: its description, and two counters in a mapped file."""

import mmap
import struct
from pathlib import Path

import msgspec

FLAT_OUT = 0.0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The description of one run; given to publisher and consumer as JSON."""

    hub: str
    address: str = ""
    """Path of a unix socket, or port on loopback, as the hub wants it."""
    counters: str = ""
    """Path of the file of `Counters`."""
    first: int = 0
    """Number of the first host; several publishers have a part of the hosts each."""
    hosts: int = 500
    values: int = 20
    instances: int = 0
    """Of an inventory that each host has; 0: none."""
    variants: int = 8
    """Different reports per host, sent in turn: every value differs from the one before."""
    phases: tuple[float, ...] = ()
    """Reports per second in each, or `FLAT_OUT`."""
    rounds: int = 60
    """Reports of each host in a phase that runs flat out."""
    seconds: float = 5
    """Length of a phase at a rate."""
    window: int = 1000
    """Flat out, the publisher is never further ahead of the consumer."""
    keys: str = ""
    """Directory with `agent.key`, `controller.key` and `broker.pub`; '' for no CURVE."""

    def total(self, phase: int) -> int:
        """Reports of a phase."""
        rate = self.phases[phase]
        return self.hosts * self.rounds if rate == FLAT_OUT else int(rate * self.seconds)


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
