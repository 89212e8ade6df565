"""What `xce-agent doctor` looks at that claims need: scratch, groups of jobs, device filters, mounts, CSI.

As in `checks.py`: each check says what it found, changes nothing, and may hang where the host does.
"""

import contextlib
import os
import stat
from pathlib import Path

from xce.agent import scratch_roots
from xce.agent.host_checks import UNIFIED, UNIT, UNITS, Finding, Findings, masked
from xce.linux import local_ports, mountinfo, paths
from xce.model.configuration import AgentFile
from xce.model.profile import profiles
from xce.prepare import isolation, journal, local
from xce.prepare.csi.helper import PACKAGE

JOBS_UNIT = "xce-jobs.service"
_ELSEWHERE = (
    "sudo xce-agent doctor; in a container, with CAP_SYS_PTRACE; where jobs live in the agent's own "
    "namespace: `namespace: self` below `claims:` in agent.yaml"
)


def claims(settings: AgentFile) -> Findings:
    """Whether claims are made true here, and whether some are left from when they were."""
    if settings.claims.enabled:
        yield Finding("ok", f"they are taken, by profiles {', '.join(sorted(profiles(settings.claims)))}")
        for text, advice in scratch_roots.problems(settings.claims):
            yield Finding("problem", text, advice)
        return
    known = set()
    with contextlib.suppress(ValueError):  # a journal that cannot be read is told by `leftovers`
        known = {order.binding.consumer.name for order in journal.live(settings.state_directory)}
    if known:
        text = f"none are taken any more; there are still those of {', '.join(sorted(known))}"
        yield Finding("warning", text, "xce-agent claim list; they are looked after until they are released")
    else:
        yield Finding("ok", "none are taken (claims.enabled in agent.yaml)")


def jobs(_settings: AgentFile, root: str = "/") -> Findings:
    """Whether what jobs live in is apart from the agent's unit."""
    group = local.jobs_unit()
    is_masked = any(masked(Path(root, one, JOBS_UNIT)) for one in UNITS[:2])
    if group is not None:
        yield Finding("ok", f"{group.path} is there: jobs outlive the agent")
    elif os.path.isdir("/run/systemd/system"):
        text = "xce-jobs.service does not run: jobs would live in a group that nobody holds"
        first = f"systemctl unmask {JOBS_UNIT}; " if is_masked else ""
        yield Finding("warning", text, f"{first}systemctl enable --now {JOBS_UNIT}")
    else:
        yield Finding("ok", "no systemd here: groups of jobs are made beside the agent's own")


def filters(settings: AgentFile, agent_pid: int | None = None) -> Findings:
    """Whether devices can be kept from jobs: by the new way, or by the old one."""
    try:
        group = local.groups(settings.claims, pid=agent_pid or "self")
    except OSError as error:
        if settings.claims.enabled and agent_pid is None:
            yield Finding("ok", f"{error.strerror}: the agent mounts them when it starts")
            return
        text = f"{error.strerror}: no device filter can be put anywhere"
        yield Finding("problem", text, UNIFIED)
        return
    found = {name: isolation.find(group, mechanisms=(name,)) for name in ("bpf", "v1")}
    if not found["bpf"].reason:
        yield Finding("ok", "device filters can be loaded (bpf)")
    elif not found["v1"].reason:
        text = f"{found['bpf'].reason}; the old devices controller at {found['v1'].root} is used instead"
        yield Finding(
            "warning",
            text,
            f"systemctl cat {UNIT} shows whether CAP_BPF is left out; else Linux 4.15 or newer: uname -r",
        )
    else:
        reason = f"{found['bpf'].reason}; {found['v1'].reason}"
        yield Finding(
            "problem" if settings.claims.enabled else "warning",
            f"device isolation unavailable, claims with devices will fail: {reason}",
            f"systemctl start {UNIT} runs it as root; a container must allow it (--system-call-filter=bpf)",
        )


def mounts(settings: AgentFile, agent_pid: int | None, outside: int = 1) -> Findings:
    """Whether PID 1 sees what the agent mounts. Without an agent, this process stands for it."""
    who = "the agent" if agent_pid else "this shell"
    pid = str(agent_pid or "self")
    try:
        ours, theirs = (os.readlink(f"/proc/{one}/ns/mnt") for one in (pid, outside))
        if ours == theirs:
            yield Finding("ok", f"{who} is in the mount namespace of PID 1")
            return
        shared = _sharing(str(outside), settings.claims.directory) & _sharing(pid, settings.claims.directory)
    except OSError as error:
        text = f"cannot look at the mount namespace of {who}: {error.strerror}"
        yield Finding("warning", text, _ELSEWHERE)
        return
    if shared:
        yield Finding("ok", f"{who} has another mount namespace than PID 1, and mounts propagate out of it")
        return
    yield Finding(
        "problem" if agent_pid else "warning",
        f"mounts would not be visible outside: {who} has a mount namespace of its own",
        f"systemctl start {UNIT}, no unshare; systemctl cat {UNIT} shows Private* and Protect* options",
    )


def _sharing(pid: str, directory: str) -> set[str]:
    """Peer groups with which the mount that holds a directory shares what is mounted there."""
    point = mountinfo.covering(directory, mountinfo.tops(mountinfo.read(pid=pid)))
    if point is None:
        return set()
    text = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    for line in text.split("\n"):
        fields = line.partition(" - ")[0].split(" ")
        if fields[0] == str(point.id):
            return {field for field in fields[6:] if field.startswith("shared:")}
    return set()


def csi(settings: AgentFile) -> Findings:
    """Whether volumes of CSI plugins can be had, where there are plugins."""
    claims = settings.claims
    if not claims.csi.plugins and not claims.csi.registration:
        yield Finding("ok", "no CSI plugins")
        return
    if not os.access(claims.csi.helper, os.X_OK):
        text = f"there is no {claims.csi.helper}: volumes of CSI plugins cannot be had"
        yield Finding("problem", text, f"dnf install {PACKAGE} (or apt-get), or set `claims.csi.helper`")
        return
    missing = [(f"plugin {name}", path) for name, path in claims.csi.plugins.items() if not _is_socket(path)]
    if claims.csi.registration and not os.path.isdir(claims.csi.registration):
        missing.append(("registration", claims.csi.registration))
    for what, path in missing:
        yield Finding(
            "warning",
            f"{what}: there is no {path}",
            "start the plugin, or correct `claims.csi`; then: xce-agent csi list",
        )
    if claims.csi.registration and (who := paths.written_by_others(claims.csi.registration)):
        text = f"{claims.csi.registration} {who}: whoever puts a socket there mounts for jobs as root"
        yield Finding(
            "problem", text, f"chown root {claims.csi.registration}; chmod go-w {claims.csi.registration}"
        )
    elif not missing:
        yield Finding("ok", f"{len(claims.csi.plugins)} CSI plugins in agent.yaml; the helper is there")


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def port_ranges(settings: AgentFile) -> Findings:
    """Whether jobs can lose ports of their ranges to outgoing connections."""
    ranges = [(one.name, one.first, one.last) for one in settings.discovery.ports]
    if settings.claims.enabled:
        ranges += [
            (f"profile {name}", profile.ports.low, profile.ports.high)
            for name, profile in profiles(settings.claims).items()
        ]
    clean = True
    for name, first, last in ranges:
        if found := local_ports.overlap(first, last):
            yield Finding("warning", f"{name}: {found.what}", found.advice)
            clean = False
    if clean:
        yield Finding("ok", f"{len(ranges)} ranges, none that the kernel uses itself")
