"""From nothing to something: the agent's first values (G24), and `xce-agent status` (G25)."""

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import nodepeers, product
from bench.children import ROOT, ChildFailed, environment, wait_for
from bench.figures import Cell, Result, figure, ratio
from bench.suite import Lines, Options, without_verdict
from xce.broker.client import Broker, Changed, Client, Watch
from xce.model.supply import HostState

GOALS = ("G24", "G24.time", "G25", "G25.time")
_HOST = "node00"
_LATE_S = 20


def run(options: Options) -> Lines:
    """Each program in turn, many times: they are short."""
    try:
        with ExitStack() as stack:
            work = Path(stack.enter_context(TemporaryDirectory(prefix="xce-bench-")))
            (work / "broker").mkdir()
            broker = product.new_broker(work / "broker", hosts=[_HOST])
            stack.enter_context(product.running(broker))
            yield from _starts(options, work, broker)
            yield from _statuses(options, work, broker)
    except ChildFailed as error:
        yield from without_verdict(GOALS, str(error))


def _starts(options: Options, work: Path, broker: product.Broker) -> Lines:
    files = product.new_agent(work / "agent", broker, name=_HOST)
    product.start_once(files)
    peers = options.peers and not nodepeers.exporter_missing()
    ours: list[float] = []
    theirs: list[float] = []
    bare: list[float] = []
    with Client(Broker(f"ipc://{broker.local}")) as client:
        watch = client.watch()
        for _ in range(options.repetitions * 2 + 1):
            ours.append(_first_values(files, watch))
            bare.append(_wall([sys.executable, "-c", "pass"]))
            if peers:
                theirs.append(_first_scrape(work))
            yield Cell(suite="start", side="first values", values={"agent_ms": ours[-1], "bare_ms": bare[-1]})
    found = figure(ours)
    yield Result(
        goal="G24",
        judged=ratio(ours, theirs) if theirs else None,
        measured=found,
        floor=figure(bare),
        peer=figure(theirs) if theirs else None,
        unit="ms",
        trouble="" if theirs else "node_exporter is not installed, or not asked for",
    )
    yield Result(goal="G24.time", judged=found, measured=found, floor=figure(bare), unit="ms")


def _first_values(files: Path, watch: Watch) -> float:
    """Milliseconds from the exec of the agent until a watcher has its load indices.

    A value that is as the agent before it has reported it is no change. When that is so of all of them, all
    that a watcher hears is that the host is available, which the broker says once it has the first report.
    """
    while watch.next(0.3) is not None:
        pass
    start = time.monotonic()
    with product.running_agent(files) as child:
        while time.monotonic() - start < _LATE_S:
            event = watch.next(0.05)
            change = event.delta.changes().get(f"host:{_HOST}") if isinstance(event, Changed) else None
            if change is None:
                continue
            changed = any(isinstance(value, int | float) for value in change.values.values())
            if changed or change.state == HostState.AVAILABLE:
                return (time.monotonic() - start) * 1e3
        raise ChildFailed(child.story("its values did not come"))


def _first_scrape(work: Path) -> float:
    start = time.monotonic()
    with nodepeers.exporter(work) as exporter:
        wait_for(exporter.scrape, exporter.child, "scraped")
        return (time.monotonic() - start) * 1e3


def _statuses(options: Options, work: Path, broker: product.Broker) -> Lines:
    files = product.new_agent(work / "shown", broker, name=_HOST)
    status = product.command("xce.agent.cli", "status", "--socket", str(files.parent / "run" / "agent.sock"))
    ours: list[float] = []
    bare: list[float] = []
    with product.running_agent(files) as child:
        wait_for(lambda: _run(status).returncode == 0, child, "well")
        for _ in range(options.repetitions * 4 + 1):
            ours.append(_wall(status))
            bare.append(_wall([sys.executable, "-c", "pass"]))
    yield Cell(
        suite="start", side="status", values={"ms": figure(ours).median, "bare_ms": figure(bare).median}
    )
    found, floor = figure(ours), figure(bare)
    yield Result(goal="G25", judged=ratio(ours, bare), measured=found, floor=floor, unit="ms")
    yield Result(goal="G25.time", judged=found, measured=found, floor=floor, unit="ms")


def _wall(argv: Sequence[str]) -> float:
    """Milliseconds of a command."""
    start = time.monotonic()
    _run(argv)
    return (time.monotonic() - start) * 1e3


def _run(argv: Sequence[str]) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(argv, cwd=ROOT, env=environment(), capture_output=True, check=False)
