"""One run of the job on one hub: starts the three processes, follows the phases, accounts."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench import machine
from bench.children import Child, python, started
from bench.job.hubs import HUBS
from bench.job.shared import Counters, Job

_LONG_S = 120


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """What one phase gave."""

    reports: int
    changes: int
    """Those that the consumer saw one by one; a hub may merge reports of one host."""
    whole: bool
    """Nothing was lost."""
    wall_s: float
    hub_s: float
    """CPU of the hub."""
    publisher_s: float
    consumer_s: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float

    @property
    def reports_s(self) -> float:
        """Reports per second of wall time."""
        return self.reports / self.wall_s

    @property
    def hub_us(self) -> float:
        """CPU of the hub per report, in microseconds."""
        return self.hub_s / self.reports * 1e6

    @property
    def hub_share(self) -> float:
        """CPU of the hub as a share of one core."""
        return self.hub_s / self.wall_s


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one run gave."""

    hub: str
    phases: list[Phase]
    """The one that runs flat out, then the rates."""
    snapshot_ms: float | None
    same: bool | None
    """The snapshot equals the mirror; None where the hub keeps none."""
    trouble: str
    memory_kb: int

    @property
    def fault(self) -> str:
        """Why it does not count; '' when it does."""
        if not all(phase.whole for phase in self.phases):
            return f"{self.hub}: reports were lost"
        if self.same is False:
            return f"{self.hub}: the snapshot is not what the stream said"
        return self.trouble and f"{self.hub}: {self.trouble}"


def run(job: Job) -> Outcome:
    """Run a job; its `hub` names the hub, its address and counters are filled in here."""
    hub = HUBS[job.hub]
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xce-bench-")))
        (work / "hub").mkdir()
        server = stack.enter_context(hub.serve(work / "hub", job))
        job = msgspec.structs.replace(
            job, address=server.address, keys=server.keys, counters=str(work / "counters")
        )
        counters = Counters(Path(job.counters), create=True)
        described = msgspec.json.encode(job).decode()
        consumer = stack.enter_context(started(python("bench.job.consumer", described), work / "consumer"))
        consumer.answer(_LONG_S)
        publisher = stack.enter_context(started(python("bench.job.publisher", described), work / "publisher"))
        publisher.answer(_LONG_S)
        seeded = consumer.answer(_LONG_S)
        if seeded["received"] != seeded["wanted"]:
            raise ValueError(f"cannot run the job on {hub.name}: {seeded['received']} hosts have reported")
        phases = [
            _phase(phase, counters, server.child, publisher, consumer) for phase in range(len(job.rates) + 1)
        ]
        fetched = consumer.answer(_LONG_S)
        ended = publisher.answer(_LONG_S)
        return Outcome(
            hub=hub.name,
            phases=phases,
            snapshot_ms=msgspec.convert(fetched["snapshot_ms"], float | None),
            same=msgspec.convert(fetched["same"], bool | None),
            trouble=str(ended["trouble"]),
            memory_kb=machine.memory_kb(server.child.pid),
        )


def _phase(phase: int, counters: Counters, hub: Child, publisher: Child, consumer: Child) -> Phase:
    time.sleep(0.3)
    cpu = machine.cpu_ns(hub.pid)
    counters.phase = phase
    seen = consumer.answer(_LONG_S)
    cpu = machine.cpu_ns(hub.pid) - cpu
    sent = publisher.answer(_LONG_S)
    return msgspec.convert(
        {
            **{name: seen[name] for name in ("changes", "wall_s", "p50_ms", "p99_ms", "p999_ms", "max_ms")},
            "reports": seen["received"],
            "whole": seen["received"] == seen["wanted"],
            "hub_s": cpu / 1e9,
            "publisher_s": sent["cpu_s"],
            "consumer_s": seen["cpu_s"],
        },
        Phase,
    )
