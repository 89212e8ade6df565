"""Durable claim transitions: an order is answered when it is on the disk (G17, G18).

Disks of virtual machines hand out credit for writes: after a few thousand syncs each one takes ten times as
long. So the sides take turns in being first, and each waits until the disk is as fast as it can be; otherwise
whoever comes after the bare disk, which syncs most, would pay for it.

The goals compare what a controller gets: both sides are spoken to over loopback TCP by the library that a
program in Python has for them, ZeroMQ's and gRPC's, over one connection, with the same clocks around it
(`claimsides`). A good part of what etcd's one client waits for is gRPC; for G17.plain and G18.plain both
sides are spoken to by plain sockets instead, of ours one for each client.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import product
from bench.children import Child, ChildFailed, python, started
from bench.figures import Cell, Result, figure, ratio
from bench.job.etcd import Etcd
from bench.job.shared import Job
from bench.machine import cpu_ns
from bench.suite import Lines, Options, without_verdict

GOALS = ("G17", "G17.apart", "G17.cpu", "G17.plain", "G18.etcd", "G18.plain", "G18.disk")
CLIENTS = 64
_LATE_S = 60.0
_WAYS = {
    "xce": (
        ("", "BrokerLibraryAlone", "BrokerLibrary"),
        ("apart_", "", "BrokerLibraryApart"),
        ("plain_", "BrokerPlain", "BrokerPlain"),
    ),
    "etcd": (("", "EtcdLibraryAlone", "EtcdLibrary"), ("plain_", "EtcdPlain", "EtcdPlain")),
    "disk": (("", "Disk", ""),),
}
"""Prefix of what is found, and how one client and many clients speak (`claimload`), '' for not at all."""
_PROBES, _SLOW = 32, 1.5
_REST_S, _RESTS = 1.0, 30

Found = dict[str, list[float]]


def run(options: Options) -> Lines:
    """The broker, etcd and the bare disk in turn, on the same disk: with many clients, and with one."""
    seconds = options.pick(2.0, 0.5)
    missing = Etcd().missing() if options.peers else "peers are not wanted"
    found: dict[str, Found] = {"xce": {}, "etcd": {}, "disk": {}}
    sides, disk = ["xce", "etcd", "disk"] if not missing else ["xce", "disk"], _Disk()
    try:
        for _ in range(options.repetitions):
            sides.append(sides.pop(0))
            for side in sides:
                with TemporaryDirectory(prefix="xce-bench-") as work:
                    disk.rest(Path(work))
                    cell = _measure(side, Path(work), seconds)
                for name, value in cell.items():
                    found[side].setdefault(name, []).append(value)
                yield Cell(suite="claims", side=side, values={**cell})
    except ChildFailed as error:
        yield from without_verdict(GOALS, str(error))
        return
    yield from _results(found, missing)


def _results(found: dict[str, Found], missing: str) -> Lines:
    ours, theirs, disk = found["xce"], found["etcd"], found["disk"]
    for goal, name, unit in (
        ("G17", "ops_s", "/s"),
        ("G17.apart", "apart_ops_s", "/s"),
        ("G17.cpu", "cpu_us", "µs"),
        ("G17.plain", "plain_ops_s", "/s"),
        ("G18.etcd", "one_p50_ms", "ms"),
        ("G18.plain", "plain_one_p50_ms", "ms"),
    ):
        yield Result(
            goal=goal,
            judged=None if missing else ratio(ours[name], theirs[name.removeprefix("apart_")]),
            measured=figure(ours[name]),
            peer=None if missing else figure(theirs[name.removeprefix("apart_")]),
            unit=unit,
            trouble=missing,
        )
    yield Result(
        goal="G18.disk",
        judged=ratio(ours["one_p50_ms"], disk["one_p50_ms"]),
        measured=figure(ours["one_p50_ms"]),
        floor=figure(disk["one_p50_ms"]),
        unit="ms",
    )


class _Disk:
    """The disk, and how fast it was at its best."""

    def __init__(self) -> None:
        self._best_s = float("inf")

    def rest(self, directory: Path) -> None:
        """Wait until the disk is about as fast as it was, but not for ever: it may have got slower."""
        for _ in range(_RESTS):
            now_s = _sync_s(directory / "probe")
            self._best_s = min(self._best_s, now_s)
            if now_s <= _SLOW * self._best_s:
                return
            time.sleep(_REST_S)


def _sync_s(path: Path) -> float:
    """How long a small write takes until it is on the disk, mostly."""
    took = []
    with path.open("ab", buffering=0) as file:
        for _ in range(_PROBES):
            since = time.perf_counter()
            file.write(bytes(256))
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - since)
    return median(took)


def _measure(side: str, work: Path, seconds: float) -> dict[str, float]:
    """What one side gave in one repetition."""
    found: dict[str, float] = {}
    with _serving(side, work) as (where, server):
        for prefix, one, many in _WAYS[side]:
            if one:
                found[f"{prefix}one_p50_ms"] = _load(one, work, where, 1, seconds)["p50_ms"]
            if server is not None:
                before = cpu_ns(server.pid)
                load = _load(many, work, where, CLIENTS, seconds)
                found[f"{prefix}cpu_us"] = (cpu_ns(server.pid) - before) / 1000 / load["count"]
                found[f"{prefix}ops_s"] = load["ops_s"]
    return found


@contextmanager
def _serving(side: str, work: Path) -> Iterator[tuple[str, Child | None]]:
    """Where a side listens, and its process."""
    if side == "disk":
        yield str(work), None
    elif side == "etcd":
        with Etcd().serve(work, Job(hub="etcd", hosts=1)) as server:
            yield server.address, server.child
    else:
        broker = product.new_broker(work, curve=True)
        with product.running(broker, module="bench.job.unlocked") as child:
            yield str(broker.port), child


def _load(way: str, work: Path, where: str, clients: int, seconds: float) -> dict[str, float]:
    argv = python("bench.claimload", way, where, str(clients), str(seconds))
    with started(argv, work / f"load-{way}-{clients}.log", answers=True) as child:
        said = child.answer(_LATE_S)
    return {name: float(value) for name, value in said.items() if isinstance(value, int | float)}
