"""Booting the throw-away machine of `vmbox` with this project in it."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import tree

VMBOX = Path(__file__).with_name("vmbox")
TOOLS = ("qemu-system-x86_64", "mmdebstrap", "busybox", "cpio", "mke2fs")
PACKAGES = "qemu-system-x86 mmdebstrap busybox-static kmod e2fsprogs cpio"
NOT_TO_BE_HAD, TIMED_OUT = 3, 124
"""Exit statuses of `vmbox build` and `vmbox run`."""
CRASHED = 125
"""Of `vmbox run`: the machine went down before its script was at its end."""
PRELUDE = """set -e
mkdir -p /tmp/xce /tmp/site
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose xce /tmp/xce
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose site /tmp/site
echo /tmp/site >/usr/lib/python3/dist-packages/site.pth
export PYTHONPATH=/tmp/xce PYTHONDONTWRITEBYTECODE=1
"""


def need() -> None:
    """Skip where a machine cannot be built or booted; say what is missing."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: apt install {PACKAGES}")
    if os.uname().machine != "x86_64" or not Path("/etc/debian_version").exists():
        pytest.skip("the machine is built of an x86-64 Debian alone")
    built_by, this = image() / "built-by", hashlib.sha256(VMBOX.read_bytes()).hexdigest()
    if built_by.exists() and built_by.read_text().split()[0] == this:
        return
    if os.geteuid() != 0:
        pytest.skip("the machine has not been built yet, which needs root")
    built = subprocess.run([VMBOX, "build"], stderr=subprocess.PIPE, text=True, check=False, timeout=900)
    print(built.stderr)
    if built.returncode == NOT_TO_BE_HAD:
        pytest.skip(built.stderr.strip().splitlines()[-1])
    assert built.returncode == 0, built.stderr


def image() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    return Path(os.environ.get("XCE_VMBOX", f"{cache}/xce/vm")) / "image"


def run(folder: Path, script: str, *devices: str, ends: int = 0, within_s: int = 300) -> str:
    """Run a script as root in a machine with these devices; `folder` is its working directory. Its output.

    `ends`: what the script ends with; `CRASHED` if the machine is to go down with it.
    """
    site = importlib.util.find_spec("msgspec")
    assert site is not None
    assert site.origin is not None
    (folder / "run.sh").write_text(PRELUDE + script)
    shares = []
    for name, path in (("xce", tree.ROOT), ("site", Path(site.origin).parents[1])):
        shares += ["-fsdev", f"local,id={name},path={path},security_model=none,readonly=on,multidevs=remap"]
        shares += ["-device", f"virtio-9p-pci,fsdev={name},mount_tag={name},bus=pcie.0"]
    done = subprocess.run(
        [VMBOX, "run", folder, *shares, *" ".join(devices).split()],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"XCE_VMBOX_TIMEOUT": str(within_s)},
        timeout=within_s + 60,
    )
    sys.stdout.write(done.stdout)
    if done.returncode == TIMED_OUT and not (folder / "out.log").exists():
        pytest.skip("a virtual machine does not even boot in time here: too slow without KVM")
    assert done.returncode == ends, done.stdout + done.stderr
    return done.stdout
