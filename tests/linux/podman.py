"""A real container engine for tests: podman with a store, a /run and an image of its own, gone with the test.

Limits are lowered, since raising them needs CAP_SYS_RESOURCE.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.linux import engine

_NEEDED = ("podman", "runc", "conmon")


class Podman:
    """Below `place`; containers are given what CDI files in `cdi` describe. `programs`: see `engine`."""

    def __init__(self, place: Path, cdi: str = "", *, programs: str = "") -> None:
        where = f"{programs}/bin:{programs}/sbin" if programs else None
        if missing := [name for name in _NEEDED if shutil.which(name, path=where) is None]:
            pytest.skip(f"needs {' and '.join(missing)}")
        self._cdi, self._place, self._programs = cdi, place, programs
        self._root, self._runc = engine.image(place / "rootfs"), engine.runc(place)
        self._need_a_container()

    def _need_a_container(self) -> None:
        trial = subprocess.run(
            self.command([], ["true"], cdi=""), capture_output=True, text=True, check=False
        )
        if trial.returncode:
            pytest.skip(f"podman cannot run containers here: {trial.stderr.strip()[-200:]}")

    def command(self, options: Sequence[str], inside: Sequence[str], *, cdi: str | None = None) -> list[str]:
        """The command line that runs an applet of busybox in a container."""
        podman = ["podman", "--root", f"{self._place}/store", "--runroot", "/run/podman"]
        podman += ["--storage-driver", "vfs", "--events-backend", "none", "--cgroup-manager", "cgroupfs"]
        podman += ["--runtime", self._runc, "run", "--rm", "--network", "none"]
        podman += ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", *options]
        podman += ["--rootfs", str(self._root), "/bin/busybox", *inside]
        return engine.world(podman, cdi=self._cdi if cdi is None else cdi, programs=self._programs)
