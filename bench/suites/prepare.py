"""Making a claim true on a node, against a container runtime with the same devices and mounts (G26, G27)."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.children import ChildFailed, python, started
from bench.figures import Cell, Result, figure, ratio
from bench.suite import Lines, Options, without_verdict

GOALS = ("G26", "G26.job", "G26.calls", "G26.slow", "G27")
_LATE_S = 120.0
_MEMORY = "/dev/shm"

Sides = dict[str, list[float]]


def run(options: Options) -> Lines:
    """Each side in turn: a small claim made (journal on disk or in memory), a job's made and taken back."""
    if os.geteuid() != 0:
        yield from without_verdict(GOALS, "control groups, device filters and mounts need root")
        return
    times = options.pick(20, 3)
    small, large, slow = Sides(), Sides(), Sides()
    peers: dict[str, str] = {}
    for _ in range(options.repetitions):
        for side in ("xce", "memory", "bare", "runc", "crun"):
            peer = side in {"runc", "crun"}
            if peer and (trouble := peers.get(side) or _missing(side, options)):
                peers[side] = trouble
                continue
            try:
                values = _measure(side, times)
            except ChildFailed as error:
                if not peer:
                    yield from without_verdict(GOALS, str(error))
                    return
                peers[side] = str(error).rpartition("RuntimeError: ")[2]
                continue
            small.setdefault(side, []).append(values["small_ms"])
            large.setdefault(side, []).append(values["job_ms"])
            yield Cell(suite="prepare", side=side, values={**values})
        said = _child("slow", large=False, times=options.pick(5, 1), memory=False)
        for name in ("one_ms", "many_ms"):
            slow.setdefault(name, []).append(float(said[name] or 0))
        yield Cell(suite="prepare", side="slow", values={name: found[-1] for name, found in slow.items()})
    yield _against("G26", small, "runc", peers)
    yield _against("G26.job", large, "crun", peers)
    yield Result(
        goal="G26.calls",
        judged=ratio(large["xce"], large["bare"]),
        measured=figure(large["xce"]),
        floor=figure(large["bare"]),
        unit="ms",
    )
    yield Result(
        goal="G26.slow",
        judged=ratio(slow["many_ms"], slow["one_ms"]),
        measured=figure(slow["many_ms"]),
        floor=figure(slow["one_ms"]),
        unit="ms",
    )
    memory = figure(small["memory"])
    yield Result(goal="G27", judged=memory, measured=memory, floor=figure(small["bare"]), unit="ms")


def _against(goal: str, found: Sides, peer: str, peers: dict[str, str]) -> Result:
    trouble = peers.get(peer, "")
    return Result(
        goal=goal,
        judged=None if trouble else ratio(found["xce"], found[peer]),
        measured=figure(found["xce"]),
        floor=figure(found["bare"]),
        peer=None if trouble else figure(found[peer]),
        unit="ms",
        trouble=trouble,
    )


def _missing(runtime: str, options: Options) -> str:
    if not options.peers:
        return "peers are not wanted"
    return next((f"{name} is not installed" for name in (runtime, "busybox") if not shutil.which(name)), "")


def _measure(side: str, times: int) -> dict[str, float]:
    """Milliseconds to make the small claim, and to make a job's and take it back."""
    name = "xce" if side == "memory" else side
    found = []
    for large in (False, True):
        said = _child(name, large=large, times=times, memory=side in {"memory", "bare"})
        found.append((float(said["make_ms"] or 0), float(said["back_ms"] or 0)))
    return {"small_ms": found[0][0], "job_ms": sum(found[1]), "job_make_ms": found[1][0]}


def _child(side: str, *, large: bool, times: int, memory: bool) -> Mapping[str, float | int | str | None]:
    """What the child of a side says; its files on a disk, or in memory."""
    place = _MEMORY if memory and os.access(_MEMORY, os.W_OK) else None
    with TemporaryDirectory(prefix="xce-bench-", dir=place) as folder:
        (work := Path(folder, "work")).mkdir()
        argv = ["unshare", "-m", *python("bench.prepareload", side, str(work), str(int(large)), str(times))]
        with started(argv, Path(folder, "log"), answers=True) as child:
            return child.answer(_LATE_S)
