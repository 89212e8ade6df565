"""Memory of the broker per connected host: G14, as a slope, so that the program itself is not in it.

The floor is a bare ROUTER that keeps the reports of as many connections.
"""

import time

import msgspec

from bench import machine
from bench.children import ChildFailed
from bench.figures import Cell, Result, figure
from bench.job.run import stage
from bench.job.shared import Job
from bench.suite import Lines, Options, without_verdict

GOALS = ("G14.values", "G14.inventory")
_INSTANCES = 32
_SETTLE_S = 1.0


def run(options: Options) -> Lines:
    """A broker with few hosts and one with many, in turn."""
    few, many = options.pick((1000, 8000), (250, 1000))
    sides = {
        "G14.values": Job(hub="xce-broker"),
        "G14.inventory": Job(hub="xce-broker", instances=_INSTANCES),
        "floor": Job(hub="bare ROUTER"),
    }
    slopes: dict[str, list[float]] = {side: [] for side in sides}
    try:
        for _ in range(options.repetitions):
            for side, job in sides.items():
                small, large = (
                    _resident_kb(msgspec.structs.replace(job, hosts=hosts)) for hosts in (few, many)
                )
                slopes[side].append((large - small) / (many - few))
                yield Cell(suite="memory", side=side, values={"few_kb": small, "many_kb": large})
    except ChildFailed as error:
        yield from without_verdict(GOALS, str(error))
        return
    for goal in GOALS:
        found = figure(slopes[goal])
        yield Result(goal=goal, judged=found, measured=found, floor=figure(slopes["floor"]), unit="kB")


def _resident_kb(job: Job) -> int:
    job = msgspec.structs.replace(job, variants=1)
    with stage(job, publishers=max(1, job.hosts // 4000), consumer=False) as staged:
        time.sleep(_SETTLE_S)
        return machine.memory_kb(staged.hub.pid)
