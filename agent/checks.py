"""The checks of `xce-agent doctor`: each looks at one thing and says what it found.

They may hang where a file system does; the caller runs them in a child. Nothing here changes anything.
"""

import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec

from xce.agent import config
from xce.agent.cli import client
from xce.agent.memory import Memory
from xce.linux import cgroup, mountinfo, paths, proc, users
from xce.linux.cgroup import Cgroup
from xce.model.configuration import AgentFile
from xce.model.refusal import ConfigRefused
from xce.model.role import Role
from xce.model.supply import name_problem
from xce.reporters import cage, directory, supervisor
from xce.wire import keys
from xce.wire.dealer import Dealer, LinkState
from xce.wire.keys import KeyFileError

BROKER_S = 5.0
ENOUGH_BYTES = 16 << 20
RELEASED = 1_735_689_600
"""2025-01-01: a clock before this is wrong."""


class Finding(msgspec.Struct, frozen=True):
    """`level`: ok, warning (worth knowing) or problem (something will not work)."""

    level: str
    text: str
    advice: str = ""


Check: TypeAlias = Callable[[], Iterator[Finding]]


def all_checks(config_path: str) -> Iterator[tuple[str, Check]]:
    """Every check with its name, in the order in which they help."""
    try:
        settings = config.read(
            config_path or config.AGENT, AgentFile, memory=Memory(""), must_exist=bool(config_path)
        )
    except ConfigRefused as refused:
        errors = [Finding("problem", str(error), "correct the file") for error in refused.errors]
        yield "configuration", lambda: iter(errors)
        settings = AgentFile()
    else:
        path = config_path or config.AGENT
        read = f"{path} is good" if os.path.exists(path) else f"there is no {path}: defaults"
        yield "configuration", lambda: iter([Finding("ok", read)])
    named: list[tuple[str, Callable[[AgentFile], Iterator[Finding]]]] = [
        ("agent", _agent),
        ("privileges", _privileges),
        ("control groups", _control_groups),
        ("reporters' user", _user),
        ("programs", _programs),
        ("reporters", _reporters),
        ("state", _state),
        ("identity", _identity),
        ("clock", _clock),
        ("keys", _keys),
        ("broker", _broker),
        ("leftovers", _leftovers),
    ]
    for name, check in named:
        yield name, lambda check=check: check(settings)  # type: ignore[misc]  # each its own


def _agent(settings: AgentFile) -> Iterator[Finding]:
    try:
        status = client.ask(f"{settings.run_directory}/agent.sock", op="status")
    except (client.NotRunning, client.AgentError) as error:
        yield Finding("warning", str(error).splitlines()[0], "systemctl start xce-agent")
        return
    yield Finding("ok", f"runs, pid {status['agent']['pid']}")
    for line in status["trouble"]:
        yield Finding("warning", line, "xce-agent status")


def _privileges(_settings: AgentFile) -> Iterator[Finding]:
    if os.geteuid() == 0:
        yield Finding("ok", "runs as root: reporters get a user of their own")
    else:
        yield Finding(
            "warning",
            f"runs as uid {os.geteuid()}: all reporters run as this user, and others' files stay unread",
            "run the agent as root; it gives reporters an unprivileged user",
        )


def _control_groups(settings: AgentFile) -> Iterator[Finding]:
    if not any(mount.kind == "cgroup2" for mount in mountinfo.read()):
        yield Finding(
            "problem",
            "no cgroup2 file system is mounted: children that reporters leave behind may be missed",
            "boot with systemd.unified_cgroup_hierarchy=1, or mount -t cgroup2 none /sys/fs/cgroup",
        )
        return
    home = Cgroup(os.path.dirname(settings.cgroup.rstrip("/"))) if settings.cgroup else cgroup.own()
    if home is None or not home.writable():
        where = home.path if home else "our own group"
        yield Finding(
            "problem",
            f"cannot make groups in {where}",
            "Delegate=yes in the unit, or `cgroup:` in agent.yaml",
        )
        return
    yield Finding("ok", f"groups can be made in {home.path}")
    if os.path.exists(f"{home.path}/cgroup.type") and not os.path.exists(f"{home.path}/cgroup.kill"):
        yield Finding(
            "warning", "no cgroup.kill: ending a fork bomb may take several rounds", "Linux 5.14 or newer"
        )
    if missing := {"memory", "pids"} - home.controllers():
        what = " and ".join(sorted(missing))
        yield Finding(
            "warning",
            f"the controllers {what} are not there: limits are set by rlimits instead",
            "boot with the unified hierarchy",
        )


def _user(settings: AgentFile) -> Iterator[Finding]:
    name = settings.reporters.user
    user = users.find(name)
    if user is None:
        yield Finding(
            "problem" if os.geteuid() == 0 else "warning",
            f"there is no user '{name}' in /etc/passwd",
            f"useradd --system --shell /usr/sbin/nologin {name}, or `reporters.user` in agent.yaml",
        )
    elif user.uid == 0:
        yield Finding(
            "problem", f"'{name}' is root: every script would run as root", "name an unprivileged user"
        )
    else:
        yield Finding("ok", f"'{name}' is uid {user.uid}")


def _programs(_settings: AgentFile) -> Iterator[Finding]:
    for path, package in ((cage.SHELL, "dash"), (cage.SETPRIV, "util-linux"), (cage.PRLIMIT, "util-linux")):
        if not os.access(path, os.X_OK):
            yield Finding("problem", f"{path} is missing: no reporter can be started", f"install {package}")
            return
    yield Finding("ok", "sh, setpriv and prlimit are there")


