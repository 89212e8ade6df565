"""The agent at rest: memory (G20), CPU (G21), CPU with ten reporters (G22), beside what others run on a node.

All programs run in the same windows. node_exporter is scraped and everything reports each ten seconds. The
floor is an interpreter that only sleeps.
"""

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import machine, nodepeers, product
from bench.children import Child, ChildFailed, started
from bench.figures import Cell, Result, figure, ratio
from bench.suite import Lines, Options, without_verdict
from xce.model.resource import Kind, ResourceType

GOALS = ("G20", "G20.size", "G20.node", "G20.anon", "G21", "G22")
_SCRIPTS = 10
_EACH_S = 10
_SCRIPT = """#!/bin/sh
read load rest < /proc/loadavg
echo "{{\\"bench_{number}\\": $load}}"
"""
_PUTVAL = """#!/bin/sh
read load rest < /proc/loadavg
echo "PUTVAL node/exec-bench_{number}/gauge-x interval=10 N:$load"
"""
BARE, AGENT, BUSY, EXPORTER, COLLECTD = (
    "bare python",
    "agent",
    "agent with reporters",
    "node_exporter",
    "collectd",
)


class Readings(dict[str, list[float]]):
    """Measurements of each program, window by window."""

    def add(self, program: str, value: float) -> float:
        self.setdefault(program, []).append(value)
        return value


def run(options: Options) -> Lines:
    """Start everything, then take windows."""
    try:
        with ExitStack() as stack:
            work = Path(stack.enter_context(TemporaryDirectory(prefix="xce-bench-")))
            work.chmod(0o755)
            programs, exporter = _start(stack, work, options)
            time.sleep(options.pick(15, 5))
            yield from _measure(options, programs, exporter)
    except ChildFailed as error:
        yield from without_verdict(GOALS, str(error))


def _start(
    stack: ExitStack, work: Path, options: Options
) -> tuple[dict[str, Child], nodepeers.Exporter | None]:
    programs: dict[str, Child] = {}
    exporter: nodepeers.Exporter | None = None
    (work / "broker").mkdir()
    kinds = [ResourceType(name=f"bench_{number}", kind=Kind.NUMERIC) for number in range(_SCRIPTS)]
    broker = product.new_broker(work / "broker", hosts=["rest", "busy"], types=kinds)
    stack.enter_context(product.running(broker))
    scripts = {f"bench{number}": _SCRIPT.format(number=number) for number in range(_SCRIPTS)}
    for program, name, reporters in ((AGENT, "rest", {}), (BUSY, "busy", scripts)):
        settings = {"interval": _EACH_S}
        files = product.new_agent(work / name, broker, name=name, reporters=reporters, settings=settings)
        product.start_once(files)
        programs[program] = stack.enter_context(product.running_agent(files))
    sleeper = [sys.executable, "-c", f"import time\nwhile True: time.sleep({_EACH_S})"]
    programs[BARE] = stack.enter_context(started(sleeper, work / "bare.log"))
    if options.peers and not nodepeers.exporter_missing():
        exporter = stack.enter_context(nodepeers.exporter(work))
        programs[EXPORTER] = exporter.child
    if options.peers and not nodepeers.collectd_missing():
        values = {f"bench{number}": _PUTVAL.format(number=number) for number in range(_SCRIPTS)}
        programs[COLLECTD] = stack.enter_context(nodepeers.collectd(work, values, _EACH_S))
    return programs, exporter


def _measure(options: Options, programs: dict[str, Child], exporter: nodepeers.Exporter | None) -> Lines:
    resident, anonymous, whole, own, tree = (Readings() for _ in range(5))
    for window in range(options.repetitions):
        before = {
            name: (machine.cpu_ns(child.pid), machine.tree_cpu_s(child.pid))
            for name, child in programs.items()
        }
        length = options.pick(3, 1) * _EACH_S
        for _ in range(length // _EACH_S):
            time.sleep(_EACH_S)
            if exporter:
                exporter.scrape()
        for name, child in programs.items():
            if child.ended:
                raise ChildFailed(child.story(f"{name} has ended"))
            values = {
                "resident_mb": resident.add(name, machine.memory_kb(child.pid) / 1024),
                "anonymous_mb": anonymous.add(name, machine.memory_kb(child.pid, "RssAnon") / 1024),
                "whole_mb": whole.add(name, machine.tree_memory_kb(child.pid) / 1024),
                "own_ms_min": own.add(
                    name, (machine.cpu_ns(child.pid) - before[name][0]) / 1e6 * 60 / length
                ),
                "tree_ms_min": tree.add(
                    name, (machine.tree_cpu_s(child.pid) - before[name][1]) * 1e3 * 60 / length
                ),
            }
            yield Cell(suite="agent", side=name, values={"window": window, **values})
    yield _against("G20", resident, AGENT, EXPORTER, "MB")
    size = figure(resident[AGENT])
    yield Result(goal="G20.size", judged=size, measured=size, floor=figure(resident[BARE]), unit="MB")
    together = figure(whole[AGENT])
    yield Result(goal="G20.node", judged=together, measured=together, floor=figure(whole[BARE]), unit="MB")
    yield _against("G20.anon", anonymous, AGENT, EXPORTER, "MB")
    yield _against("G21", own, AGENT, EXPORTER, "ms/min")
    yield _against("G22", tree, BUSY, COLLECTD, "ms/min")


def _against(goal: str, readings: Readings, ours: str, theirs: str, unit: str) -> Result:
    mine, other, bare = readings[ours], readings.get(theirs), readings[BARE]
    return Result(
        goal=goal,
        judged=ratio(mine, other) if other else None,
        measured=figure(mine),
        floor=figure(bare),
        peer=figure(other) if other else None,
        unit=unit,
        trouble="" if other else f"{theirs} is not installed, or not asked for",
    )
