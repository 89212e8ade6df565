"""The checks of `xce-agent doctor`: each looks at one thing and says what it found. `host_checks.py` has the
host's own, `claim_checks.py` what claims need; here are those of the agent.

They may hang where a file system does; the caller runs them in a child. Nothing here changes anything.
"""

import contextlib
import os
import select
import socket
import stat
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from xce.agent import claim_checks, config, host_checks
from xce.agent.cli import client
from xce.agent.host_checks import Finding
from xce.agent.memory import Memory
from xce.linux import paths, proc, users
from xce.model.configuration import AgentFile
from xce.model.refusal import ConfigRefused
from xce.model.role import Role
from xce.model.supply import name_problem
from xce.reporters import cage, directory
from xce.wire import keys
from xce.wire.dealer import HINTS, Dealer, LinkState
from xce.wire.keys import KeyFileError

BROKER_S = 5.0
ENOUGH_BYTES = 16 << 20
RELOAD, RESTART = "systemctl reload xce-agent", "systemctl restart xce-agent"


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
        # What it names would be looked for in the wrong places.
        words = f"not looked at without {config_path or config.AGENT}"
        yield "others", lambda: iter([Finding("warning", words, "correct it, then: xce-agent doctor")])
        return
    path = config_path or config.AGENT
    read = f"{path} is good" if os.path.exists(path) else f"there is no {path}: defaults"
    yield "configuration", lambda: iter([Finding("ok", read)])
    pid = _running(settings)
    name = settings.name or socket.gethostname()
    named: list[tuple[str, Check]] = [
        ("agent", lambda: _agent(settings)),
        ("unit", lambda: host_checks.unit(settings)),
        ("privileges", lambda: host_checks.privileges(settings, pid)),
        ("control groups", lambda: host_checks.control_groups(settings, pid)),
        ("jobs", lambda: claim_checks.jobs(settings)),
        ("device filters", lambda: claim_checks.filters(settings, pid)),
        ("mounts", lambda: claim_checks.mounts(settings, pid)),
        ("CSI", lambda: claim_checks.csi(settings)),
        ("reporters' user", lambda: _user(settings)),
        ("cage", lambda: _cage(settings)),
        ("reporters", lambda: _reporters(settings)),
        ("time-outs", lambda: _timeouts(settings)),
        ("ports", lambda: claim_checks.port_ranges(settings)),
        ("state", lambda: _state(settings)),
        ("claims", lambda: claim_checks.claims(settings)),
        ("leftovers", lambda: host_checks.leftovers(settings, name, running=pid is not None)),
        ("identity", lambda: _identity(settings)),
        ("clock", lambda: host_checks.clock(settings)),
        ("keys", lambda: _keys(settings)),
        ("broker", lambda: _broker(settings)),
        ("library", lambda: host_checks.library(settings)),
    ]
    yield from named


def _running(settings: AgentFile) -> int | None:
    """The pid of the agent of this host, if one answers."""
    try:
        status = client.ask(f"{settings.run_directory}/agent.sock", op="status")
    except (client.NotRunning, client.AgentError):
        return None
    pid: int = status["agent"]["pid"]
    return pid


def _agent(settings: AgentFile) -> Iterator[Finding]:
    try:
        status = client.ask(f"{settings.run_directory}/agent.sock", op="status")
    except (client.NotRunning, client.AgentError) as error:
        yield Finding("warning", str(error).splitlines()[0], "systemctl start xce-agent")
        return
    yield Finding("ok", f"runs, pid {status['agent']['pid']}")
    for line in status["trouble"]:
        yield Finding("warning", line, "xce-agent status")


def _user(settings: AgentFile) -> Iterator[Finding]:
    name = settings.reporters.user
    user = users.find(name)
    if user is None:
        yield Finding(
            "problem" if os.geteuid() == 0 else "warning",
            f"there is no user '{name}' in /etc/passwd",
            f"useradd --system --shell /usr/sbin/nologin {name}; or `reporters.user` in agent.yaml",
        )
    elif user.uid == 0:
        yield Finding(
            "problem",
            f"'{name}' is root: every script would run as root",
            f"an unprivileged `reporters.user` in agent.yaml, then: {RELOAD}",
        )
    else:
        yield Finding("ok", f"'{name}' is uid {user.uid}")


def _cage(_settings: AgentFile) -> Iterator[Finding]:
    if os.access(cage.PROGRAM, os.X_OK):
        yield Finding("ok", "xce-cage is there")
    else:
        what = "is not executable" if os.path.exists(cage.PROGRAM) else "is missing"
        yield Finding("problem", f"{cage.PROGRAM} {what}: no reporter can be started", cage.REMEDY)


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


def _timeouts(settings: AgentFile) -> Iterator[Finding]:
    """Spans of time that work against each other."""
    found, scripts = settings.discovery, settings.reporters
    bad = False
    if scripts.timeout > scripts.interval:
        text = f"reporters may run for {scripts.timeout:g} s and are due every {scripts.interval:g} s"
        advice = f"`reporters.timeout` below `reporters.interval` in agent.yaml, then: {RELOAD}"
        yield Finding("warning", f"{text}: a slow one is late each time", advice)
        bad = True
    if found.enabled and found.unknown_after < found.interval + found.timeout:
        text = (
            f"what was found is unknown after {found.unknown_after:g} s, before the probe counts as hanging"
        )
        advice = f"`discovery.unknown_after` above the sum of `interval` and `timeout`, then: {RELOAD}"
        yield Finding("warning", text, advice)
        bad = True
    if not bad:
        yield Finding("ok", "they fit together")