def _reporters(settings: AgentFile) -> Iterator[Finding]:
    path, trusted = settings.reporters.directory, {0, os.geteuid()}
    try:
        os.close(paths.open_checked(path, trusted, os.O_RDONLY | os.O_DIRECTORY))
        found = directory.scan(path, trusted)
    except OSError as error:
        yield Finding("problem", f"cannot use {path}: {error.strerror or error}", f"install -d -m 755 {path}")
        return
    bad = [one for one in found.values() if one.problem]
    for one in bad:
        yield Finding("problem", f"{one.name}: {one.problem}", f"xce-agent reporter lint {one.path}")
    if not bad:
        yield Finding("ok", f"{len(found)} in {path}")


def _state(settings: AgentFile) -> Iterator[Finding]:
    for path in (settings.state_directory, settings.run_directory):
        if not os.path.isdir(path):
            yield Finding("warning", f"{path} is not there yet", "the agent makes it at its start")
            continue
        if not os.access(path, os.W_OK):
            yield Finding("problem", f"cannot write in {path}", f"chown it to uid {os.geteuid()}")
            continue
        free = os.statvfs(path)
        if free.f_bavail * free.f_frsize < ENOUGH_BYTES:
            yield Finding("warning", f"{path} is nearly full", "make room")
        else:
            yield Finding("ok", f"{path} can be written")


def _identity(settings: AgentFile) -> Iterator[Finding]:
    name = settings.name or socket.gethostname()
    if problem := name_problem(name):
        yield Finding("problem", f"host name {name!r} cannot be used: {problem}", "set `name:` in agent.yaml")
    elif name.partition(".")[0] == "localhost":
        yield Finding(
            "problem", f"this host is called {name!r}", "give it a name, or set `name:` in agent.yaml"
        )
    else:
        yield Finding("ok", f"called {name}")
    if not proc.machine_id():
        yield Finding(
            "warning", "no /etc/machine-id: clones cannot be told apart", "systemd-machine-id-setup"
        )


def _clock(_settings: AgentFile) -> Iterator[Finding]:
    before = time.monotonic()
    time.sleep(0.01)
    if time.monotonic() <= before:
        yield Finding("problem", "the monotonic clock stands still", "this kernel or hypervisor is broken")
    elif time.time() < RELEASED:
        yield Finding(
            "warning", f"the date is {time.strftime('%Y-%m-%d')}: only for showing, but wrong", "set up NTP"
        )
    else:
        yield Finding("ok", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def _keys(settings: AgentFile) -> Iterator[Finding]:
    if not settings.broker or settings.broker.startswith("ipc://"):
        yield Finding("ok", "none needed")
        return
    for path, secret in ((settings.key, True), (settings.broker_key, False)):
        try:
            key = keys.load(Path(path), secret=secret)
        except KeyFileError as error:
            make = "xce-broker key new" if secret else "copy broker.pub from the broker"
            if isinstance(error.__cause__, PermissionError):
                make = "run this as the agent's user"  # a new key would be one that the broker does not know
            yield Finding("problem", str(error), make)
            continue
        if secret and key.role not in {"", Role.AGENT}:
            yield Finding("problem", f"{path} is a key for the role {key.role}", "use an agent's key")
        else:
            yield Finding("ok", f"{path}: {key.public.decode()}")


def _broker(settings: AgentFile) -> Iterator[Finding]:
    if not settings.broker:
        yield Finding(
            "warning", "none is configured: values stay on this host", "set `broker:` in agent.yaml"
        )
        return
    key = broker_key = None
    try:
        if not settings.broker.startswith("ipc://"):
            key = keys.load(Path(settings.key), secret=True)
            broker_key = keys.load(Path(settings.broker_key), secret=False).public
        dealer = Dealer(settings.broker, key=key, broker_key=broker_key)
    except (KeyFileError, ValueError) as error:
        yield Finding("problem", str(error), "see the checks before")
        return
    text, deadline = f"no answer from {settings.broker}", time.monotonic() + BROKER_S
    while time.monotonic() < deadline:
        for event in dealer.events():
            text = event.text
            if event.state is LinkState.READY:
                dealer.close()
                yield Finding("ok", f"{settings.broker} answers and takes our key")
                return
        select.select([dealer.monitor_fileno()], [], [], 0.05)
    dealer.close()
    yield Finding(
        "problem", text, "is the broker running, the address right, the port open, the key accepted there?"
    )


def _leftovers(settings: AgentFile) -> Iterator[Finding]:
    """Groups of an agent that is not there any more; the next start ends what is in them."""
    try:
        client.ask(f"{settings.run_directory}/agent.sock", op="status")
    except (client.NotRunning, client.AgentError):
        own = cgroup.own()
        label = supervisor.label(settings.name or socket.gethostname(), settings.state_directory)
        home = Cgroup(settings.cgroup) if settings.cgroup else own.child(f"xce-{label}") if own else None
        pids = home.pids() if home is not None else []
        if pids:
            some = ", ".join(str(pid) for pid in pids[:8])
            yield Finding(
                "warning", f"processes of an earlier agent are left: {some}", "starting the agent ends them"
            )
            return
    yield Finding("ok", "none")
