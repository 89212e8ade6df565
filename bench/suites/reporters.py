"""What one run of a reporter costs the agent itself: G23.

An agent with ten one-shot reporters each second, less what an agent without any costs in the same windows.
The floor is `subprocess.run` of the same script with both outputs captured and a deadline, at the same pace,
with the wait between; it joins no control group, sets no limits, checks nothing and reports nothing.
"""

import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import machine, product
from bench.children import Child, ChildFailed
from bench.figures import Cell, Result, figure, ratio
from bench.suite import Lines, Options, without_verdict
from xce.model.resource import Kind, ResourceType

GOALS = ("G23",)
_SCRIPTS = 10
_SETTINGS = {"interval": 1, "timeout": 30}
"""With that timeout values live as long as at the usual interval: a mere refresh is not told at once."""
_SCRIPT = """#!/bin/sh
read load rest < /proc/loadavg
echo "{{\\"bench_{number}\\": $load}}"
"""


def run(options: Options) -> Lines:
    """Windows in which the agent and the floor run the same script equally often."""
    try:
        with ExitStack() as stack:
            work = Path(stack.enter_context(TemporaryDirectory(prefix="xce-bench-")))
            work.chmod(0o755)
            yield from _measure(options, stack, work)
    except ChildFailed as error:
        yield from without_verdict(GOALS, str(error))


def _measure(options: Options, stack: ExitStack, work: Path) -> Lines:
    (work / "broker").mkdir()
    kinds = [ResourceType(name=f"bench_{number}", kind=Kind.NUMERIC) for number in range(_SCRIPTS)]
    broker = product.new_broker(work / "broker", hosts=["rest", "busy"], types=kinds)
    stack.enter_context(product.running(broker))
    agents: list[Child] = []
    for name, scripts in (("rest", 0), ("busy", _SCRIPTS)):
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
    yield Result(goal="G23", judged=ratio(ours, floor), measured=figure(ours), floor=figure(floor), unit="µs")


def _window(agents: list[Child], script: str, seconds: int) -> tuple[float, float]:
    """Microseconds of the busy agent's own CPU per run, and ours per `subprocess.run` at the same pace.

    Everything is dearer when it runs now and then than in a tight loop, so both must run now and then, and
    both count what their wait for the next turn costs.
    """
    before = [machine.cpu_ns(child.pid) for child in agents]
    end, start, runs = time.monotonic() + seconds, time.process_time(), 0
    while time.monotonic() < end:
        time.sleep(1 / _SCRIPTS)
        subprocess.run([script], capture_output=True, check=True, timeout=10, start_new_session=True)
        runs += 1
    spent = time.process_time() - start
    for child in agents:
        if child.ended:
            raise ChildFailed(child.story("the agent has ended"))
    rest, busy = (machine.cpu_ns(child.pid) - ns for child, ns in zip(agents, before, strict=True))
    return (busy - rest) / 1e3 / (seconds * _SCRIPTS), spent / runs * 1e6
