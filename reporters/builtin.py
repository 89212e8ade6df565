"""The source `builtin`: LSF's 11 load indices and the host's attributes, read in the agent's own process.

Nothing in it can hang: it reads /proc, /sys and terminals, and asks a local file system for its free space.
Where /tmp is a remote or FUSE file system it leaves `tmp` and `maxtmp` out and says so in `notes`; the
shipped reporter `scratch_space` gives them then, in a child that can be killed. A source that cannot be read
makes its own names unknown with the reason and costs no other name anything.

Names, units and directions are those of `model/builtin_types.py`.
"""

import math
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType

from xce.linux import mountinfo, proc
from xce.model.builtin_types import ATTRIBUTES, BUILTIN, BUILTIN_TYPES, LOAD_INDICES
from xce.model.value import Absent, Presence, Reading, Value

TICK_S = 5.0
"""How often `read` wants to be called: the 15 s average needs some samples within its time."""
SECTOR_BYTES = 512
"""Unit of /proc/diskstats, whatever the device's own sectors are (kernel doc, admin-guide/iostats)."""
_NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd", "zd")
"""Stacked or virtual devices: counting them as well would count one transfer twice."""
_HOST_TYPES = {
    "x86_64": "X86_64",
    "aarch64": "LINUX_ARM64",
    "ppc64le": "LINUXPPC64LE",
    "s390x": "LINUX_S390X",
}

Measure = Callable[[], Mapping[str, Value]]


class Average:
    """An exponential average over a number of seconds, fed at any pace."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at: float | None = None
        self.value = 0.0

    def add(self, sample: float, now: float) -> float:
        """Take a sample that held since the one before; the first one counts as the whole past."""
        if self._at is None:
            self.value = sample
        else:
            keep = math.exp(-max(0.0, now - self._at) / self._seconds)
            self.value = self.value * keep + sample * (1 - keep)
        self._at = now
        return self.value


class Rate:
    """A counter's growth per second between two looks; 0 at the first look and when it was set back."""

    def __init__(self) -> None:
        self._count: float | None = None
        self._at = 0.0

    def per_second(self, count: float, now: float) -> float:
        """Growth per second since the last call."""
        before, at = self._count, self._at
        self._count, self._at = count, now
        if before is None or count < before or now <= at:
            return 0.0
        return (count - before) / (now - at)


