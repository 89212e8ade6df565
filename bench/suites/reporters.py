"""What one run of a reporter costs the agent itself: G23.

One run after the other, as fast as they end: an agent whose clock leaves out the time between them
(`runload`) against `subprocess.run` of the same script in a loop. And at the pace of a real node
(G23.paced), where both find cold caches: an agent with ten one-shot reporters each second, against
`subprocess.run` as often. Both times less what an agent without any reporters costs in the same windows.
The floor captures both outputs and has a deadline; it joins no control group, sets no limits, checks
nothing and reports nothing.
"""

import signal
import subprocess
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import machine, product
from bench.children import Child, ChildFailed, python, started
from bench.figures import Cell, Result, figure, ratio
from bench.suite import Lines, Options, without_verdict
from xce.model.resource import Kind, ResourceType

GOALS = ("G23", "G23.paced")
_SCRIPTS = 10
_SETTINGS = {"interval": 1, "timeout": 30}
"""With that timeout values live as long as at the usual interval: a mere refresh is not told at once."""
_SCRIPT = """#!/bin/sh
read load rest < /proc/loadavg
echo "{{\\"bench_{number}\\": $load}}"
"""
_TYPES = "types: [{{name: bench_{number}, kind: numeric}}]\n"
_AGENTS = (("rest", 0), ("busy", _SCRIPTS))
_RUNS = 200
_LATE_S = 60


def run(options: Options) -> Lines:
    """Both sides of both goals in turn."""
    try:
        with TemporaryDirectory(prefix="xce-bench-") as work:
            Path(work).chmod(0o755)
            yield from _hurried(options, Path(work))
        with ExitStack() as stack:
            paced = Path(stack.enter_context(TemporaryDirectory(prefix="xce-bench-")))
            paced.chmod(0o755)
            yield from _measure(options, stack, paced)
    except ChildFailed as error:
        yield from without_verdict(GOALS, str(error))


def _hurried(options: Options, work: Path) -> Lines:
    """One run after the other."""
    ours: list[float] = []
    floor: list[float] = []
    with ExitStack() as stack:
        rest, busy = (stack.enter_context(_hurried_agent(work / name, scripts)) for name, scripts in _AGENTS)
        for child in (rest, busy):
            child.answer(_LATE_S)
        for _ in range(options.repetitions):
            (_, rest_us), (runs, busy_us) = _span(rest), _span(busy)
            if not runs:
                raise ChildFailed(busy.story("ran no reporter"))
            ours.append((busy_us - rest_us) / runs)
            start = time.process_time()
            for _ in range(_RUNS):
                _subprocess(str(work / "busy" / "reporters.d" / "bench0"))
            floor.append((time.process_time() - start) / _RUNS * 1e6)
            yield Cell(
                suite="reporters",
                side="hurried",
                values={"agent_us": ours[-1], "floor_us": floor[-1], "runs": runs},
            )
    yield Result(goal="G23", judged=ratio(ours, floor), measured=figure(ours), floor=figure(floor), unit="µs")


def _hurried_agent(work: Path, scripts: int) -> AbstractContextManager[Child]:
    drop_ins = work / "reporters.d"
    for path in (work, drop_ins, work / "state", work / "run"):
        path.mkdir(mode=0o755)
    for number in range(scripts):
        script = drop_ins / f"bench{number}"
        script.with_suffix(".yaml").write_text(_TYPES.format(number=number))
        script.write_text(_SCRIPT.format(number=number))
        script.chmod(0o755)
    return started(python("bench.runload", str(work)), work / "agent.log", answers=True)


def _span(child: Child) -> tuple[float, float]:
    """Runs, and microseconds, of one span of an agent's clock."""
    child.poke(signal.SIGUSR1)
    said = child.answer(_LATE_S)
    return float(said["runs"] or 0), float(said["us"] or 0)


def _subprocess(script: str) -> None:
    subprocess.run([script], capture_output=True, check=True, timeout=10, start_new_session=True)


def _measure(options: Options, stack: ExitStack, work: Path) -> Lines:
    (work / "broker").mkdir()
    kinds = [ResourceType(name=f"bench_{number}", kind=Kind.NUMERIC) for number in range(_SCRIPTS)]
    broker = product.new_broker(work / "broker", hosts=["rest", "busy"], types=kinds)
    stack.enter_context(product.running(broker))
    agents: list[Child] = []
    for name, scripts in _AGENTS:
        texts = {f"bench{number}": _SCRIPT.format(number=number) for number in range(scripts)}
        files = product.new_agent(work / name, broker, name=name, reporters=texts, settings=_SETTINGS)
        product.start_once(files)
        agents.append(stack.enter_context(product.running_agent(files)))
    script = str(work / "busy" / "reporters.d" / "bench0")
    time.sleep(options.pick(5, 3))
    ours: list[float] = []
    floor: list[float] = []
    for _ in range(options.repetitions):
        agent_us, floor_us = _window(agents, script, options.pick(10, 3))
        ours.append(agent_us)
        floor.append(floor_us)
        yield Cell(suite="reporters", side="run", values={"agent_us": ours[-1], "floor_us": floor[-1]})
    judged = ratio(ours, floor)
    yield Result(goal="G23.paced", judged=judged, measured=figure(ours), floor=figure(floor), unit="µs")


def _window(agents: list[Child], script: str, seconds: int) -> tuple[float, float]:
    """Microseconds of the busy agent's own CPU per run, and ours per `subprocess.run` at the same pace.

    Everything is dearer when it runs now and then than in a tight loop, so both must run now and then, and
    both count what their wait for the next turn costs.
    """
    before = [machine.cpu_ns(child.pid) for child in agents]
    end, start, runs = time.monotonic() + seconds, time.process_time(), 0
    while time.monotonic() < end:
        time.sleep(1 / _SCRIPTS)
        _subprocess(script)
        runs += 1
    spent = time.process_time() - start
    for child in agents:
        if child.ended:
            raise ChildFailed(child.story("the agent has ended"))
    rest, busy = (machine.cpu_ns(child.pid) - ns for child, ns in zip(agents, before, strict=True))
    return (busy - rest) / 1e3 / (seconds * _SCRIPTS), spent / runs * 1e6
