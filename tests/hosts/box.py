"""Real systemd hosts, booted in a third of a second: systemd-nspawn on a Debian tree that is built once.

    with Host("h1") as host:
        host.run("systemctl", "is-active", "xce-agent")
        host.crash()                # power lost: everything is killed at once
        host.boot()                 # the same disk and machine id, another boot id

A host is a process tree in namespaces of its own with systemd as PID 1, a journal, and a whole cgroup v2
hierarchy below one group of this machine. Its disk is an overlay in a temporary folder on the base tree,
and goes with it; its console stays.
Every mount is made in a private mount namespace and ends with the host. Needs root, systemd-container,
mmdebstrap and a Debian mirror for the first build; without them the tests are skipped, with the reason.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.linux import debian

SUITE = "bookworm"
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "python3",
    "iproute2",
    "procps",
    "libcap2",
    "rpm",
    "e2fsprogs",
    "util-linux",
    "iputils-ping",
    "adduser",
    "dnf",
)
WITHIN_S = 60.0
_BOOT = r"""
set -eu
mount -t tmpfs -o size=1g,mode=755 xce-host "$RUN"
mkdir -p "$RUN/root" "$DISK/upper" "$DISK/work"
mount -t overlay xce-host -o "lowerdir=$BASE,upperdir=$DISK/upper,workdir=$DISK/work" "$RUN/root"
mkdir -p "$GROUP"
echo $$ >"$GROUP/cgroup.procs"
# nspawn and the systemd within see a machine of cgroup v2 alone; in this mount namespace only.
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
exec systemd-nspawn --quiet --register=no --keep-unit --machine="$NAME" --hostname="$NAME" --resolv-conf=off \
    --timezone=off --console=pipe --boot -D "$RUN/root" "$@"
