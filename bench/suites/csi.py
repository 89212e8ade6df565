"""The CSI helper: what a call costs through it (G33), its memory (G33.size), and its start (G33.start); and a
new agent that takes up 200 volumes in use (G35, in `bench/csiload.py`).

The plugin is the one of the tests, answering statistics without looking at anything. The floor is the same
call with the same library, alone in a process of its own.
"""

import asyncio
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import machine
from bench.children import ROOT, ChildFailed, python, say, started, wait_for
from bench.figures import Cell, Result, figure
from bench.suite import Lines, Options, without_verdict
from tests.csi_node_helper.world import program
from xce.model import csi
from xce.prepare.csi.helper import HelperClient

GOALS = ("G33", "G33.size", "G33.start", "G35", "G35.calls", "G35.size")
_CALL = csi.Statistics(volume="vol1", path="/nowhere")
_LATE_S = 10.0
_PAUSE_S = 20e-6


def run(options: Options) -> Lines:
    """In turn: calls through a new helper, bare calls."""
    try:
        with ExitStack() as stack:
            work = Path(stack.enter_context(TemporaryDirectory(prefix="xce-bench-")))
            socket = work / "csi.sock"
            (work / "control.json").write_text(json.dumps({"abilities": [1, 2]}))
            plugin = stack.enter_context(
                started(
                    [sys.executable, "tests/fakes/csi_plugin.py", str(work)],
                    work / "log",
                    PYTHONPATH=str(ROOT),
                )
            )
            wait_for(socket.exists, plugin, "its socket was there", _LATE_S)
            yield from _measure(options, work, str(socket))
    except ChildFailed as error:
        yield from without_verdict(GOALS[:3], str(error))
    try:
        yield from _take_up(options)
    except ChildFailed as error:
        yield from without_verdict(GOALS[3:], str(error))


def _take_up(options: Options) -> Lines:
    """A node with many volumes, and its agent anew."""
    if os.geteuid() != 0:
        yield from without_verdict(GOALS[3:], "control groups and mounts need root")
        return
    count = options.pick(200, 10)
    taken: list[float] = []
    calls: list[float] = []
    size: list[float] = []
    for _ in range(options.pick(min(options.repetitions, 3), 1)):
        with TemporaryDirectory(prefix="xb-") as folder:
            argv = ["unshare", "-m", *python("bench.csiload", folder, str(count))]
            with started(argv, Path(folder, "log"), answers=True) as child:
                said = child.answer(_LATE_S * 30)
        taken.append(float(said["taken_up_ms"] or 0))
        calls.append(float(said["calls"] or 0))
        size.append(float(said["resident_mb"] or 0))
        yield Cell(suite="csi", side="take up", values=said)
    yield Result(goal="G35", judged=figure(taken), measured=figure(taken), unit="ms")
    yield Result(goal="G35.calls", judged=figure(calls), measured=figure(calls), unit="")
    yield Result(goal="G35.size", judged=figure(size), measured=figure(size), unit="MB")


def _measure(options: Options, work: Path, socket: str) -> Lines:
    calls = options.pick(1000, 50)
    ours: list[float] = []
    bare: list[float] = []
    size: list[float] = []
    start: list[float] = []
    for number in range(options.repetitions):
        client = HelperClient(csi.Plugins(sockets={"p": socket}), time.monotonic, program=program(work))
        try:
            began = time.monotonic()
            _answer(client)
            start.append((time.monotonic() - began) * 1e3)
            ours.append(_median_ms([_answer(client) for _ in range(calls)]))
            assert client.pid is not None
            size.append(machine.memory_kb(client.pid) / 1024)
        finally:
            client.close()
        argv = [sys.executable, "-m", "bench.suites.csi", socket, str(calls)]
        with started(argv, work / f"bare{number}.log", answers=True) as child:
            bare.append(float(child.answer(_LATE_S * 6)["ms"] or 0))
        yield Cell(
            suite="csi",
            side="helper",
            values={
                "call_ms": ours[-1],
                "bare_ms": bare[-1],
                "resident_mb": size[-1],
                "start_ms": start[-1],
            },
        )
    measured = figure(ours)
    added = [mine - other for mine, other in zip(ours, bare, strict=True)]
    yield Result(goal="G33", judged=figure(added), measured=measured, floor=figure(bare), unit="ms")
    yield Result(goal="G33.size", judged=figure(size), measured=figure(size), unit="MB")
    yield Result(goal="G33.start", judged=figure(start), measured=figure(start), unit="ms")


def _answer(client: HelperClient) -> float:
    """Seconds of one call; asked for its answer more often than the agent does."""
    began = time.monotonic()
    while (told := client.ask("k", "p", _CALL)) is None:
        if time.monotonic() - began > _LATE_S:
            raise ChildFailed("the helper does not answer")
        time.sleep(_PAUSE_S)
    if told.outcome is not csi.Outcome.OK:
        raise ChildFailed(f"the helper says {told.outcome}: {told.message}")
    return time.monotonic() - began


def _median_ms(seconds: list[float]) -> float:
    return figure(seconds).median * 1e3


async def _bare(path: str, calls: int) -> float:
    """The same calls with the library alone, in milliseconds."""
    from xce.csi_node_helper import messages
    from xce.csi_node_helper.connection import Connection

    connection, method = Connection(path), messages.METHODS[csi.Statistics]
    taken = []
    for _ in range(calls):
        began = time.monotonic()
        await connection.call(method, messages.request(_CALL, {}), _LATE_S)
        taken.append(time.monotonic() - began)
    connection.close()
    return _median_ms(taken)


if __name__ == "__main__":
    say(ms=asyncio.run(_bare(sys.argv[1], int(sys.argv[2]))))
