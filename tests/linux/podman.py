"""A real container engine for tests: podman with a store, a /run and an image of its own, gone with the test.

It runs in a mount namespace in which control groups of version 2 are where an engine looks for them, and CDI
files are those of one directory. Limits are lowered, since raising them needs CAP_SYS_RESOURCE, and no
controllers are asked for, which a hierarchy beside those of version 1 has not.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_WORLD = """
set -e
mount -t tmpfs none /run
mount -t tmpfs none /dev/shm
mkdir -p /run/cdi /run/lock
[ -z "$CDI" ] || mount --bind "$CDI" /run/cdi
mount -t cgroup2 none /sys/fs/cgroup
exec "$@"
"""
_NEEDED = ("podman", "runc", "conmon", "unshare")


class Podman:
    """Below `place`; containers can be given what the CDI files in `cdi` describe."""

    def __init__(self, place: Path, cdi: str = "") -> None:
        if missing := [name for name in _NEEDED if shutil.which(name) is None]:
            pytest.skip(f"needs {' and '.join(missing)}")
        if not os.path.exists("/bin/busybox"):
            pytest.skip("needs /bin/busybox, statically linked: it is all that is in the image")
        self._cdi, self._place = cdi, place
        self._root = place / "rootfs"
        (self._root / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/busybox", self._root / "bin/busybox")
        self._need_a_container()

    def _need_a_container(self) -> None:
        trial = subprocess.run(
            self.command([], ["true"], cdi=""), capture_output=True, text=True, check=False
        )
        if trial.returncode:
            pytest.skip(f"podman cannot run containers here: {trial.stderr.strip()[-200:]}")

    def command(self, options: Sequence[str], inside: Sequence[str], *, cdi: str | None = None) -> list[str]:
        """The command line that runs an applet of busybox in a container."""
        world = ["unshare", "-m", "--propagation", "slave", "env", f"CDI={self._cdi if cdi is None else cdi}"]
        engine = ["podman", "--root", f"{self._place}/store", "--runroot", "/run/podman"]
        engine += ["--storage-driver", "vfs", "--events-backend", "none", "--cgroup-manager", "cgroupfs"]
        engine += ["--runtime", "runc", "run", "--rm", "--network", "none", "--pids-limit", "-1"]
        engine += ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", *options]
        return [
            *world,
            "sh",
            "-c",
            _WORLD,
            "sh",
            *engine,
            "--rootfs",
            str(self._root),
            "/bin/busybox",
            *inside,
        ]