def _closed(path: str, owner: int, we: int) -> Finding:
    """A directory that we cannot write in. Another user's may be good for the agent, and must stay his."""
    if we == 0:
        return Finding("problem", f"cannot write in {path}", f"is it mounted read-only? findmnt -T {path}")
    if owner == we:
        return Finding("problem", f"cannot write in {path}", f"chmod u+rwx {path}")
    return Finding("warning", f"{path} belongs to uid {owner}, and we are uid {we}", "sudo xce-agent doctor")


def _state(settings: AgentFile) -> Iterator[Finding]:
    for path in (settings.state_directory, settings.run_directory):
        if not os.path.isdir(path):
            yield Finding("warning", f"{path} is not there yet", "systemctl start xce-agent makes it")
            continue
        if not os.access(path, os.W_OK):
            yield _closed(path, os.stat(path).st_uid, os.geteuid())
            continue
        free = os.statvfs(path)
        if free.f_bavail * free.f_frsize < ENOUGH_BYTES:
            advice = f"make room: df -h {path}; then systemctl start xce-agent if it has ended"
            yield Finding("warning", f"{path} is nearly full", advice)
        else:
            yield Finding("ok", f"{path} can be written")
    yield from _way(f"{settings.state_directory}/reporters") if os.geteuid() == 0 else ()


def _way(path: str) -> Iterator[Finding]:
    """What keeps reporters from their directories, which they know by path (XCE_STATE_DIR)."""
    for folder in (path, *map(str, Path(path).parents)):
        with contextlib.suppress(FileNotFoundError):
            if not os.stat(folder).st_mode & stat.S_IXOTH:
                what = f"reporters cannot pass through {folder} to their directories"
                yield Finding("warning", what, f"chmod o+x {folder}")


def _identity(settings: AgentFile) -> Iterator[Finding]:
    name = settings.name or socket.gethostname()
    if problem := name_problem(name):
        yield Finding(
            "problem",
            f"host name {name!r} cannot be used: {problem}",
            f"`name:` in agent.yaml, then: {RESTART}",
        )
    elif name.partition(".")[0] == "localhost":
        yield Finding(
            "problem",
            f"this host is called {name!r}",
            f"hostnamectl hostname NAME, or `name:` in agent.yaml; then: {RESTART}",
        )
    else:
        yield Finding("ok", f"called {name}")
    if not proc.machine_id():
        yield Finding(
            "warning", "no /etc/machine-id: clones cannot be told apart", "systemd-machine-id-setup"
        )


def _keys(settings: AgentFile) -> Iterator[Finding]:
    if not settings.broker or settings.broker.startswith("ipc://"):
        yield Finding("ok", "none needed")
        return
    for path, secret in ((settings.key, True), (settings.broker_key, False)):
        try:
            key = keys.load(Path(path), secret=secret)
        except KeyFileError as error:
            make = f"scp BROKER:/etc/xce/keys/broker.pub {path}"
            if not os.path.exists(settings.key):
                make = "xce-agent join BROKER --token FILE, with what xce-broker token new has made there"
            elif secret:
                make = f"chown root {path}; chmod 600 {path}; if it is broken: move it away and join anew"
            if isinstance(error.__cause__, PermissionError):
                make = "sudo xce-agent doctor"  # a new key would be one that the broker does not know
            yield Finding("problem", str(error), make)
            continue
        if secret and key.role not in {"", Role.AGENT}:
            yield Finding(
                "problem",
                f"{path} is a key for the role {key.role}",
                f"mv {path} {path}.other; xce-agent join BROKER --token FILE",
            )
        elif secret and not _speaks_for(key, settings.name or socket.gethostname()):
            name = settings.name or socket.gethostname()
            good = ", ".join(key.hosts) or key.name
            text = f"{path} is for {good}, and this host is called {name}: the broker will refuse it"
            advice = (
                f"`name: {key.name}` in agent.yaml and systemctl restart xce-agent, or join anew by this name"
            )
            yield Finding("problem", text, advice)
        else:
            yield Finding("ok", f"{path}: {key.public.decode()}")


def _speaks_for(key: keys.KeyPair, name: str) -> bool:
    """As the broker decides it."""
    return any(fnmatchcase(name, pattern) for pattern in key.hosts) if key.hosts else key.name == name


def _broker(settings: AgentFile) -> Iterator[Finding]:
    if not settings.broker:
        yield Finding(
            "warning",
            "none is configured: values stay on this host",
            "xce-agent join BROKER --token FILE, or `broker:` in agent.yaml",
        )
        return
    key = broker_key = None
    try:
        if not settings.broker.startswith("ipc://"):
            key = keys.load(Path(settings.key), secret=True)
            broker_key = keys.load(Path(settings.broker_key), secret=False).public
        dealer = Dealer(settings.broker, key=key, broker_key=broker_key)
    except (KeyFileError, ValueError) as error:
        yield Finding("problem", str(error), "the check `keys` says what to do")
        return
    text, state, deadline = f"no answer from {settings.broker}", None, time.monotonic() + BROKER_S
    while time.monotonic() < deadline:
        for event in dealer.events():
            text, state = event.text, event.state
            if state is LinkState.READY:
                dealer.close()
                yield Finding("ok", f"{settings.broker} answers and takes our key")
                return
        select.select([dealer.monitor_fileno()], [], [], 0.05)
    dealer.close()
    advice = HINTS.get(state, "") if state else ""
    yield Finding("problem", text, advice or "on its host: systemctl status xce-broker; xce-broker doctor")
