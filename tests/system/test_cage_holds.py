"""What a hostile reporter can do as its own user: nothing outside its cage, nothing that outlives its run.

The script tries to leave its control group, to read what the agent keeps secret, and to gain rights, and says
what it managed. The same script as root, outside a cage, manages all of it: so each attempt is a real one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.harness import Site
from xce.linux import cgroup, proc

pytestmark = [pytest.mark.system, pytest.mark.root]

ATTEMPTS = r"""#!/usr/bin/python3
import ctypes, json, os, signal, sys, time

OURS, AGENT, SECRETS, GROUP = {ours!r}, {agent}, {secrets!r}, {group!r}
managed = []


def attempt(name, act):
    try:
        if act():
            managed.append(name)
    except OSError:
        pass


def join(group):
    with open(group + "/cgroup.procs", "w") as file:
        file.write("0")
    return True


def below(group):
    os.mkdir(group + "/inner")
    return True


def uncage(group, file, text):
    with open(group + "/" + file, "w") as limits:
        limits.write(text)
    return True


def read(path):
    with open(path, "rb") as file:
        return len(file.read(1)) == 1


def attach():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, AGENT, 0, 0) < 0:  # PTRACE_ATTACH
        return False
    os.waitpid(AGENT, 0)
    libc.ptrace(17, AGENT, 0, 0)
    return True


def signalled():
    os.kill(AGENT, 0)
    return True


def become(uid):
    os.setresuid(uid, uid, uid)
    return True


def status(key):
    with open("/proc/self/status") as file:
        return next(line.split()[1] for line in file if line.startswith(key + ":"))


attempt("join the root group", lambda: join(GROUP["root"]))
attempt("join the agent's group", lambda: join(GROUP["agent"]))
attempt("join the group of all reporters", lambda: join(GROUP["home"]))
attempt("make a group below its own", lambda: below(GROUP["own"]))
attempt("lock the group of all reporters", lambda: os.open(GROUP["home"], os.O_RDONLY) > 0)
attempt("freeze its group", lambda: uncage(GROUP["own"], "cgroup.freeze", "0"))
for secret in SECRETS:
    attempt("read " + os.path.basename(secret), lambda: read(secret))
attempt("list the agent's descriptors", lambda: os.listdir("/proc/%d/fd" % AGENT))
attempt("read the agent's environment", lambda: read("/proc/%d/environ" % AGENT))
attempt("open the agent's memory", lambda: os.open("/proc/%d/mem" % AGENT, os.O_RDONLY))
attempt("trace the agent", attach)
attempt("signal the agent", signalled)
if OURS:
    attempt("become root", lambda: become(0))
    attempt("have capabilities", lambda: any(int(status(key), 16) for key in ("CapEff", "CapPrm", "CapBnd")))
    attempt("gain privileges", lambda: status("NoNewPrivs") != "1")
    inherited = [fd for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd)]
    attempt("have descriptors of the agent", lambda: set(inherited) - {{"0", "1", "2", "3", "9"}})
    # Out of sight: another session, another parent, output closed, signals ignored.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            for fd in (0, 1, 2, 9):
                os.close(fd)
            time.sleep(600)
        os._exit(0)
    if os.fork() == 0:  # a user namespace gives capabilities in it: do they reach the group?
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x10000000 | 0x02000000) == 0:  # CLONE_NEWUSER | CLONE_NEWCGROUP
            attempt("join the root group from a user namespace", lambda: join(GROUP["root"]))
        with open(os.environ["XCE_STATE_DIR"] + "/inner", "w") as file:
            json.dump(managed, file)
        os._exit(0)
    os.wait()
    os.wait()
    with open(os.environ["XCE_STATE_DIR"] + "/inner") as file:
        managed = json.load(file)
print(json.dumps({{"managed": managed}}))
"""


def test_a_reporter_gets_neither_out_of_its_group_nor_at_the_agent_s_secrets(site: Site) -> None:
    if site.cgroup is None:
        pytest.skip("needs a writable cgroup2 file system")
    agent = site.agent("node1")
    agent.settings["reporters"]["interval"] = 1
    site.broker.start()
    agent.start()
    site.until(agent.status)
    home = Path(agent.settings["cgroup"])
    own = home / "reporter-hostile"
    groups = {
        "root": str(mount_point(own)),
        "agent": str(group_of(agent.pid)),
        "home": str(home),
        "own": str(own),
    }
    secrets = [str(agent.folder / "agent.key"), str(site.broker.folder / "broker.key")]
    text = ATTEMPTS.format(ours=True, agent=agent.pid, secrets=secrets, group=groups)
    reach(agent.folder)  # what is to be kept is kept by its own mode, not by that of a folder above
    agent.script("hostile", text, types=[{"name": "managed", "kind": "string-set"}], timeout=8)
    site.until(lambda: agent.reporter("hostile").get("runs"))
    first = site.until(lambda: agent.reporter("hostile")["values"].get("value"))
    assert first == 1, agent.status()["trouble"]
    assert site.until(lambda: site.value("node1", "managed") is not None)
    assert site.value("node1", "managed") == []
    assert "left 1 processes behind, which were ended" in agent.reporter("hostile")["notes"][0]
    (agent.reporters / "hostile").unlink()
    site.until(lambda: not own.exists())
    left = [
        one.pid
        for one in proc.processes()
        if proc.has_environment(one.pid, f"XCE_REPORTER={agent.reporters}/hostile")
    ]
    assert left == []


def test_each_of_these_attempts_succeeds_without_a_cage(site: Site) -> None:
    """Or the test above would show nothing."""
    if site.cgroup is None:
        pytest.skip("needs a writable cgroup2 file system")
    agent = site.agent("node1").start()
    site.until(agent.status)
    scratch = site.cgroup.child("scratch")
    scratch.create()
    secrets = [str(agent.folder / "agent.key")]
    text = ATTEMPTS.format(
        ours=False,
        agent=agent.pid,
        secrets=secrets,
        group=dict.fromkeys(("root", "agent", "home", "own"), scratch.path),
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=30
    )
    assert json.loads(done.stdout)["managed"] == [
        "join the root group",
        "join the agent's group",
        "join the group of all reporters",
        "make a group below its own",
        "lock the group of all reporters",
        "freeze its group",
        "read agent.key",
        "list the agent's descriptors",
        "read the agent's environment",
        "open the agent's memory",
        "trace the agent",
        "signal the agent",
    ]
    assert scratch.remove()


def mount_point(group: Path) -> Path:
    """Of the file system that control groups are on."""
    return next(above for above in group.parents if os.path.ismount(above))


def group_of(pid: int) -> Path:
    """The control group of a process."""
    own = cgroup.own()
    assert own is not None
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    inside = next(line[3:] for line in lines if line.startswith("0::"))
    mine = next(
        line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")
    )
    return Path(own.path.removesuffix(mine.rstrip("/")) + inside)


def reach(folder: Path) -> None:
    """Let everybody go through all folders on the way."""
    for above in (folder, *folder.parents[:-1]):
        above.chmod(above.stat().st_mode | 0o111)
