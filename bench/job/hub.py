"""What the job wants of a hub, whoever made it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.children import Child
from bench.job.reports import NUMBER, SENT, Frame, Report, plain
from bench.job.shared import Job
from xce.model.value import Value

Send = Callable[[bytes | bytearray], object]
"""Sends one frame of one host."""
Values = dict[str, Value]

decode_report = msgspec.msgpack.Decoder(Report).decode


class Mirror:
    """What the consumer holds, how many reports that were, and how long each was on its way."""

    def __init__(self) -> None:
        self.hosts: dict[str, Values] = {}
        self.latencies_ns: list[int] = []
        self.received = 0
        """Reports; those that a hub merged into one change are counted by their numbers."""
        self._numbers: dict[str, int] = {}

    def take(self, data: bytes) -> None:
        """A whole report, as hubs pass it on that do not look into it."""
        report = decode_report(data)
        self.change(report.host, report.values)

    def change(self, host: str, values: Values) -> None:
        """Some new values of a host."""
        held = self.hosts.get(host)
        if held is None:
            held = self.hosts[host] = {}
        held.update(values)
        self.note(host, values)

    def note(self, host: str, values: Mapping[str, object]) -> None:
        """Count a change that somebody else has merged."""
        sent, number = values.get(SENT), values.get(NUMBER)
        if isinstance(sent, int) and isinstance(number, int):
            self.latencies_ns.append(time.monotonic_ns() - sent)
            self.received += number - self._numbers.get(host, 0)
            self._numbers[host] = number


class Follower(ABC):
    """The consumer's link to a hub."""

    @abstractmethod
    def pump(self) -> None:
        """Give the mirror what has come, waiting at most 0.2 s for it."""

    mirror: Mirror

    @abstractmethod
    def snapshot(self) -> object:
        """The newest values of all hosts, fetched now; None where the hub keeps none."""

    def mirrored(self) -> object:
        """The same from the stream."""
        return self.mirror.hosts


@dataclass(frozen=True)
class Server:
    """A running hub."""

    child: Child
    address: str
    keys: str = ""
    side: dict[str, str] = field(default_factory=dict)
    """What else its clients must know."""


class Hub(ABC):
    """One hub: its server, and how hosts and the consumer speak with it."""

    name: str
    transport: str

    def missing(self) -> str:
        """Why it cannot run here; '' when it can."""
        return ""

    @abstractmethod
    def serve(self, work: Path, job: Job) -> AbstractContextManager[Server]:
        """Start it, with its files in the empty directory `work`; it accepts connections."""

    def frame(self, job: Job, host: int, variant: int) -> Frame:
        """The report of a host on its wire."""
        return Frame(self.wrap(host, plain(host, variant, job.values)))

    def wrap(self, host: int, report: bytes) -> bytes:
        """What a host sends for a report."""
        return report

    def await_all(self, job: Job) -> None:
        """Wait until the hub has taken what all hosts have reported, where no consumer can tell."""
        time.sleep(1)

    @abstractmethod
    def connect(self, job: Job) -> list[Send]:
        """One connection per host."""

    def seed(self, job: Job, sends: list[Send]) -> None:
        """Report number 1 of each host."""
        for host, send in enumerate(sends):
            send(self.frame(job, job.first + host, 0).stamp(time.monotonic_ns(), 1))

    def finish(self) -> str:
        """After the last phase, in the publisher: what the hub complained of, '' for nothing."""
        return ""

    @abstractmethod
    def follow(self, job: Job, mirror: Mirror) -> Follower:
        """Subscribe; nothing that is reported from now on may be missed."""