"""


def base() -> Path:
    """The tree that all hosts stand on."""
    for tool in ("systemd-nspawn", "nsenter"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}: apt-get install systemd-container util-linux")
    return debian.tree(SUITE, PACKAGES, _make_a_host)


def _make_a_host(tree: Path) -> None:
    (tree / "etc/machine-id").write_text("")
    (tree / "etc/hostname").unlink(missing_ok=True)
    for unit in ("systemd-modules-load", "systemd-udevd", "systemd-udev-trigger"):
        (tree / f"etc/systemd/system/{unit}.service").symlink_to("/dev/null")


def _cgroup_root() -> Path:
    unified = Path("/sys/fs/cgroup/unified")
    return unified if unified.is_dir() else Path("/sys/fs/cgroup")


class Host:
    """One host. `namespace`: path of a network namespace to live in; `binds`: HOST:GUEST, read-only."""

    def __init__(self, name: str, folder: Path, *, namespace: str = "", binds: tuple[str, ...] = ()) -> None:
        self.name, self.disk = name, folder / f"{name}.disk"
        self._run = folder / f"{name}.run"
        self._console = folder / f"{name}.console"
        self._group = _cgroup_root() / f"xce-host-{os.getpid()}-{name}"
        # Without bpf(2) systemd enforces no device policy, silently, and neither can we.
        self._options = ["--system-call-filter=bpf add_key keyctl", "--capability=all"]
        # There is one clock, and it is this machine's: no host may set it.
        self._options += ["--drop-capability=CAP_SYS_TIME"]
        self._options += [f"--network-namespace-path={namespace}" if namespace else "--private-network"]
        self._options += [f"--bind-ro={bind}" for bind in binds]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.boot()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.crash()
        # 50 MB each, of which pytest would keep three runs.
        subprocess.run(["rm", "-r", "--one-file-system", self.disk], check=False, timeout=WITHIN_S)

    # ------------------------------------------------------------------------------------------- power

    def boot(self) -> None:
        """Until systemd says that it has started everything."""
        for directory in (self.disk, self._run):
            directory.mkdir(exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "BASE": str(base()),
            "NAME": self.name,
            "RUN": str(self._run),
            "DISK": str(self.disk),
            "GROUP": str(self._group),
        }
        command = ["unshare", "-m", "--propagation", "private", "sh", "-c", _BOOT, "host", *self._options]
        with self._console.open("ab") as console:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        bus = ["test", "-S", "/run/dbus/system_bus_socket"]
        self.until(lambda: self.leader() != 0 and self.run(*bus).returncode == 0, "to boot")
        self.run("systemctl", "is-system-running", "--wait")

    def shut_down(self) -> None:
        """A clean power-off: units are stopped."""
        os.kill(self.leader(), signal.SIGRTMIN + 4)
        assert self._process is not None
        self._process.wait(WITHIN_S)
        self._clean()

    def crash(self) -> None:
        """Power lost: all processes die at once, the disk stays. May be called twice."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(OSError):
                (self._group / "cgroup.kill").write_text("1")
            self._process.wait(WITHIN_S)
        self._clean()

    def _clean(self) -> None:
        deadline = time.monotonic() + WITHIN_S
        while self._group.exists() and time.monotonic() < deadline:
            for directory in sorted(self._group.glob("**/"), reverse=True):
                with contextlib.suppress(OSError):
                    directory.rmdir()
            time.sleep(0.02)

    # ----------------------------------------------------------------------------------------- within

    def leader(self) -> int:
        """The pid that its PID 1 has here; 0 while there is none."""
        try:
            return int((self._group / "payload/init.scope/cgroup.procs").read_text().split()[0])
        except (OSError, IndexError):
            return 0

    def command(self, *argv: str) -> list[str]:
        """The command line that runs `argv` on the host as root."""
        home = [
            "HOME=/root",
            "LANG=C.UTF-8",
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        ]
        # In a control group of the host, as an admin's shell is.
        join = 'mkdir -p "$0" && echo 0 >"$0/cgroup.procs" && exec "$@"'
        enter = ["nsenter", "-t", str(self.leader()), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--"]
        bound = [
            "setpriv",
            "--bounding-set=-sys_time",
        ]  # nsenter comes from outside, with all that root may do
        return ["sh", "-c", join, f"{self._group}/payload/admin", *bound, *enter, "env", "-i", *home, *argv]

    def run(self, *argv: str, text: str = "", within_s: float = WITHIN_S) -> subprocess.CompletedProcess[str]:
        """Run a command on the host, whatever its exit status."""
        return subprocess.run(
            self.command(*argv), input=text, capture_output=True, text=True, check=False, timeout=within_s
        )

    def must(self, *argv: str, text: str = "") -> str:
        """Run a command that has to succeed; what it printed."""
        done = self.run(*argv, text=text)
        assert done.returncode == 0, (
            f"{self.name}: {' '.join(argv)}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def write(self, path: str, text: str, *, mode: str = "0644") -> None:
        """A file on the host."""
        self.must("sh", "-c", 'cat >"$1" && chmod "$2" "$1"', "write", path, mode, text=text)

    def read(self, path: str) -> str:
        """A file of the host."""
        return self.must("cat", path)

    def unit(self, unit: str, *properties: str) -> dict[str, str]:
        """What systemd says of a unit."""
        text = self.must("systemctl", "show", unit, f"--property={','.join(properties)}")
        return dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)

    def journal(self, unit: str) -> str:
        """What a unit has written."""
        return self.run("journalctl", "-o", "cat", "--no-pager", "-u", unit).stdout

    def until(self, true: Callable[[], object], what: str, within_s: float = WITHIN_S) -> None:
        """Wait until it is; fails with the console's end otherwise."""
        deadline = time.monotonic() + within_s
        while not true():
            if time.monotonic() > deadline or (self._process and self._process.poll() is not None):
                console = self._console.read_text(errors="replace").splitlines()[-20:]
                raise AssertionError("\n".join([f"{self.name} did not manage {what}", *console]))
            time.sleep(0.05)


@contextlib.contextmanager
def hosts(folder: Path, *names: str, binds: tuple[str, ...] = ()) -> Iterator[list[Host]]:
    """Several, side by side."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Host(name, folder, binds=binds)) for name in names]
