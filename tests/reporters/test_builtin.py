"""The built-in source against written trees of /proc and /sys, and against this machine."""

import time
from pathlib import Path

import psutil
import pytest

from xce.model.builtin_types import BUILTIN_TYPES, LOAD_INDICES
from xce.model.resource import value_problem
from xce.model.value import Absent, Presence
from xce.reporters.builtin import TICK_S, Average, HostSource, Rate

TREE = {
    "proc/loadavg": "1.50 0.90 0.70 4/321 999\n",
    "proc/stat": "cpu  100 0 100 800 0 0 0 0 0 0\n",
    "proc/vmstat": "pswpin 1000\npswpout 500\n",
    "proc/diskstats": (
        "   8  0 sda 10 0 2000 0 5 0 1000 0 0 0 0\n"
        "   8  1 sda1 10 0 2000 0 5 0 1000 0 0 0 0\n"
        "   7  0 loop0 10 0 9999 0 5 0 9999 0 0 0 0\n"
    ),
    "proc/meminfo": "MemTotal: 4096000 kB\nMemAvailable: 2048000 kB\nSwapFree: 1024 kB\n",
    "proc/uptime": "7200.0 1.0\n",
    "proc/cpuinfo": "processor : 0\nmodel name\t: Imagined  CPU @ 3GHz\n",
    "sys/block/sda/dev": "8:0",
    "sys/block/loop0/dev": "7:0",
    **{
        f"sys/devices/system/cpu/cpu{number}/topology/{name}": text
        for number, package, core in (
            (0, 0, 0),
            (1, 0, 0),
            (2, 0, 1),
            (3, 0, 1),
            (4, 1, 0),
            (5, 1, 0),
            (6, 1, 1),
            (7, 1, 1),
        )
        for name, text in (("physical_package_id", f"{package}\n"), ("core_id", f"{core}\n"))
    },
    "sys/devices/system/node/node0/x": "",
    "sys/devices/system/node/node1/x": "",
}


class Clock:
    """A clock that goes only when it is told to."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write(tmp_path, TREE | {"proc/self/mountinfo": "25 1 8:1 / / rw - ext4 /dev/sda1 rw\n"})
    return tmp_path


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def source(tree: Path, clock: Clock) -> HostSource:
    return HostSource(
        now=clock,
        wall=time.time,
        proc_root=str(tree / "proc"),
        sys_root=str(tree / "sys"),
        tmp=str(tree),
    )


def test_every_value_of_this_machine_fits_its_type() -> None:
    """On the machine that runs the test nothing is missing from the 11 indices, and nothing is refused."""
    readings = HostSource(now=time.monotonic, wall=time.time).read()
    values = {name: value for name, value in readings.items() if not isinstance(value, Absent)}
    assert {kind.name for kind in LOAD_INDICES} - {"tmp"} <= values.keys()
    assert {
        name: problem
        for name, value in values.items()
        if (problem := value_problem(BUILTIN_TYPES[name], value))
    } == {}


def test_memory_and_processors_agree_with_psutil() -> None:
    readings = HostSource(now=time.monotonic, wall=time.time).read()
    available = psutil.virtual_memory().available // (1 << 20)
    assert abs(readings["mem"] - available) < max(512, available * 0.2)  # type: ignore[operator]
    assert readings["ncpus"] == psutil.cpu_count()


def test_a_written_machine_reads_as_written(tree: Path, clock: Clock) -> None:
    readings = source(tree, clock).read()
    expected = {
        "r15s": 3.0, "r1m": 1.5, "r15m": 0.7, "ut": 0.2, "pg": 0.0, "io": 0.0, "mem": 2000, "swp": 1,
        "nprocs": 2, "ncores": 2, "nthreads": 2, "numa_nodes": 2, "ndisks": 1, "model": "Imagined CPU @ 3GHz",
    }  # fmt: skip
    assert {name: readings[name] for name in expected} == expected


def test_rates_count_whole_disks_once_and_average_over_a_minute(tree: Path, clock: Clock) -> None:
    host = source(tree, clock)
    host.read()
    clock.time += 15
    write(
        tree,
        {
            "proc/diskstats": "8 0 sda 10 0 5000 0 5 0 4000 0 0 0 0\n8 1 sda1 10 0 5000 0 5 0 4000 0 0 0 0\n",
            "proc/vmstat": "pswpin 1300\npswpout 800\n",
            "proc/stat": "cpu  1100 0 100 800 0 0 0 0 0 0\n",
        },
    )
    readings = host.read()
    weight = 1 - 2.718281828 ** (-15 / 60)
    assert readings["io"] == pytest.approx(6000 * 512 / 1024 / 15 * weight, rel=0.01)
    assert readings["pg"] == pytest.approx(600 / 15 * weight, rel=0.01)
    assert readings["ut"] == pytest.approx(0.2 + 0.8 * weight, rel=0.01)


def test_each_name_comes_at_its_own_interval(tree: Path, clock: Clock) -> None:
    host = source(tree, clock)
    counts: dict[str, int] = {}
    for _ in range(int(120 / TICK_S) + 1):
        for name in host.read():
            counts[name] = counts.get(name, 0) + 1
        clock.time += TICK_S
    assert (counts["mem"], counts["ls"], counts["tmp"], counts["maxmem"]) == (9, 5, 2, 1)


def test_a_file_that_cannot_be_read_costs_only_its_own_names(tree: Path, clock: Clock) -> None:
    (tree / "proc/meminfo").unlink()
    readings = source(tree, clock).read()
    missing = readings["mem"]
    assert isinstance(missing, Absent)
    assert missing.presence is Presence.UNKNOWN
    assert "meminfo" in missing.cause
    assert readings["r1m"] == 1.5


def test_a_remote_tmp_is_left_out_and_said(tree: Path, clock: Clock) -> None:
    """A dead NFS server behind /tmp must not stop the agent, so the agent never asks it."""
    write(
        tree,
        {"proc/self/mountinfo": f"25 1 8:1 / / rw - ext4 /dev/a rw\n30 25 0:40 / {tree} rw - nfs4 s:/t rw\n"},
    )
    host = source(tree, clock)
    readings = host.read()
    assert "tmp" not in readings
    assert "nfs4" in host.notes[0]


def test_an_average_forgets_by_time_and_not_by_count() -> None:
    often, rarely = Average(60), Average(60)
    often.add(0, 0)
    rarely.add(0, 0)
    for second in range(1, 61):
        often.add(10, second)
    rarely.add(10, 60)
    assert often.value == pytest.approx(rarely.value)


def test_a_counter_that_was_set_back_gives_no_negative_rate() -> None:
    rate = Rate()
    assert [rate.per_second(count, at) for at, count in enumerate((100, 150, 10, 30))] == [0, 50, 0, 20]


def test_reading_costs_little() -> None:
    """It runs every five seconds all day: well under a millisecond of CPU on average."""
    host = HostSource(now=time.monotonic, wall=time.time)
    host.read()
    before = time.process_time()
    for _ in range(50):
        host.read()
    assert (time.process_time() - before) / 50 < 0.02
