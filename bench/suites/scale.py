"""Ten thousand connected hosts.

How long a report may wait (G15), also while snapshots are taken (G11.wait), and what a snapshot of hosts with
many devices costs somebody who holds their inventories (G12).
"""

import time
from contextlib import ExitStack

from bench.children import ChildFailed, python, started
from bench.figures import Cell, Figure, Result, figure
from bench.job.run import Stage, stage
from bench.job.shared import Job
from bench.suite import Lines, Options, without_verdict
from xce.broker.client import Broker, Client

GOALS = ("G11.wait", "G12", "G15")
_INSTANCES = 32
_PUBLISHERS = 2
_EACH_S = 1.0


def run(options: Options) -> Lines:
    """Both stages, one after the other."""
    hosts = options.pick(10_000, 1000)
    try:
        yield from _waiting(options, hosts)
    except ChildFailed as error:
        yield from without_verdict(("G15", "G11.wait"), str(error))
    try:
        yield from _devices(options, hosts)
    except ChildFailed as error:
        yield from without_verdict(("G12",), str(error))


def _waiting(options: Options, hosts: int) -> Lines:
    """At 1,000 reports/s, windows without and with snapshots in turn."""
    windows = options.repetitions
    job = Job(
        hub="xce-broker",
        hosts=hosts,
        variants=2,
        phases=(1000.0,) * (2 * windows),
        seconds=options.pick(12.0, 2.0),
    )
    alone: list[float] = []
    beside: list[float] = []
    with stage(job, publishers=_PUBLISHERS) as staged:
        for window in range(windows):
            plain = staged.phase(2 * window)
            with _Snapshots(staged) as snapshots:
                busy = staged.phase(2 * window + 1, meanwhile=snapshots.start)
            alone.append(plain.max_ms)
            beside.append(busy.max_ms)
            values = {"max_ms": plain.max_ms, "p999_ms": plain.p999_ms, "p99_ms": plain.p99_ms}
            values |= {"snap.max_ms": busy.max_ms, "snap.p999_ms": busy.p999_ms, "snap.p99_ms": busy.p99_ms}
            yield Cell(suite="scale", side=f"window {window}", values={**values})
        _, same, trouble = staged.end()
    trouble = trouble or ("" if same else "the snapshot is not what the stream said")
    yield _result("G15", figure(alone), trouble)
    yield _result("G11.wait", figure(beside), trouble)


class _Snapshots(ExitStack):
    """Somebody who takes snapshots for the length of a phase."""

    def __init__(self, staged: Stage) -> None:
        super().__init__()
        self._staged = staged

    def start(self) -> None:
        seconds = str(self._staged.job.seconds)
        argv = python("bench.job.snapshots", self._staged.address, seconds, str(_EACH_S))
        self.enter_context(started(argv, self._staged.work / "snapshots"))


def _devices(options: Options, hosts: int) -> Lines:
    """A snapshot when only references of inventories travel, and what their bodies would cost."""
    job = Job(hub="xce-broker", hosts=hosts, instances=_INSTANCES, variants=1)
    times: list[float] = []
    with ExitStack() as stack:
        staged = stack.enter_context(stage(job, publishers=_PUBLISHERS, consumer=False))
        client = stack.enter_context(Client(Broker(f"ipc://{staged.address}"), timeout=60))
        for _ in range(options.repetitions):
            start = time.monotonic()
            mirror = client.snapshot()
            times.append((time.monotonic() - start) * 1e3)
            known = sum(bool(view.inventories) for view in mirror.locations.values())
            yield Cell(suite="scale", side="devices", values={"ms": times[-1], "inventories": known})
    found = figure(times)
    trouble = "" if known == hosts else f"only {known} of {hosts} hosts have an inventory"
    yield Result(goal="G12", judged=found, measured=found, unit="ms", trouble=trouble)


def _result(goal: str, found: Figure, trouble: str) -> Result:
    return Result(goal=goal, judged=found, measured=found, unit="ms", trouble=trouble)
