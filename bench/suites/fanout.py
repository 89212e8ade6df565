"""What a watcher costs the broker, and a hundred of them: G28.

Reports of four values at a steady rate; CPU of the broker per report, less what it costs without a watcher.
The floor is a bare ROUTER that sends messages of about the same size, as often, to as many DEALERs.
"""

import tempfile
import time
from pathlib import Path

from bench.children import ChildFailed, python, started
from bench.figures import Cell, Result, figure, ratio
from bench.job.run import stage
from bench.job.shared import Job
from bench.job.spray import BEAT_S
from bench.suite import Lines, Options, without_verdict

GOALS = ("G28",)
_ONE, _MANY = 1, 100
_RATE = 5000.0
_CHANGE_BYTES = 90
"""Of four values in a delta."""


def run(options: Options) -> Lines:
    """None, one and many watchers, in turn."""
    job = Job(hub="xce-broker", values=4, phases=(_RATE,), seconds=options.pick(4.0, 1.0))
    costs: dict[int, list[float]] = {0: [], _ONE: [], _MANY: []}
    floors: dict[int, list[float]] = {_ONE: [], _MANY: []}
    try:
        for _ in range(options.repetitions):
            for count, found in floors.items():
                found.append(_floor(job, count))
            for count, found in costs.items():
                found.append(_cost(job, count) * 1e6)
            last = {f"{count} watchers": found[-1] for count, found in costs.items()}
            last |= {f"floor, {count}": found[-1] for count, found in floors.items()}
            yield Cell(suite="fanout", side="us per report", values={**last})
    except ChildFailed as error:
        yield from without_verdict(GOALS, str(error))
        return
    yield _result(costs, floors)


def _cost(job: Job, watchers: int) -> float:
    with stage(job, consumer=False) as staged:
        if not watchers:
            return staged.unwatched(0)
        argv = python("bench.job.watchers", staged.address, str(watchers))
        with started(argv, staged.work / "watchers", answers=True) as child:
            child.answer(60)
            time.sleep(0.5)
            return staged.unwatched(0)


def _floor(job: Job, peers: int) -> float:
    """CPU per change in microseconds, when the changes of a beat go in one message."""
    changes = int(_RATE * BEAT_S)
    with tempfile.TemporaryDirectory(prefix="xce-bench-") as directory:
        work = Path(directory)
        path, messages = str(work / "socket"), int(job.seconds / BEAT_S)
        sizes = (str(peers), str(changes * _CHANGE_BYTES), str(messages))
        with started(python("bench.job.spray", path, *sizes), work / "send", answers=True) as sender:
            sender.answer(10)
            with started(python("bench.job.spray", path, str(peers)), work / "receive"):
                return float(sender.answer(60)["cpu_us"] or 0) / changes


def _result(costs: dict[int, list[float]], floors: dict[int, list[float]]) -> Result:
    one = [cost - base for cost, base in zip(costs[_ONE], costs[0], strict=True)]
    many = [cost - base for cost, base in zip(costs[_MANY], costs[0], strict=True)]
    bare = ratio(floors[_MANY], floors[_ONE])
    return Result(
        goal="G28",
        judged=ratio(many, one),
        measured=figure(many),
        floor=figure(floors[_MANY]),
        unit="µs",
        note=f"the floor's ratio is {bare}",
    )