class HostSource:
    """Reads what is due. `now` is monotonic; `wall` is compared with the terminals' times alone."""

    name = BUILTIN

    def __init__(
        self,
        *,
        now: Callable[[], float],
        wall: Callable[[], float],
        proc_root: str = "/proc",
        sys_root: str = "/sys",
        dev_root: str = "/dev",
        tmp: str = "/tmp",  # noqa: S108 - the load index is about this directory
    ) -> None:
        self._now, self._wall = now, wall
        self._proc, self._sys, self._dev, self._tmp = Path(proc_root), Path(sys_root), Path(dev_root), tmp
        self._queue, self._busy = Average(15), Average(60)
        self._swapping, self._transfer = Average(60), Average(60)
        self._swap_rate, self._transfer_rate = Rate(), Rate()
        self._cpu = (0.0, 0.0)
        self._due: dict[str, float] = {}
        self.notes: list[str] = []
        """What a person should know about names that are left out."""

    def read(self) -> dict[str, Reading]:
        """The readings that are due now; call it every `TICK_S` seconds."""
        now = self._now()
        due = {kind.name for kind in (*LOAD_INDICES, *ATTRIBUTES) if now >= self._due.get(kind.name, now)}
        readings: dict[str, Reading] = {}
        for names, measure in self._measures(now):
            # The averages of a tick are fed even when nobody asks for their names yet.
            if due.isdisjoint(names) and names[0] not in _AVERAGED:
                continue
            try:
                found = measure()
            except (OSError, ValueError, IndexError, KeyError) as error:
                unknown = Absent(Presence.UNKNOWN, cause=f"cannot read it: {error}")
                readings |= {name: unknown for name in names if name in due}
                continue
            readings |= {name: value for name, value in found.items() if name in due}
        for name in due:
            interval = BUILTIN_TYPES[name].interval or TICK_S
            self._due[name] = now + interval - TICK_S / 2  # on the tick nearest to its time, never one later
        return readings

    def _measures(self, now: float) -> Iterable[tuple[tuple[str, ...], Measure]]:
        """Which names come from which look at the machine."""
        return (
            (("r15s", "r1m", "r15m"), lambda: self._load(now)),
            (("ut",), lambda: self._utilisation(now)),
            (("pg",), lambda: self._paging(now)),
            (("io",), lambda: self._disk(now)),
            (("mem", "swp"), self._memory),
            (("ls", "it"), self._logins),
            (("tmp", "maxtmp"), self._space),
            (("maxmem", "maxswp", "ncpus"), self._sizes),
            (("nprocs", "ncores", "nthreads", "numa_nodes"), self._processors),
            (("ndisks",), self._disks),
            (("model",), self._model),
            (("type", "arch", "ostype", "kernel"), _system),
            (("osver",), _distribution),
        )

    # ---------------------------------------------------------------------------------- load indices

    def _load(self, now: float) -> dict[str, Value]:
        fields = self._text("loadavg").split()
        running = int(fields[3].partition("/")[0]) - 1  # without ourselves
        return {
            "r15s": round(self._queue.add(max(0, running), now), 2),
            "r1m": float(fields[0]),
            "r15m": float(fields[2]),
        }

    def _utilisation(self, now: float) -> dict[str, Value]:
        ticks = [float(field) for field in self._text("stat").splitlines()[0].split()[1:9]]
        total, idle = sum(ticks), ticks[3] + ticks[4]  # idle and iowait, proc_stat(5)
        before_total, before_idle = self._cpu
        self._cpu = (total, idle)
        passed = total - before_total
        share = 1 - (idle - before_idle) / passed if passed > 0 else 0.0
        return {"ut": round(self._busy.add(min(1.0, max(0.0, share)), now), 4)}

    def _paging(self, now: float) -> dict[str, Value]:
        counters = _pairs(self._text("vmstat"))
        rate = self._swap_rate.per_second(counters["pswpin"] + counters["pswpout"], now)
        return {"pg": round(self._swapping.add(rate, now), 2)}

    def _disk(self, now: float) -> dict[str, Value]:
        sectors = 0
        for line in self._text("diskstats").splitlines():
            fields = line.split()
            if self._is_disk(fields[2]):
                sectors += int(fields[5]) + int(fields[9])  # read and written
        rate = self._transfer_rate.per_second(sectors * SECTOR_BYTES / 1024, now)
        return {"io": round(self._transfer.add(rate, now), 1)}

    def _memory(self) -> dict[str, Value]:
        sizes = proc.memory(str(self._proc))
        return {"mem": sizes["MemAvailable"] >> 20, "swp": sizes["SwapFree"] >> 20}

    def _logins(self) -> dict[str, Value]:
        sessions = _psutil().users()
        touched = []
        for session in sessions:
            try:
                touched.append((self._dev / session.terminal).stat().st_atime)
            except (OSError, TypeError):
                continue  # a session without a terminal, or one that has just ended
        boot = self._wall() - float(self._text("uptime").split()[0])
        idle = self._wall() - max(touched, default=boot)
        return {"ls": len(sessions), "it": max(0, int(idle // 60))}

    def _space(self) -> dict[str, Value]:
        mount = mountinfo.covering(
            os.path.abspath(self._tmp), mountinfo.tops(mountinfo.read(str(self._proc)))
        )
        kind = mount.kind if mount else "an unknown file system"
        if mountinfo.can_hang(kind):
            self.notes = [
                f"tmp and maxtmp are left out: {self._tmp} is on {kind}, which could hang the agent; "
                "use the example reporter scratch_space for them"
            ]
            return {}
        self.notes = []
        space = os.statvfs(self._tmp)
        megabyte = 1 << 20
        return {
            "tmp": space.f_bavail * space.f_frsize // megabyte,
            "maxtmp": space.f_blocks * space.f_frsize // megabyte,
        }

    # ------------------------------------------------------------------------------------ attributes

    def _sizes(self) -> dict[str, Value]:
        psutil, megabyte = _psutil(), 1 << 20
        return {
            "maxmem": psutil.virtual_memory().total // megabyte,
            "maxswp": psutil.swap_memory().total // megabyte,
            "ncpus": psutil.cpu_count() or 0,
        }

    def _processors(self) -> dict[str, Value]:
        """Of the first package and core: a host's packages are alike in every machine that is sold."""
        topology = (self._sys / "devices/system/cpu").glob("cpu[0-9]*/topology")
        packages: dict[int, set[int]] = {}
        threads: dict[tuple[int, int], int] = {}
        for place in topology:
            package = int((place / "physical_package_id").read_text())
            core = int((place / "core_id").read_text())
            packages.setdefault(package, set()).add(core)
            threads[package, core] = threads.get((package, core), 0) + 1
        nodes = list((self._sys / "devices/system/node").glob("node[0-9]*"))
        found: dict[str, Value] = {"numa_nodes": max(1, len(nodes))}
        if packages:
            found["nprocs"] = len(packages)
            found["ncores"] = max(len(cores) for cores in packages.values())
            found["nthreads"] = max(threads.values())
        return found

    def _disks(self) -> dict[str, Value]:
        lines = (line.split() for line in self._text("diskstats").splitlines())
        return {"ndisks": sum(self._is_disk(fields[2]) for fields in lines)}

    def _model(self) -> dict[str, Value]:
        for line in self._text("cpuinfo").splitlines():
            key, colon, value = line.partition(":")
            if colon and key.strip() in {"model name", "cpu", "CPU part"}:
                return {"model": " ".join(value.split())}
        raise ValueError("no processor model in cpuinfo")

    def _is_disk(self, name: str) -> bool:
        # A whole disk has a folder of its own in /sys/block, a partition has not.
        return not name.startswith(_NOT_DISKS) and (self._sys / "block" / name.replace("/", "!")).exists()

    def _text(self, name: str) -> str:
        return (self._proc / name).read_text(encoding="utf-8", errors="replace")


_AVERAGED = frozenset({"r15s", "ut", "pg", "io"})


def _system() -> dict[str, Value]:
    machine = platform.machine()
    host_type = _HOST_TYPES.get(machine, f"LINUX_{machine.upper()}")
    return {"type": host_type, "arch": machine, "ostype": "linux", "kernel": platform.release()}


def _distribution() -> dict[str, Value]:
    release = platform.freedesktop_os_release()
    return {"osver": f"{release['ID']} {release.get('VERSION_ID', '')}".strip()}


def _pairs(text: str) -> dict[str, int]:
    """`NAME NUMBER` lines."""
    fields = (line.split() for line in text.splitlines())
    return {field[0]: int(field[1]) for field in fields if len(field) > 1}


def _psutil() -> ModuleType:
    """Loaded at the first use: 2 MB and 20 ms that the agent's first hello should not wait for."""
    import psutil  # noqa: PLC0415

    return psutil
