"""A child that makes a job's devices and mounts again and again, in a mount namespace of its own.

    unshare -m python -m bench.prepareload SIDE DIRECTORY LARGE TIMES

SIDE `xce`: the product's executor, its journal in DIRECTORY. `bare`: the same group, filter, mounts and
scratch by system calls alone, nothing written down or read back. `crun`, `runc`: a container with the same
device rules and mounts is run and deleted. LARGE 0: eleven device rules and a read-only bind mount. LARGE 1:
eight GPUs, eight NICs, two bind mounts, scratch. It says one line: milliseconds, the median of TIMES.

SIDE `slow`: claims with a mount from a file server that takes 0.2 s to answer, one alone and eight at once.
"""

import errno
import itertools
import json
import os
import resource
import select
import shutil
import stat
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.children import say
from tests.linux.hangfs import HangingMount
from xce.linux import bpf, cgroup, mountapi, mountinfo
from xce.linux.cgroup import Cgroup
from xce.model.claim import Ask, Binding, BindingState, Chosen, Claim, Consumer, InstanceAsk, MountAsk
from xce.model.instance import Instance
from xce.model.profile import Claims, Profile, ScratchRoot, Volume
from xce.prepare import isolation, local
from xce.prepare.execute import Executor
from xce.prepare.journal import Journal

_BASE = [f"c {numbers} rwm" for numbers in ("1:3", "1:5", "1:7", "1:8", "1:9", "5:0")]
_SMALL = [(195, 0), (195, 1), (195, 255), (511, 0), (511, 1)]
_LARGE = [(195, minor) for minor in range(8)] + [(231, 192 + number) for number in range(8)]
_LATE_S = 20.0
_SLOW_S, _AT_ONCE = 0.2, 8
_NO_LIMIT = """
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
int setrlimit(__rlimit_resource_t what, const struct rlimit *limit)
{
    return what == RLIMIT_MEMLOCK ? 0 : syscall(SYS_prlimit64, 0, what, limit, 0);
}
"""
"""crun raises the limit of locked memory before it loads a filter, which needs a capability more than the
filter does on kernels that charge it to the control group (5.11)."""
_HIERARCHY = "/sys/fs/cgroup"

Make = Callable[[int], tuple[float, float]]
"""Makes it all, takes it back: milliseconds of each."""


class Job:
    """What is asked for, and where."""

    def __init__(self, work: Path, *, large: bool) -> None:
        self.work, self.large = work, large
        self.numbers = _LARGE if large else _SMALL
        self.mounts = ["data", "model"] if large else ["data"]
        self.scratch = 1 << 20 if large else 0
        for name in ("data", "model", "dev", "run", "points"):
            (work / name).mkdir()
        self.files = [str(work / "dev" / f"{major}-{minor}") for major, minor in self.numbers]
        for path, (major, minor) in zip(self.files, self.numbers, strict=True):
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(major, minor))
        self.rules = _BASE + [f"c {major}:{minor} rwm" for major, minor in self.numbers]
        own = cgroup.own()
        if own is None:
            raise OSError(errno.ENOENT, "no control groups of version 2 are mounted here")
        self.group = own.child(f"xce-bench-{os.getpid()}")

    def ask(self) -> Ask:
        """As a claim says it."""
        return Ask(
            instances=[InstanceAsk(kind="card", count=len(self.files))],
            mounts=[MountAsk(name=name, source=name, read_only=True) for name in self.mounts],
            scratch_bytes=self.scratch,
        )


def _executor(job: Job) -> Executor:
    volumes = {name: Volume(path=str(job.work / name)) for name in job.mounts}
    profile = Profile(
        devices=_BASE,
        device_paths=[f"{job.work}/dev/*"],
        volumes=volumes | {"slow": Volume(path=str(job.work / "slow"))},
        scratch={"memory": ScratchRoot()},
    )
    settings = Claims(
        directory=str(job.work / "run"),
        cgroup=job.group.path,
        cdi_directory=str(job.work / "cdi"),
        namespace="self",
        profiles={"default": profile},
    )
    return Executor(Journal(str(job.work / "state")), local.node(settings), "boot")


