"""What `xce-agent doctor` looks at that is this host's own: kernel, units, devices, leftovers.

As in `checks.py`: each check says what it found, changes nothing, and may hang where the host does.
"""

import contextlib
import ctypes
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from xce.linux import cgroup, mountinfo
from xce.linux.cgroup import Cgroup
from xce.model.configuration import AgentFile
from xce.prepare import journal, journalnames, local, names
from xce.prepare.group import PREFIX
from xce.reporters import supervisor

RELEASED = 1_735_689_600
"""2025-01-01: a clock before this is wrong."""
UNIT = "xce-agent.service"
UNIFIED = (
    "grubby --update-kernel=ALL --args=systemd.unified_cgroup_hierarchy=1 (Debian: /etc/default/grub, then "
    "update-grub); reboot"
)
NTP = "systemctl enable --now chronyd (or systemd-timesyncd)"
UNITS = ("etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
HIDING = re.compile(
    r"^(Private(Mounts|Tmp|Devices|Network|Users)|Protect(System|Home|KernelTunables|KernelModules|KernelLogs|"
    r"ControlGroups|Clock|Hostname|Proc)|(ReadOnly|ReadWrite|Inaccessible|Exec|NoExec)Paths|Bind(ReadOnly)?Paths|"
    r"TemporaryFileSystem|RootDirectory|RootImage|DynamicUser|MountFlags|ProcSubset)=(?!(no|false|0|off)?\s*$)",
    re.MULTILINE | re.IGNORECASE,
)
"""Options with which systemd gives a service a mount namespace of its own, or hides what it has to see."""
_NO = {"no", "false", "0", "off"}
STOP_S, WATCHDOG_S = 5.0, 5.0
_TIME_ERROR = 5
_NVIDIA = "0x10de"
_LIBRARY = "libnvidia-ml.so.1"


class Finding(msgspec.Struct, frozen=True):
    """`level`: ok, warning (worth knowing) or problem (something will not work)."""

    level: str
    text: str
    advice: str = ""


class Needed(NamedTuple):
    """A capability that the agent works with: its number in capability.h, and what fails without it."""

    name: str
    number: int
    purpose: str
    for_claims: bool = True
    grave: bool = True
    """False: only some volumes want it."""


NEEDED = (
    Needed("CAP_CHOWN", 0, "directories cannot be given to users", for_claims=False),
    Needed("CAP_KILL", 5, "what a reporter or a job leaves behind cannot be ended", for_claims=False),
    Needed("CAP_SETGID", 6, "reporters cannot run as another user", for_claims=False),
    Needed("CAP_SETUID", 7, "reporters cannot run as another user", for_claims=False),
    Needed("CAP_SYS_ADMIN", 21, "claims with mounts or devices fail"),
    Needed("CAP_SYS_RESOURCE", 24, "project quotas cannot be set", grave=False),
)
"""The others of the unit are for single devices and file systems: docs/packaging.md has them all."""

Findings = Iterator[Finding]
CLOSED = "it cannot be written"


def home(settings: AgentFile, agent_pid: int | None, root: str = "/") -> tuple[Cgroup | None, str]:
    """The control group in which the agent makes those of reporters, and why it could not; '' if it can.

    The running agent's own group; without one, what its unit will have; without a unit, that of this shell.
    """
    if settings.cgroup:
        group: Cgroup | None = Cgroup(os.path.dirname(settings.cgroup.rstrip("/")))
    elif agent_pid is None and (files := _unit_files(root)) and not masked(files[0]):
        text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
        delegated = [value.lower() for value in re.findall(r"^Delegate=(.*?)\s*$", text, re.MULTILINE)]
        hierarchy = next((mount.point for mount in mountinfo.read() if mount.kind == "cgroup2"), "")
        group = Cgroup(f"{hierarchy}/system.slice/{UNIT}")
        return group, "" if delegated and delegated[-1] not in _NO else f"{files[0]} does not delegate it"
    else:
        group = cgroup.own(pid=agent_pid or "self")
        if group is not None and group.name == supervisor.BESIDE:
            group = group.parent()
    if group is None:
        return None, "its process is in none of version 2"
    if not group.writable():
        return group, CLOSED
    return group, "" if group.genuine() else "it is no control group of version 2"


def privileges(settings: AgentFile, agent_pid: int | None = None, proc: str = "/proc") -> Findings:
    """What the agent may do; without one, who runs this."""
    if agent_pid is None:
        user, missing = os.geteuid(), []
    else:
        status = Path(proc, str(agent_pid), "status").read_text("ascii", errors="replace")
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        user, held = int(fields["Uid"].split()[1]), int(fields["CapEff"], 16)
        missing = [one for one in NEEDED if not held >> one.number & 1]
    who = "the agent" if agent_pid else "this shell"
    if user != 0:
        yield Finding(
            "warning",
            f"{who} runs as uid {user}: all reporters run as this user, and others' files stay unread",
            f"systemctl start {UNIT} runs it as root, and reporters as an unprivileged user",
        )
        return
    for one in missing:
        minor = not one.grave or (one.for_claims and not settings.claims.enabled)
        level = "warning" if minor else "problem"
        advice = f"systemctl cat {UNIT} shows which CapabilityBoundingSet= leaves it out"
        yield Finding(level, f"the agent lacks {one.name}: {one.purpose}", advice)
    if not missing:
        yield Finding("ok", f"{who} runs as root: reporters get a user of their own")


def control_groups(settings: AgentFile, agent_pid: int | None = None, root: str = "/") -> Findings:
    """Whether groups can be made, of which version, and with which controllers."""
    table = mountinfo.read()
    if not any(mount.kind == "cgroup2" for mount in table):
        yield Finding(
            "problem",
            "no cgroup2 file system is mounted: children that reporters leave behind may be missed",
            f"mount -t cgroup2 none /sys/fs/cgroup; for good: {UNIFIED}",
        )
        return
    group, why = home(settings, agent_pid, root)
    if group is None or why:
        text = f"cannot make groups in {group.path if group else 'our own group'}: {why}"
        if os.geteuid() != 0 and why == CLOSED:  # to us; the agent may be root
            yield Finding("warning", text, "sudo xce-agent doctor; without root runs are held less tightly")
            return
        yield Finding(
            "problem", text, f"systemctl edit {UNIT}: [Service] Delegate=yes; or `cgroup:` in agent.yaml"
        )
        return
    mode = "hybrid" if any(mount.kind == "cgroup" for mount in table) else "version 2"
    yield Finding("ok", f"{mode}; groups can be made in {group.path}")
    if os.path.exists(f"{group.path}/cgroup.type") and not os.path.exists(f"{group.path}/cgroup.kill"):
        yield Finding(
            "warning", "no cgroup.kill: ending a fork bomb may take several rounds", "Linux 5.14 or newer"
        )
    if group.exists() and (missing := {"memory", "pids"} - group.controllers()):
        what = " and ".join(sorted(missing))
        yield Finding(
            "warning",
            f"the controllers {what} are not there: limits are set by rlimits instead",
            UNIFIED,
        )


def clock(_settings: AgentFile, wall: Callable[[], float] = time.time) -> Findings:
    """Whether time passes, and whether the date is right; only the first is needed."""
    before = time.monotonic()
    time.sleep(0.01)
    if time.monotonic() <= before:
        yield Finding(
            "problem",
            "the monotonic clock stands still",
            "dmesg | grep -i clocksource: this kernel or hypervisor is broken",
        )
    elif wall() < RELEASED:
        date = time.strftime("%Y-%m-%d", time.gmtime(wall()))
        yield Finding("warning", f"the date is {date}: only for showing, but wrong", NTP)
    elif unsynchronised():
        yield Finding("warning", "nobody keeps the clock right: times in logs drift apart", NTP)
    else:
        yield Finding("ok", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def unsynchronised() -> bool:
    """What adjtimex(2) says; asking changes nothing."""
    state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    return state == _TIME_ERROR


def unit(_settings: AgentFile, root: str = "/") -> Findings:
    """Whether systemd starts the agent at boot, and as it has to."""
    if not os.path.isdir(f"{root}run/systemd/system"):
        yield Finding("ok", "no systemd here: whoever starts the agent starts it at boot too")
        return
    files = _unit_files(root)
    if not files:
        yield Finding(
            "warning", f"there is no {UNIT}: nothing starts the agent", "dnf install xce-agent (or apt-get)"
        )
        return
    if masked(files[0]):
        yield Finding("problem", f"{UNIT} is masked", f"systemctl unmask {UNIT}")
        return
    if any(Path(root, "etc/systemd/system").glob(f"*.wants/{UNIT}")):
        yield Finding("ok", f"{files[0]} is enabled")
    else:
        yield Finding("warning", f"{UNIT} is not started at boot", f"systemctl enable --now {UNIT}")
    for file in files:
        yield from _options(file)


def masked(file: Path) -> bool:
    """Whether an admin forbids the unit: then no option of it counts."""
    return os.path.realpath(file) == "/dev/null"


def _unit_files(root: str) -> list[Path]:
    """The agent's unit and its drop-ins, as systemd reads them; none where there is no unit."""
    path = next((found for one in UNITS if os.path.lexists(found := f"{root}{one}/{UNIT}")), "")
    drop_ins = [file for one in UNITS for file in sorted(Path(root, one, f"{UNIT}.d").glob("*.conf"))]
    return [Path(path), *drop_ins] if path else []


def _options(file: Path) -> Findings:
    text = file.read_text(encoding="utf-8", errors="replace")
    for option in HIDING.finditer(text):
        yield Finding(
            "problem",
            f"{file}: {option[0].strip()}... gives the agent a view of its own: mounts would not be visible "
            "outside",
            f"take the line out; systemctl daemon-reload; systemctl restart {UNIT}",
        )
    for name, least_s in (("WatchdogSec", WATCHDOG_S), ("TimeoutStopSec", STOP_S)):
        for value in re.findall(rf"^{name}=(\d+)s?\s*$", text, re.MULTILINE):
            if 0 < int(value) < least_s:
                yield Finding(
                    "warning",
                    f"{file}: {name}={value} is short",
                    f"{least_s:g} or more there; systemctl daemon-reload; systemctl restart {UNIT}",
                )


def library(settings: AgentFile) -> Findings:
    """Whether NVIDIA's library can be asked, where there are such devices. It may take long, or hang."""
    root = settings.discovery.root
    cards = [path for path in Path(root, "sys/bus/pci/devices").glob("*") if _is_card(path)]
    if not cards and not settings.discovery.library:
        yield Finding("ok", "no NVIDIA GPU is to be seen")
        return
    os.environ.update(settings.discovery.environment)
    try:
        nvml = ctypes.CDLL(settings.discovery.library or _LIBRARY)
        begin = nvml.nvmlInitWithFlags
    except (OSError, AttributeError) as error:
        text = f"{len(cards)} NVIDIA GPUs, and their library cannot be used: {error}"
        yield Finding(
            "problem",
            text,
            "ldconfig -p | grep nvidia-ml; install the driver's libraries, or set `discovery.library`",
        )
        return
    if code := begin(0):
        nvml.nvmlErrorString.restype = ctypes.c_char_p
        words = (nvml.nvmlErrorString(code) or b"").decode(errors="replace")
        advice = "nvidia-smi says more; a driver that was updated needs a reload or a reboot"
        yield Finding("problem", f"NVIDIA's library answers {code}: {words}", advice)
        return
    version = ctypes.create_string_buffer(96)
    nvml.nvmlSystemGetDriverVersion(version, ctypes.c_uint(len(version)))
    nvml.nvmlShutdown()
    yield Finding("ok", f"{len(cards)} NVIDIA GPUs, driver {version.value.decode(errors='replace')}")


def _is_card(device: Path) -> bool:
    try:
        kind = (device / "class").read_text("ascii")
        return (device / "vendor").read_text("ascii").strip() == _NVIDIA and kind.startswith("0x03")
    except OSError:
        return False


def leftovers(settings: AgentFile, name: str, *, running: bool) -> Findings:
    """What an earlier agent or an earlier job has left: processes, groups, mounts, a damaged journal."""
    left = [] if running else list(_of_reporters(settings, name))
    left += _of_jobs(settings)
    yield from left or [Finding("ok", "none")]


def _of_reporters(settings: AgentFile, name: str) -> Findings:
    label = supervisor.label(name, settings.state_directory)
    above, _ = home(settings, None)
    group = Cgroup(settings.cgroup) if settings.cgroup else above.child(f"xce-{label}") if above else None
    if pids := group.pids() if group is not None else []:
        some = ", ".join(str(pid) for pid in pids[:8])
        text = f"processes of an earlier agent are left: {some}"
        yield Finding("warning", text, f"systemctl start {UNIT} ends them")


def _of_jobs(settings: AgentFile) -> Findings:
    """Groups and mounts that the journal of claims does not know, and journals that were set aside."""
    try:
        orders = journal.live(settings.state_directory)
    except ValueError as error:
        yield Finding(
            "problem",
            str(error),
            "xce-agent status; journalctl -u xce-agent: the agent says what it makes of it when it starts",
        )
    else:
        known = {order.binding.consumer.name for order in orders}
        yield from _of_strangers(settings, {f"{PREFIX}{names.encode(name)}" for name in known})
    for path in journalnames.damaged(settings.state_directory):
        yield Finding(
            "warning", f"{path}: a damaged journal was set aside", f"when it is understood: rm {path}"
        )


def _of_strangers(settings: AgentFile, known: set[str]) -> Findings:
    with contextlib.suppress(OSError):
        group = local.groups(settings.claims)
        ours = settings.claims.cgroup or local.jobs_unit() is not None
        for child in group.children() if ours else []:
            if child.name != local.HOLDER and child.name not in known:
                pids = ", ".join(str(pid) for pid in child.pids()[:8]) or "no processes"
                text = f"{child.path} belongs to no claim of this host ({pids})"
                yield Finding(
                    "warning", text, f"whose is it? this ends its processes: echo 1 >{child.path}/cgroup.kill"
                )
    root = settings.claims.directory.rstrip("/") + "/"
    for mount in mountinfo.read() if not known else []:
        if mount.point.startswith(root):
            text = f"{mount.point} is mounted and belongs to no claim of this host"
            yield Finding("warning", text, f"umount {mount.point}")
