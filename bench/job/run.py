"""One run of the job on one hub: starts the three processes, follows the phases, accounts."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench import machine
from bench.children import Child, ChildFailed, python, started
from bench.job.hub import Server
from bench.job.hubs import HUBS
from bench.job.shared import Counters, Job

_LONG_S = 120
_SETTLE_S = 0.3
_LATENCIES = ("p50_ms", "p99_ms", "p999_ms", "max_ms")


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


class Stage:
    """The processes of a job, all hosts having reported once."""

    def __init__(self, job: Job, server: Server, work: Path) -> None:
        self.job, self.hub, self.work = job, server.child, work
        self.address = server.address
        self._counters = Counters(Path(job.counters), create=True)
        self._consumer: Child | None = None
        self._publishers: list[Child] = []

    def start(self, stack: ExitStack, *, publishers: int, consumer: bool) -> None:
        """Start the consumer, then the publishers, each with its part of the hosts."""
        if consumer:
            self._consumer = self._started(stack, "consumer", self.job)
        share = self.job.hosts // publishers
        rates = tuple(rate / publishers for rate in self.job.phases)
        for number in range(publishers):
            part = msgspec.structs.replace(self.job, first=number * share, hosts=share, phases=rates)
            self._publishers.append(self._started(stack, f"publisher{number}", part))
        if self._consumer is None:
            HUBS[self.job.hub].await_all(self.job)
            return
        seeded = self._consumer.answer(_LONG_S)
        if seeded["received"] != seeded["wanted"]:
            raise ChildFailed(f"only {seeded['received']} of {seeded['wanted']} hosts have reported")

    def _started(self, stack: ExitStack, name: str, job: Job) -> Child:
        argv = python(f"bench.job.{name.rstrip('0123456789')}", msgspec.json.encode(job).decode())
        child = stack.enter_context(started(argv, self.work / name, answers=True))
        child.answer(_LONG_S)
        return child

    def unwatched(self, number: int) -> float:
        """The next phase without a consumer; CPU of the hub per report, in seconds."""
        time.sleep(_SETTLE_S)
        cpu = machine.cpu_ns(self.hub.pid)
        self._counters.phase = number
        for child in self._publishers:
            child.answer(_LONG_S)
        time.sleep(_SETTLE_S)
        return (machine.cpu_ns(self.hub.pid) - cpu) / 1e9 / self.job.total(number)

    def phase(self, number: int, meanwhile: Callable[[], object] = lambda: None) -> Phase:
        """The next phase, with something done `meanwhile`."""
        time.sleep(_SETTLE_S)
        cpu = machine.cpu_ns(self.hub.pid)
        self._counters.phase = number
        meanwhile()
        assert self._consumer is not None
        seen = self._consumer.answer(_LONG_S)
        cpu = machine.cpu_ns(self.hub.pid) - cpu
        sent = [child.answer(_LONG_S)["cpu_s"] for child in self._publishers]
        figures = {name: seen[name] for name in ("changes", "wall_s", *_LATENCIES)}
        own = {
            "reports": seen["received"],
            "whole": seen["received"] == seen["wanted"],
            "hub_s": cpu / 1e9,
            "publisher_s": sum(float(spent or 0) for spent in sent),
            "consumer_s": seen["cpu_s"],
        }
        return msgspec.convert({**figures, **own}, Phase)

    def leave(self) -> None:
        """End the hosts, so that they do not connect again."""
        for child in self._publishers:
            child.stop()

    def end(self) -> tuple[float | None, bool | None, str]:
        """After the last phase: ms of a snapshot, whether it is the mirror, what the hub complained of."""
        assert self._consumer is not None
        fetched = self._consumer.answer(_LONG_S)
        trouble = [str(said) for child in self._publishers if (said := child.answer(_LONG_S)["trouble"])]
        return msgspec.convert(
            (fetched["snapshot_ms"], fetched["same"], "; ".join(trouble)),
            tuple[float | None, bool | None, str],
        )


@contextmanager
def stage(job: Job, *, publishers: int = 1, consumer: bool = True) -> Iterator[Stage]:
    """Start a job; its `hub` names the hub, its address and counters are filled in here."""
    hub = HUBS[job.hub]
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xce-bench-")))
        (work / "hub").mkdir()
        server = stack.enter_context(hub.serve(work / "hub", job))
        job = msgspec.structs.replace(
            job, address=server.address, keys=server.keys, counters=str(work / "counters")
        )
        staged = Stage(job, server, work)
        staged.start(stack, publishers=publishers, consumer=consumer)
        yield staged


def run(job: Job) -> Outcome:
    """Run a job from its first phase to the comparison at its end."""
    with stage(job) as staged:
        phases = [staged.phase(number) for number in range(len(job.phases))]
        snapshot_ms, same, trouble = staged.end()
        return Outcome(
            hub=job.hub,
            phases=phases,
            snapshot_ms=snapshot_ms,
            same=same,
            trouble=trouble,
            memory_kb=machine.memory_kb(staged.hub.pid),
        )