def product(job: Job) -> Make:
    """The executor, as the agent drives it."""
    executor = _executor(job)
    cards = {
        path: Instance(id=Path(path).name, kind="card", attributes={"device_files": [path]})
        for path in job.files
    }
    instances = {one.id: one for one in cards.values()}
    chosen = [Chosen(id=name, reporter="cards", generation=1, kind="card") for name in instances]

    def until(binding: str, state: BindingState) -> None:
        end = time.monotonic() + _LATE_S
        while True:
            executor.advance()
            found = [report for report in executor.news() if report.binding == binding]
            if found and found[-1].state is state:
                return
            if (found and found[-1].state is BindingState.FAILED) or time.monotonic() > end:
                raise RuntimeError(f"not {state}: {found or executor.reports()}")
            time.sleep(0.0002)

    def make(number: int) -> tuple[float, float]:
        name = f"b{number}"
        binding = Binding(
            id=name, claim="c", host="here", consumer=Consumer(name=name, user="root"), instances=chosen
        )
        claim = Claim(id="c", owner="root", ask=job.ask())
        start = time.perf_counter()
        executor.prepare(op_id=name, epoch=1, binding=binding, claim=claim, instances=instances)
        until(name, BindingState.READY)
        ready = time.perf_counter()
        executor.release(op_id=f"end-{name}", epoch=1, binding=name)
        until(name, BindingState.RELEASED)
        return (ready - start) * 1e3, (time.perf_counter() - ready) * 1e3

    return make


def slow(job: Job, times: int) -> tuple[float, float]:
    """Milliseconds until a claim with a slow mount is ready, and until eight that come at once are."""
    (job.work / "slow").mkdir()
    server = HangingMount(job.work / "slow", after=_SLOW_S)
    executor, numbers = _executor(job), itertools.count()
    claim = Claim(
        id="c",
        owner="root",
        ask=Ask(mounts=[MountAsk(name="x", source="slow", subdirectory="a", read_only=True)]),
    )

    def until(state: BindingState | None) -> None:
        end = time.monotonic() + _LATE_S
        while executor.entries and {report.state for report in executor.reports()} != {state}:
            wait = executor.advance()
            select.select([executor.node.errands.fileno()], [], [], min(wait or 0, 0.05))
            if time.monotonic() > end:
                raise RuntimeError(f"not {state}: {executor.reports()}")

    def make(count: int) -> float:
        start = time.perf_counter()
        for name in [f"b{next(numbers)}" for _ in range(count)]:
            binding = Binding(id=name, claim="c", host="here", consumer=Consumer(name=name, user="root"))
            executor.prepare(op_id=name, epoch=1, binding=binding, claim=claim, instances={})
        until(BindingState.READY)
        took = (time.perf_counter() - start) * 1e3
        for name in list(executor.entries):
            executor.release(op_id=f"end-{name}", epoch=1, binding=name)
        until(None)
        return took

    try:
        make(_AT_ONCE)  # the children are there
        found = [(make(1), make(_AT_ONCE)) for _ in range(times)]
    finally:
        server.release()
    return statistics.median(one for one, _ in found), statistics.median(all_ for _, all_ in found)


def bare(job: Job) -> Make:
    """System calls that cannot be left out."""
    rules = isolation.merged(job.rules)
    places = [job.work / "points" / name for name in [*job.mounts, *(["scratch"] if job.scratch else [])]]

    def put(tree: int, point: Path) -> None:
        point.mkdir()
        at = os.open(point, os.O_PATH | os.O_CLOEXEC)
        mountapi.attach(tree, at)
        os.close(at)
        os.close(tree)

    def make(number: int) -> tuple[float, float]:
        start = time.perf_counter()
        group = Cgroup(f"{job.group.path}/bare-{number}")
        group.create()
        at, program = os.open(group.path, os.O_RDONLY), bpf.load(bpf.compile_rules(rules), "bare")
        bpf.attach(at, program)
        os.close(program)
        os.close(at)
        for name, point in zip(job.mounts, places, strict=False):
            source = os.open(job.work / name, os.O_PATH | os.O_CLOEXEC)
            tree = mountapi.clone(source)
            mountapi.set_attributes(tree, 1 | 2 | 4)  # read-only, nosuid, nodev
            os.close(source)
            put(tree, point)
        if job.scratch:
            put(mountapi.make("tmpfs", {"size": str(job.scratch)}), places[-1])
        ready = time.perf_counter()
        for point in reversed(places):
            mountapi.unmount(str(point))
            point.rmdir()
        group.remove()
        return (ready - start) * 1e3, (time.perf_counter() - ready) * 1e3

    return make


