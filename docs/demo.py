#!/usr/bin/env python3
"""`./dev demo`: the product on this host, for ten seconds, by its own commands.

Makes keys, writes a configuration, starts a broker and an agent with example reporters, looks at
them with the commands that an admin has, follows the changes as a scheduler would, runs a command in a claim
that the kernel enforces (as root), and takes everything away.
All of it happens in a temporary folder, on loopback, at a free port, in a control group of its own. Ends with
exit status 1 and a message if any step does not give what it should, or if anything is left afterwards.
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "reporters" / "examples"
NODE = "demo-node"
WITHIN_S = 15.0
BOLD, DIM, PLAIN = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if sys.stdout.isatty() else ("", "", "")

BROKER = """\
listen: ['{endpoint}']
local: {folder}/run/broker.sock
key: {folder}/keys/broker.key
accepted_keys: {folder}/accepted
state_directory: {folder}/broker
resources: {folder}/resources.yaml
hosts: {folder}/hosts.yaml
heartbeat: 1
metrics: ''
"""
AGENT = """\
broker: {endpoint}
broker_key: {folder}/keys/broker.pub
key: {folder}/keys/{node}.key
name: {node}
state_directory: {folder}/agent
run_directory: {folder}/run
cgroup: '{cgroup}'
reporters: {{directory: {folder}/reporters.d{user}}}
"""
CLAIMS = """\
claims:
  enabled: true
  directory: {folder}/claims
  namespace: self
  cgroup: '{cgroup}/jobs'
  cdi_directory: {folder}/cdi
  profiles:
    default:
      devices: ['c *:* m', 'b *:* m', 'c 1:3 rwm', 'c 1:8 rwm', 'c 1:9 rwm', 'c 5:0 rwm', 'c 136:* rwm']
      device_paths: [/dev/full, /dev/zero]
      volumes: {{datasets: {{path: {folder}/datasets}}}}
      scratch: {{memory: {{}}}}
      grace_s: 1
"""
# /dev/full and /dev/zero stand in for /dev/card0 and /dev/card1: every host has them, and nobody misses them.
# Neither is in the profile's `devices`, so that a job has them by a claim alone.
CARDS = """\
#!/bin/sh
# Two cards of a kind that nobody has heard of: a reporter names the device files, and that is all it takes.
echo '{"xce": 1, "instances": [
    {"id": "card-A", "kind": "card", "attributes": {"device_files": ["/dev/full"]}},
    {"id": "card-B", "kind": "card", "attributes": {"device_files": ["/dev/zero"]}}]}' | tr '\\n' ' '
echo
"""
JOB = """\
exec 2>&1
echo "in the claim: $(cat /proc/self/cgroup | tail -n 1), ports $XCE_PORTS_HTTP"
for card in full zero; do
    if (: </dev/$card) 2>/dev/null; then echo "/dev/$card: open"; else echo "/dev/$card: not permitted"; fi
done
echo "data: $(ls -m "$XCE_DIR_DATA")"
touch "$XCE_DIR_DATA/mine"
head -c 20M /dev/urandom >"$XCE_DIR_SCRATCH/big"
df -h --output=size,used "$XCE_DIR_SCRATCH"
"""
RESOURCES = """\
types:
  - {name: rack, kind: string, description: where the host stands, reporter: static}
"""
HOSTS = """\
hosts:
  - {{name: {node}, groups: [], values: {{rack: B4}}}}
