"""The broker's decisions in process, and bytes on the wire: G11.build, G29, G30."""

import signal
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.children import Child, ChildFailed, python, started
from bench.figures import Cell, Result, figure, ratio
from bench.job import reports
from bench.suite import Lines, Options, without_verdict
from xce.model.message import FeedTick, Report
from xce.wire import codec

GOALS = ("G11.build", "G29", "G30.all", "G30.four")
_LATE_S = 300
_SEQUENCE, _RUN, _AGE_MS = 5000, 1200, 150


def run(options: Options) -> Lines:
    """A small and a large core in turn; a snapshot of a third; the length of two reports."""
    yield from _bytes()
    few, some, many = options.pick((1000, 10_000, 100_000), (1000, 2000, 10_000))
    try:
        with TemporaryDirectory(prefix="xce-bench-") as work:
            yield from _growth(options, Path(work), few, many)
            yield from _snapshot(options, Path(work), some)
    except ChildFailed as error:
        yield from without_verdict(("G11.build", "G29"), str(error))


def _growth(options: Options, work: Path, few: int, many: int) -> Lines:
    small: list[float] = []
    large: list[float] = []
    with _core(work, few) as one, _core(work, many) as other:
        for child in (one, other):
            child.answer(_LATE_S)
        for _ in range(options.repetitions):
            for child, found in ((one, small), (other, large)):
                child.poke(signal.SIGUSR1)
                found.append(float(child.answer(_LATE_S)["us"] or 0))
            yield Cell(suite="core", side="ingest", values={"few_us": small[-1], "many_us": large[-1]})
    yield Result(
        goal="G29",
        judged=ratio(large, small),
        measured=figure(large),
        floor=figure(small),
        unit="µs",
        note=f"the floor is {few:,} hosts",
    )


def _snapshot(options: Options, work: Path, hosts: int) -> Lines:
    times: list[float] = []
    with _core(work, hosts) as child:
        child.answer(_LATE_S)
        for repetition in range(options.repetitions + 1):
            child.poke(signal.SIGUSR2)
            said = child.answer(_LATE_S)
            if repetition:  # the first one finds nothing encoded
                times.append(float(said["ms"] or 0))
            yield Cell(suite="core", side="snapshot", values=dict(said))
    yield Result(goal="G11.build", judged=figure(times), measured=figure(times), unit="ms")


def _core(work: Path, hosts: int) -> AbstractContextManager[Child]:
    return started(python("bench.coreload", str(hosts)), work / f"core{hosts}", answers=True)


def _bytes() -> Lines:
    """Reports of a host that has been up for a while."""
    indices, site = reports.values(1, 1)
    site |= {reports.SENT: 1764440000, reports.NUMBER: 4711}  # the marks, as ordinary numbers
    whole = [
        FeedTick(reports.BUILTIN, _RUN, _AGE_MS, {**indices}),
        FeedTick(reports.SITE_REPORTER, _RUN, _AGE_MS, {**site}),
    ]
    four = [FeedTick(reports.BUILTIN, _RUN, _AGE_MS, dict(list(indices.items())[:4]))]
    for goal, feeds in (("G30.all", whole), ("G30.four", four)):
        size = figure([len(codec.encode(Report(_SEQUENCE, feeds)))])
        yield Result(goal=goal, judged=size, measured=size, unit="B")
