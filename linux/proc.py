"""Small readers of /proc and of the machine's identity, with a root parameter. Nothing here can hang.

A process that is gone reads as None or '': between listing and reading it may end at any time.
"""

import os
from typing import NamedTuple

_PIECE = 1 << 16


class Process(NamedTuple):
    """What /proc/PID/stat says of a process."""

    pid: int
    name: str
    state: str
    """One letter: R running, S sleeping, D uninterruptible, Z zombie, T stopped; proc_pid_stat(5)."""
    parent: int
    session: int
    started: int
    """Clock ticks after boot: with the pid it is an identity."""


def process(pid: int, proc_root: str = "/proc") -> Process | None:
    """A process by number, or None if there is none."""
    text = _read(f"{proc_root}/{pid}/stat")
    # The name is in parentheses and may itself hold blanks and parentheses.
    head, close, tail = text.rpartition(")")
    fields = tail.split()
    if not close or len(fields) < 20:
        return None
    return Process(
        pid=pid,
        name=head.partition("(")[2],
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]),
    )


def real_user(pid: int, proc_root: str = "/proc") -> int | None:
    """The uid of whoever started a process, whatever it has become by its file's mode; None if it is gone."""
    for line in _read(f"{proc_root}/{pid}/status").split("\n"):
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return None


def processes(proc_root: str = "/proc") -> list[Process]:
    """All processes that can be seen."""
    numbers = (int(name) for name in os.listdir(proc_root) if name.isdigit())
    return [found for number in numbers if (found := process(number, proc_root)) is not None]


def wait_channel(pid: int, proc_root: str = "/proc") -> str:
    """The kernel function in which a process sleeps; '' if it runs, is gone, or we may not know."""
    text = _read(f"{proc_root}/{pid}/wchan").strip()
    return "" if text == "0" else text


def has_environment(pid: int | str, entry: str, proc_root: str = "/proc") -> bool:
    """Whether a process was started with `entry` ('NAME=VALUE') in its environment, as far as we may know."""
    try:
        held = content(f"{proc_root}/{pid}/environ")
    except OSError:
        return False
    return os.fsencode(entry) in held.split(b"\0")


def boot_id(proc_root: str = "/proc") -> str:
    """The kernel's random id of this boot; '' if there is none."""
    return _read(f"{proc_root}/sys/kernel/random/boot_id").strip()


def machine_id(root: str = "/") -> str:
    """machine-id(5) of the installation; '' if there is none."""
    return _read(os.path.join(root, "etc/machine-id")).strip()


def resident_bytes(pid: int | str = "self", proc_root: str = "/proc") -> int:
    """Resident memory of a process; 0 if it is gone."""
    fields = _read(f"{proc_root}/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def memory(proc_root: str = "/proc") -> dict[str, int]:
    """Bytes, by the names that /proc/meminfo has for them. Raises OSError."""
    return sizes(content(f"{proc_root}/meminfo").decode(errors="replace"))


def sizes(meminfo: str) -> dict[str, int]:
    """The same of a text: the machine's, or a NUMA node's, where each line begins with the node."""
    lines = (line.split() for line in meminfo.splitlines())
    return {words[-3][:-1]: int(words[-2]) << 10 for words in lines if words[-1:] == ["kB"]}


def content(path: str) -> bytes:
    """All that a file of the kernel's says, in as few calls as it takes. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, _PIECE)
        while more := os.read(fd, _PIECE):
            text += more
        return text
    finally:
        os.close(fd)


def _read(path: str) -> str:
    try:
        return content(path).decode(errors="replace")
    except OSError:
        return ""