"""
SETTINGS = {"scratch_space": "SCRATCH: /", "cached_datasets": "CACHE: {folder}/datasets", "node_health": ""}


class Failed(Exception):
    """A step did not give what it should."""


class Demo:
    """The folder, what runs in it, and how it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cgroup = control_group()
        self.claims = os.geteuid() == 0 and self.cgroup is not None
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.environment = os.environ | {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XCE_AGENT_SOCKET": f"{folder}/run/agent.sock",
            "XCE_BROKER": f"ipc://{folder}/run/broker.sock",
        }

    def run(self, *argv: str, show: bool = True, status: int = 0) -> str:
        """Run a command of the product and show it with its output; it must end with `status`."""
        done = self._done(*argv)
        if show:
            print(f"\n{BOLD}$ {' '.join(argv)}{PLAIN}\n{self.shown(done.stdout)}", end="", flush=True)
        if done.returncode != status:
            raise Failed(f"{' '.join(argv)}: exit status {done.returncode}\n{done.stderr}")
        return done.stdout

    def _done(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    def shown(self, text: str) -> str:
        """Text as it is printed, long names shortened."""
        return text.replace(f"{sys.executable} {ROOT}/", "").replace(str(self.folder), "DEMO")

    def start(self, name: str, *argv: str) -> None:
        """Start a program; its output goes to NAME.log."""
        print(f"\n{BOLD}$ {self.shown(' '.join(argv))} &{PLAIN}", flush=True)
        with (self.folder / f"{name}.log").open("w") as log:
            self.running[name] = subprocess.Popen(
                argv,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for something; a program that ends meanwhile, or a time that is over, fails the demo."""
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            ended = [name for name, process in self.running.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                told = f"{ended[0]} has ended" if ended else f"not within {WITHIN_S:.0f} s"
                raise Failed(f"{what}: {told}\n{self.logs()}\n{self.status()}")
            time.sleep(0.1)

    def mounts(self) -> list[str]:
        """What is mounted below the folder."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        points = (line.split()[4] for line in lines)
        return [point for point in points if point.startswith(f"{self.folder}/")]

    def logs(self) -> str:
        """The end of each program's log."""
        parts = []
        for log in sorted(self.folder.glob("*.log")):
            parts += [f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-15:]]
        return "\n".join(parts)

    def status(self) -> str:
        """What the agent says is wrong; the logs hold no reporter's fault."""
        done = self._done("xce-agent", "status")
        return f"--- xce-agent status\n{done.stdout or done.stderr}"

    def succeeds(self, *argv: str) -> bool:
        """Whether a command succeeds now; nothing is shown."""
        try:
            self.run(*argv, show=False)
        except Failed:
            return False
        return True

    def stop(self) -> None:
        """End what runs, the last one first, as an init system would; may be called twice."""
        for process in reversed(self.running.values()):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# ------------------------------------------------------------------------------------------------- steps


def install(demo: Demo) -> None:
    """Folders, commands and reporters, as a package would put them into place."""
    for name in ("accepted", "agent", "bin", "broker", "cdi", "datasets", "keys", "reporters.d", "run"):
        (demo.folder / name).mkdir()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, target in scripts.items():
        module, function = target.split(":")
        command = demo.folder / "bin" / name
        command.write_text(
            f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        )
        command.chmod(0o755)
    for name, setting in SETTINGS.items():
        shutil.copy(EXAMPLES / name, demo.folder / "reporters.d" / name)
        settings = re.sub(r"(?m)^(interval|timeout): .*", r"\1: 2", (EXAMPLES / f"{name}.yaml").read_text())
        key, _, value = setting.format(folder=demo.folder).partition(": ")
        lines = [
            f"  {key}: {value}" if key and line.startswith(f"  {key}:") else line
            for line in settings.splitlines()
        ]
        (demo.folder / "reporters.d" / f"{name}.yaml").write_text("\n".join(lines) + "\n")
    add_dataset(demo, "imagenet@3")


def add_dataset(demo: Demo, name: str) -> None:
    """Put a complete dataset into the cache that the reporter looks at."""
    (demo.folder / "datasets" / name).mkdir()
    (demo.folder / "datasets" / name / ".complete").touch()


def configure(demo: Demo) -> None:
    """Keys by the product's command, then four small files."""
    told("All that is made now lies in a folder in /tmp, called DEMO here, and goes with it at the end.")
    told("Every program gets a key pair, made by a command; the broker is told which public keys to accept.")
    new = ("xce-broker", "key", "new")
    demo.run(*new, "broker", "--directory", "keys")
    demo.run(*new, NODE, "--role", "agent", "--hosts", NODE, "--directory", "keys")
    demo.run(*new, "scheduler", "--role", "controller", "--directory", "keys", show=False)
    for name in (NODE, "scheduler"):
        demo.run(
            "xce-broker", "key", "add", "--offline", f"keys/{name}.pub", "--directory", "accepted", show=False
        )
    values = {
        "folder": demo.folder,
        "endpoint": demo.endpoint,
        "node": NODE,
        "cgroup": demo.cgroup or "",
        "user": ", user: nobody" if os.geteuid() == 0 else "",
    }
    for name, text in {"broker": BROKER, "agent": AGENT, "hosts": HOSTS}.items():
        (demo.folder / f"{name}.yaml").write_text(text.format_map(values))
    (demo.folder / "resources.yaml").write_text(RESOURCES)
    if demo.claims and demo.cgroup:
        (demo.cgroup / "jobs").mkdir()
        with (demo.folder / "agent.yaml").open("a") as settings:
            settings.write(CLAIMS.format_map(values))
        cards = demo.folder / "reporters.d" / "cards"
        cards.write_text(CARDS)
        cards.chmod(0o755)
        (demo.folder / "job.sh").write_text(JOB)


def begin(demo: Demo) -> None:
    """Broker, then agent; ready when the agent has nothing to complain about."""
    told("The broker and the agent of this host, as an init system would start them.")
    demo.start("broker", "xce-broker", "run", "--config", f"{demo.folder}/broker.yaml")
    demo.until("the broker answers", lambda: demo.succeeds("xce-broker", "status"))
    demo.start("agent", "xce-agent", "run", "--config", f"{demo.folder}/agent.yaml")
    demo.until("the agent is well", lambda: demo.succeeds("xce-agent", "status"))
    names = ("scratch_free_mb", "datasets", "healthy", "r1m")
    demo.until("the reporters have reported", lambda: all(name in supply(demo) for name in names))


def supply(demo: Demo) -> str:
    """The names that have a value in the broker."""
    return demo.run("xce-broker", "supply", "--presence", "value", show=False)


def look(demo: Demo) -> None:
    """The commands of an admin."""
    told("On the node: is it well, what does each reporter do?")
    demo.run("xce-agent", "status")
    told("At the broker: all that is known, with age and source; the 11 load indices are built in.")
    demo.run("xce-broker", "supply")
    demo.run("xce-broker", "hosts")


def follow(demo: Demo) -> None:
    """A controller, while the world changes."""
    told(
        "A scheduler (docs/examples/follow.py, 90 lines) takes a snapshot over CURVE and follows the changes."
    )
    demo.start(
        "follow",
        sys.executable,
        str(ROOT / "docs" / "examples" / "follow.py"),
        demo.endpoint,
        "keys/scheduler.key",
        "keys/broker.pub",
    )
    changes = Changes(demo, demo.folder / "follow.log")
    changes.show("rack")
    told("A dataset arrives in the cache of the node:")
    add_dataset(demo, "weights@7")
    changes.show("weights@7")
    told("The settings of a reporter are edited: with less than 900 TB free, the node is not healthy.")
    settings = demo.folder / "reporters.d" / "node_health.yaml"
    edit(settings, 'LOW_MB: "500"', 'LOW_MB: "900000000"')
    changes.show("held by reporter:node_health")
    told("And back:")
    edit(settings, 'LOW_MB: "900000000"', 'LOW_MB: "500"')
    changes.show("held by nobody")
    told("(Changes of load indices came too, and are left out here.)")


def claim(demo: Demo) -> None:
    """A claim that the kernel enforces: what a job may open, see and fill; then all of it is taken back."""
    if not demo.claims:
        told("No claim is shown: it needs root, cgroup v2 and bpf(2); xce-agent doctor says what lacks.")
        return
    told(
        "A claim: one of two cards, data read-only, scratch of 8 MB, two ports. This host may have no cards: "
        "a reporter (DEMO/reporters.d/cards) calls /dev/full one, and /dev/zero the other."
    )
    demo.until(
        "the cards are known", lambda: "card" in demo.run("xce-broker", "hosts", show=False).split(NODE)[-1]
    )
    ask = ("--instances", "card=1", "--mount", "data=datasets:ro", "--scratch", "8M", "--ports", "http=2")
    demo.run("xce-broker", "claim", "create", "job-7", *ask)
    told("A scheduler chooses the host and the card; the node makes it true, and reads the kernel back:")
    demo.run("xce-broker", "claim", "bind", "job-7", f"{NODE}=card-A", "--consumer", "7", "--wait", "10")
    demo.run("xce-agent", "claim", "plan", "job-7")
    told("A command inside: its own card opens, the other does not, whatever it does to its environment.")
    demo.run("xce-agent", "run", "--claim", "job-7", "--", "sh", "job.sh")
    told("Released: the processes are ended, and everything is taken back before it says so.")
    demo.run("xce-broker", "claim", "release", "job-7")
    demo.until(
        "the claim has gone", lambda: "job-7" not in demo.run("xce-agent", "claim", "list", show=False)
    )
    if left := demo.mounts() + [str(path) for path in (demo.folder / "claims").glob("*")]:
        raise Failed(f"the claim has left {', '.join(left)}")


def break_something(demo: Demo) -> None:
    """A fault, as an admin sees it."""
    told(
        "The scratch file system goes away. Its values live for interval + timeout, 4 s here, and no longer:"
    )
    edit(demo.folder / "reporters.d" / "scratch_space.yaml", "SCRATCH: /", "SCRATCH: /scratch-is-gone")
    demo.until(
        "the value is unknown",
        lambda: "scratch_free_mb" in demo.run("xce-broker", "supply", "--presence", "unknown", show=False),
    )
    demo.run("xce-broker", "supply", "scratch*", "datasets")
    told("On the node, `status` says what is wrong, and with exit status 1 that something is:")
    demo.run("xce-agent", "status", status=1)
    demo.run("xce-agent", "explain", "scratch_free_mb", status=1)


class Changes:
    """What the controller prints, as it comes."""

    def __init__(self, demo: Demo, log: Path) -> None:
        self.demo, self.log, self.shown = demo, log, 0

    def show(self, awaited: str) -> None:
        """Print what is new, up to the line with `awaited` at least."""

        def news() -> str:
            text = self.log.read_text()
            return text[self.shown : text.rfind("\n") + 1]

        self.demo.until(f"the controller sees {awaited!r}", lambda: awaited in news())
        new = news()
        self.shown += len(new)
        print("\n".join(line for line in new.splitlines() if not is_load_index(line)), flush=True)


def is_load_index(line: str) -> bool:
    """Whether a line tells of a load index or of free space, which change all the time."""
    words = line.split()
    indices = "r15s r1m r15m ut pg io ls it swp mem tmp scratch_free_mb"
    return len(words) > 3 and words[3] in indices.split()


def edit(path: Path, old: str, new: str) -> None:
    """Change a file as an editor does: a new file is renamed over it."""
    text = path.read_text()
    if old not in text:
        raise Failed(f"{path.name} lacks {old!r}")
    new_path = path.with_name(f".{path.name}.new")
    new_path.write_text(text.replace(old, new))
    new_path.rename(path)


def end(demo: Demo) -> None:
    """Stop, and look whether anything is left."""
    told("The end: TERM to each program, then a look at what is left.")
    demo.stop()
    statuses = {name: process.returncode for name, process in demo.running.items()}
    wrong = {name: status for name, status in statuses.items() if name != "follow" and status != 0}
    if wrong:
        raise Failed(f"exit statuses {wrong}\n{demo.logs()}")


# ----------------------------------------------------------------------------------------------- helpers


def told(text: str) -> None:
    """A sentence for the reader."""
    print(f"\n{DIM}#{PLAIN} {text}", flush=True)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def control_group() -> Path | None:
    """A new control group for the reporters, None where none can be made."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            group = Path(line.split()[4]) / f"xce-demo-{os.getpid()}-{secrets.token_hex(4)}"
            try:
                group.mkdir()
            except OSError:
                return None
            return group
    return None


def remains(demo: Demo) -> list[str]:
    """What is left of the demo once its folder has been removed."""
    left = [f"process {process.pid}" for process in demo.running.values() if process.poll() is None]
    left += [f"mount {point}" for point in demo.mounts()]
    if demo.cgroup:
        if demo.claims and (demo.cgroup / "jobs").is_dir() and not list((demo.cgroup / "jobs").glob("*/")):
            (demo.cgroup / "jobs").rmdir()
        left += [f"control group {group}" for group in demo.cgroup.glob("*/")]
        try:
            demo.cgroup.rmdir()
        except FileNotFoundError:
            pass  # the agent has done it
        except OSError as error:
            left.append(f"control group {demo.cgroup}: {error.strerror}")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(demo.folder).encode() in (process / "environ").read_bytes():
                left.append(f"process {process.name}")
        except OSError:
            continue
    return left


def main() -> int:
    """All steps in order; whatever happens, nothing is left."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if os.geteuid() != 0:
        told("Not root: reporters run as you, without a control group of their own.")
    with tempfile.TemporaryDirectory(prefix=f"xce-demo-{os.getpid()}-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        demo = Demo(folder)
        try:
            for step in (install, configure, begin, look, follow, claim, break_something, end):
                step(demo)
        except Failed as problem:
            print(f"\ndemo: {demo.shown(str(problem))}", file=sys.stderr)
            return 1
        finally:
            demo.stop()
            left = remains(demo)
            if left:
                print(f"demo: left behind: {', '.join(left)}", file=sys.stderr)
            if demo.mounts():  # the folder is not emptied through a mount
                os._exit(1)
    if left or folder.exists():
        return 1
    print(f"Nothing is left: no process, no control group, no file. {time.monotonic() - began:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
