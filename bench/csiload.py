"""A child that gets CSI volumes for as many consumers, and takes them up again as a new agent does.

    unshare -m python -m bench.csiload DIRECTORY COUNT

Everything is real: plugin and helper are processes, each volume is staged and published with mounts. It says
one line: milliseconds from an agent without anything to all bindings READY and compared with the kernel, the
calls that the plugin got meanwhile, and the helper's memory.
"""

import errno
import json
import sys
import time
from pathlib import Path

from bench import machine
from bench.children import ROOT, say, started, wait_for
from tests.csi_node_helper.world import program
from xce.linux import cgroup
from xce.model.claim import Ask, Binding, BindingState, Claim, Consumer, MountAsk
from xce.model.profile import Claims, Csi, CsiVolume, Profile, Volume
from xce.prepare import local
from xce.prepare.csi.helper import HelperClient
from xce.prepare.execute import Executor
from xce.prepare.journal import Journal

_LATE_S = 240.0


def _settings(work: Path, group: str, count: int) -> Claims:
    names = [f"v{number}" for number in range(count)]
    volumes = {name: Volume(csi=CsiVolume(plugin="fake", id=name)) for name in names}
    return Claims(
        directory=str(work / "run"),
        cgroup=group,
        cdi_directory="",
        namespace="self",
        csi=Csi(plugins={"fake": str(work / "csi.sock")}, helper=program(work)),
        profiles={"default": Profile(volumes=volumes)},
    )


def _until(executor: Executor, state: BindingState, count: int) -> None:
    """All of them; what has ended is told once and then forgotten."""
    reached: set[str] = set()
    end = time.monotonic() + _LATE_S
    while len(reached) < count:
        wait = executor.advance()
        for report in executor.news():
            if report.state is state:
                reached.add(report.binding)
            elif report.state is BindingState.FAILED or time.monotonic() > end:
                raise RuntimeError(f"not {state}: {report}")
        time.sleep(min(wait or 0.0, 0.002))


def _calls(work: Path) -> int:
    return sum(
        "Volume" in json.loads(line)["rpc"] for line in (work / "calls.jsonl").read_text().splitlines()
    )


def _take_up(work: Path, settings: Claims, count: int) -> tuple[Executor, float]:
    """A new executor over what is there, until every binding was compared with the kernel: milliseconds."""
    began = time.perf_counter()
    executor = Executor(Journal(str(work / "state")), local.node(settings), "boot")
    executor.node.csi.turn()
    executor.advance()
    executor.check()
    found = executor.reports()
    taken = (time.perf_counter() - began) * 1e3
    wrong = [one for one in found if one.state is not BindingState.READY or one.conditions]
    if wrong or len(found) != count:
        raise RuntimeError(f"{len(found)} of {count} taken up; {wrong[:1]}")
    return executor, taken


def _make(executor: Executor, count: int) -> float:
    """All bindings, and the helper's memory then, in MB."""
    for number in range(count):
        name = f"b{number}"
        claim = Claim(
            id=f"c{number}", owner="root", ask=Ask(mounts=[MountAsk(name="m", source=f"v{number}")])
        )
        binding = Binding(id=name, claim=claim.id, host="here", consumer=Consumer(name=name, user="root"))
        executor.prepare(op_id=name, epoch=1, binding=binding, claim=claim, instances={})
    _until(executor, BindingState.READY, count)
    helper = executor.node.csi
    assert isinstance(helper, HelperClient)
    assert helper.pid is not None
    size = machine.memory_kb(helper.pid) / 1024
    helper.close()
    executor.close()
    return size


def _measure(work: Path, count: int) -> None:
    own = cgroup.own()
    if own is None:
        raise OSError(errno.ENOENT, "no control groups of version 2 are mounted here")
    group = own.child(f"xce-bench-{work.name}")
    group.create()
    settings = _settings(work, group.path, count)
    executor = Executor(Journal(str(work / "state")), local.node(settings), "boot")
    size = _make(executor, count)
    before = _calls(work)
    executor, taken = _take_up(work, settings, count)
    calls = _calls(work) - before
    for number in range(count):
        executor.release(op_id=f"end-b{number}", epoch=1, binding=f"b{number}")
    _until(executor, BindingState.RELEASED, count)
    executor.close()
    group.remove()
    say(taken_up_ms=taken, calls=calls, resident_mb=size)


def main(directory: str, count: str) -> None:
    """See above."""
    work = Path(directory)
    for name in ("run", "state", *(f"backing/v{number}" for number in range(int(count)))):
        (work / name).mkdir(parents=True)
    (work / "control.json").write_text("{}")
    command = [sys.executable, "tests/fakes/csi_plugin.py", directory]
    with started(command, work / "plugin.log", PYTHONPATH=str(ROOT)) as plugin:
        wait_for((work / "csi.sock").exists, plugin, "its socket was there")
        _measure(work, int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