def container(job: Job, runtime: str) -> Make:
    """`/bin/true` in a container; it is gone when the command ends."""
    environment = {**os.environ, **_unlimited(job.work)}
    root = job.work / "rootfs"
    for name in ("bin", "proc", "dev", *job.mounts, "scratch"):
        (root / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "busybox", root / "bin/true")
    (job.work / "config.json").write_text(json.dumps(_bundle(job)))

    def make(number: int) -> tuple[float, float]:
        start = time.perf_counter()
        name = f"xce-bench-{os.getpid()}-{number}"
        argv = [runtime, "--root", str(job.work / "oci"), "run", "-b", str(job.work), name]
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=environment
        )
        if done.returncode:
            raise RuntimeError(f"{runtime} does not run here: {done.stderr.strip()[-300:]}")
        return (time.perf_counter() - start) * 1e3, 0.0

    return make


def _unlimited(work: Path) -> dict[str, str]:
    """The environment in which a runtime does without raising the limit, where we may not and it need not."""
    compiler = shutil.which("cc")
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] == resource.RLIM_INFINITY or compiler is None:
        return {}
    source, library = work / "limit.c", work / "limit.so"
    source.write_text(_NO_LIMIT)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return {"LD_PRELOAD": str(library)}


def _bundle(job: Job) -> dict[str, object]:
    mounts: list[dict[str, object]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
    ]
    for name in job.mounts:
        options = ["rbind", "ro"]
        mounts.append(
            {"destination": f"/{name}", "type": "bind", "source": str(job.work / name), "options": options}
        )
    if job.scratch:
        options = [f"size={job.scratch}"]
        mounts.append({"destination": "/scratch", "type": "tmpfs", "source": "tmpfs", "options": options})
    base = [tuple(map(int, rule.split()[1].split(":"))) for rule in _BASE]
    allowed = [
        {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rwm"}
        for major, minor in [*base, *job.numbers]
    ]
    return {
        "ociVersion": "1.0.2",
        "process": {"user": {"uid": 0, "gid": 0}, "args": ["/bin/true"], "env": ["PATH=/bin"], "cwd": "/"},
        "root": {"path": "rootfs", "readonly": True},
        "mounts": mounts,
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
            "cgroupsPath": f"/xce-bench-{os.getpid()}-oci",
            "resources": {"devices": [{"allow": False, "access": "rwm"}, *allowed]},
        },
    }


def _version_2_alone() -> None:
    """Runtimes do not know mixed hierarchies: in our namespace /sys/fs/cgroup is version 2."""
    point = next((mount.point for mount in mountinfo.read() if mount.kind == "cgroup2"), _HIERARCHY)
    if point != _HIERARCHY:
        subprocess.run(["mount", "--bind", point, _HIERARCHY], check=True)


def _times(make: Make, times: int) -> list[tuple[float, float]]:
    make(0)
    return [make(number) for number in range(1, times + 1)]


def main(side: str, directory: str, large: str, times: str) -> None:
    """See above."""
    job = Job(Path(directory), large=large == "1")
    if side == "slow":
        job.group.create()
        try:
            one, many = slow(job, int(times))
        finally:
            job.group.remove()
        say(one_ms=one, many_ms=many)
        return
    if side in {"crun", "runc"}:
        _version_2_alone()
        found = _times(container(job, side), int(times))
    else:
        job.group.create()
        try:
            found = _times({"xce": product, "bare": bare}[side](job), int(times))
        finally:
            job.group.remove()
    say(make_ms=statistics.median(f[0] for f in found), back_ms=statistics.median(f[1] for f in found))


if __name__ == "__main__":
    main(*sys.argv[1:])
