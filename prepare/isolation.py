"""How devices can be kept from consumers on this machine, found out by trying; the old controller's files.

The new way is a program on the consumer's control group, of version 2 (`linux.bpf`). Where the kernel does
not let us, the devices controller of version 1 does the same by text files. Where neither works, a claim with
devices fails and says why.
"""

import errno
import functools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from xce.linux import bpf, mountinfo
from xce.linux.bpf import Rule
from xce.linux.cgroup import Cgroup
from xce.prepare.handler import Isolation

KINDS = {"c": bpf.BPF_DEVCG_DEV_CHAR, "b": bpf.BPF_DEVCG_DEV_BLOCK}
"""As a rule's text has them."""
_ACCESS = {"r": bpf.BPF_DEVCG_ACC_READ, "w": bpf.BPF_DEVCG_ACC_WRITE, "m": bpf.BPF_DEVCG_ACC_MKNOD}
_HELD = "rwm"
NEEDED = "CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN, are needed"
"""For a filter of version 2."""


def find(groups: Cgroup, *, proc: str = "/proc", mechanisms: Sequence[str] = ("bpf", "v1")) -> Isolation:
    """The first of `mechanisms` that works here for consumers below `groups`."""
    reasons = []
    for mechanism in mechanisms:
        found = _bpf(groups) if mechanism == "bpf" else _old(proc)
        if not found.reason:
            return found
        reasons.append(found.reason)
    return Isolation("none", reason="; ".join(reasons))


def _bpf(groups: Cgroup) -> Isolation:
    try:
        fd = os.open(groups.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return Isolation("none", reason=f"no control groups of version 2 at {groups.path}: {error.strerror}")
    try:
        os.close(bpf.load(bpf.compile_rules([]), "xce_try"))
        bpf.query(fd)
    except OSError as error:
        hint = f" ({NEEDED})" if error.errno == errno.EPERM else ""
        return Isolation("none", reason=f"cannot load device filters: {error.strerror}{hint}")
    finally:
        os.close(fd)
    return Isolation("bpf")


def _old(proc: str) -> Isolation:
    for mount in mountinfo.read(proc):
        if mount.kind == "cgroup" and "devices" in mount.super_options.split(","):
            if _can_deny(mount.point):
                return Isolation("v1", root=mount.point)
            return Isolation("none", reason=f"cannot write to the devices controller at {mount.point}")
    return Isolation("none", reason="no devices controller of version 1")


def _can_deny(point: str) -> bool:
    """The files look writable to root; the controller asks for a capability when they are written."""
    trial = f"{point}/xce-try-{os.getpid()}"
    try:
        os.mkdir(trial)
    except OSError:
        return False
    try:
        Path(trial, "devices.deny").write_text("c 254:254 m", encoding="ascii")
    except OSError:
        return False
    finally:
        os.rmdir(trial)
    return True


@functools.lru_cache(maxsize=1024)
def parse_rule(text: str) -> Rule:
    """A rule as the devices controller writes it: `c 195:* rwm`. Raises ValueError."""
    kind, _, rest = text.strip().partition(" ")
    numbers, _, access = rest.partition(" ")
    major, colon, minor = numbers.partition(":")
    if kind not in KINDS or not colon or not access or set(access) - set(_ACCESS):
        raise ValueError(f"device rule {text!r}: must look like 'c 1:3 rwm'")
    return Rule(KINDS[kind], _part(major), _part(minor), sum(_ACCESS[letter] for letter in set(access)))


def _part(text: str) -> int | None:
    if text == "*":
        return None
    if not text.isdecimal():
        raise ValueError(f"device number {text!r}: must be a number or '*'")
    return int(text)


def merged(rules: Iterable[str]) -> list[Rule]:
    """Rules, sorted, each device once with all that is allowed on it."""
    return list(_merged(tuple(rules)))


@functools.lru_cache(maxsize=1024)
def _merged(rules: tuple[str, ...]) -> tuple[Rule, ...]:
    access: dict[tuple[int, int, int], int] = {}
    for text in rules:
        rule = parse_rule(text)
        place = (rule.kind, _sortable(rule.major), _sortable(rule.minor))
        access[place] = access.get(place, 0) | rule.access
    return tuple(
        Rule(kind, None if major < 0 else major, None if minor < 0 else minor, bits)
        for (kind, major, minor), bits in sorted(access.items())
    )


def _sortable(number: int | None) -> int:
    return -1 if number is None else number


def set_old_rules(group: str, rules: Sequence[Rule]) -> None:
    """Make the old controller allow exactly `rules`: what is new first, then away with the rest."""
    wanted, held = set(_old_words(rules)), set(old_rules(group))
    if held == {"a *:* rwm"}:
        _write(group, "devices.deny", "a")
        held = set()
    for line in sorted(wanted - held):
        _write(group, "devices.allow", line)
    for line in sorted(set(old_rules(group)) - wanted):
        _write(group, "devices.deny", line)


def old_rules(group: str) -> list[str]:
    """What the old controller allows."""
    return Path(group, "devices.list").read_text(encoding="ascii").splitlines()


def agrees(group: str, rules: Sequence[Rule]) -> bool:
    """Whether the old controller allows exactly `rules`."""
    return set(old_rules(group)) == set(_old_words(rules))


def _old_words(rules: Sequence[Rule]) -> list[str]:
    """With the letters in the order in which the controller lists them."""
    lines = []
    for words in bpf.words(rules):
        device, _, access = words.rpartition(" ")
        lines.append(f"{device} {''.join(letter for letter in _HELD if letter in access)}")
    return lines


def _write(group: str, file: str, line: str) -> None:
    fd = os.open(f"{group}/{file}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, line.encode("ascii"))
    finally:
        os.close(fd)
