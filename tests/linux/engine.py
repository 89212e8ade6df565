"""Where container engines of tests run: a mount namespace with a /run of its own, and their programs.

Control groups of version 2 are where an engine looks for them there. CDI files are those of one directory.
"""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.linux import debian
from xce.linux import mountapi, syscalls
from xce.prepare.errand import opened

SUITE = "trixie"
PACKAGES = ("containerd", "podman", "runc", "conmon")
CONTAINERD = (1, 7)
"""The first that knows CDI files."""
_WORLD = """
set -e
[ -z "$PROGRAMS" ] || mount --bind "$PROGRAMS" /usr
mount -t tmpfs none /run
mount -t tmpfs none /dev/shm
mkdir -p /run/cdi /run/lock
[ -z "$CDI" ] || mount --bind "$CDI" /run/cdi
mount -t cgroup2 none /sys/fs/cgroup
exec "$@"
"""
_RUNC = """#!/bin/sh
for word; do
    [ "$last" != --bundle ] || sed -i 's/"\\(cpu\\|pids\\)":{[^}]*}/"\\1":{}/' "$word/config.json"
    last=$word
done
exec runc "$@"
"""


def world(command: Sequence[str], *, cdi: str = "", programs: str = "") -> list[str]:
    """A command in such a namespace. `programs`: what is /usr there, if not the machine's own."""
    unshare = ["unshare", "-m", "--propagation", "slave", "env", f"CDI={cdi}", f"PROGRAMS={programs}"]
    return [*unshare, "sh", "-c", _WORLD, "sh", *command]


def newer() -> str:
    """For `programs`: engines of Debian 13, unless this machine's own containerd is as new."""
    if shutil.which("containerd"):
        said = subprocess.run(["containerd", "--version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r" v?(\d+)\.(\d+)\.", said)
        if found and tuple(map(int, found.groups())) >= CONTAINERD:
            return ""
    return str(debian.tree(SUITE, PACKAGES) / "usr")


def runc(place: Path) -> str:
    """One that asks for no controllers: a hierarchy beside those of version 1 has none."""
    made = place / "runc"
    made.write_text(_RUNC)
    made.chmod(0o755)
    return str(made)


def image(place: Path) -> Path:
    """A root with busybox in it, statically linked, and nothing else."""
    if not Path("/bin/busybox").exists():
        pytest.skip("needs /bin/busybox, statically linked: it is all that is in the image")
    (place / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy("/bin/busybox", place / "bin/busybox")
    return place


@contextlib.contextmanager
def shared(directory: str) -> Iterator[None]:
    """Mounts in a directory come and go where engines are, too: as on a host whose mounts are shared."""
    os.makedirs(directory, exist_ok=True)
    with opened(os.open(directory, os.O_PATH)) as place, opened(mountapi.clone(place)) as tree:
        mountapi.set_attributes(tree, 0, propagation=mountapi.MS_SHARED)
        mountapi.attach(tree, place)
    try:
        yield
    finally:
        syscalls.umount2(directory, syscalls.MNT_DETACH)
