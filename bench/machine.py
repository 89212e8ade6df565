"""The machine: CPU time and memory of processes, whether anything else is running, what it is.

CPU is read from `/proc/PID/task/*/schedstat` (exact, in ns, live threads only) for servers whose threads
stay, and from `/proc/PID/stat` (10 ms steps) where ended children must be counted.
"""

import os
import platform
import time
from pathlib import Path

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_QUIET_SHARE = 0.12
_QUIET_S = 2


def cpu_ns(pid: int) -> int:
    """CPU time of all live threads of a process, in ns; 0 when it is gone."""
    total = 0
    try:
        for thread in (_PROC / str(pid) / "task").iterdir():
            total += int((thread / "schedstat").read_bytes().split()[0])
    except OSError:
        return total
    return total


def tree_cpu_s(pid: int) -> float:
    """User and system time of a process and of all its children, those that ended too, in seconds."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    own = sum(map(int, fields[11:15])) / _TICKS  # proc(5): utime stime cutime cstime
    return own + sum(tree_cpu_s(child) for child in children(pid))


def children(pid: int) -> list[int]:
    """Pids of the live direct children of a process."""
    found: list[int] = []
    try:
        for thread in (_PROC / str(pid) / "task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    except OSError:
        pass
    return found


def memory_kb(pid: int, field: str = "VmRSS") -> int:
    """A memory field of `/proc/PID/status`, in kB; `RssAnon` does not shrink when file pages are dropped."""
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise ValueError(f"cannot find {field} in /proc/{pid}/status")


def tree_memory_kb(pid: int) -> int:
    """Resident memory of a process and of all its live children, in kB."""
    try:
        own = memory_kb(pid)
    except (OSError, ValueError):  # it has just ended
        return 0
    return own + sum(tree_memory_kb(child) for child in children(pid))


def wait_until_quiet(limit_s: float) -> float:
    """Wait until all CPUs together are nearly idle for some seconds; returns the share that was busy last.

    Gives up after `limit_s`: a figure that was taken beside other work says so.
    """
    deadline = time.monotonic() + limit_s
    quiet, share = 0, 0.0
    while quiet < _QUIET_S:
        share = busy_share(1)
        quiet = quiet + 1 if share < _QUIET_SHARE else 0
        if time.monotonic() > deadline:
            break
    return share


def busy_share(seconds: float) -> float:
    """Share of all CPUs that was used over the next `seconds`."""
    busy, total = _jiffies()
    time.sleep(seconds)
    busy_then, total_then = _jiffies()
    return (busy_then - busy) / max(1, total_then - total)


def _jiffies() -> tuple[int, int]:
    fields = [int(word) for word in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)  # proc(5): 3 is idle, 4 is iowait


def description() -> dict[str, str]:
    """What a reader of figures must know of the machine."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    system = next((line[13:-1] for line in _lines("/etc/os-release") if line.startswith("PRETTY_NAME=")), "")
    return {
        "system": system,
        "kernel": platform.release(),
        "cpu": f"{len(os.sched_getaffinity(0))} x {model}",
        "python": platform.python_version(),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
