"""Trees of Debian that tests take programs from, or boot; built once each, and kept between runs.

The first build needs root, mmdebstrap and a Debian mirror. Without them a test is skipped, with the reason.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("XCE_HOSTS", "/var/tmp/xce-hosts"))
"""Trees, kept between runs."""


def tree(suite: str, packages: Sequence[str], finish: Callable[[Path], None] = lambda _: None) -> Path:
    """The one with these packages; built at the first use, in about 20 seconds, and handed to `finish`."""
    if shutil.which("mmdebstrap") is None:
        pytest.skip("needs mmdebstrap: apt-get install mmdebstrap")
    if os.geteuid() != 0:
        pytest.skip("builds a tree of Debian: needs root")
    known = hashlib.sha256(" ".join(packages).encode()).hexdigest()
    made = FOLDER / f"{suite}-{known[:8]}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two runs one builds
        if not (made / ".complete").exists():
            _build(suite, packages, made, finish)
    return made


def _build(suite: str, packages: Sequence[str], made: Path, finish: Callable[[Path], None]) -> None:
    making = FOLDER / f"{made.name}.{os.getpid()}"
    command = ["mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}", suite, str(making)]
    done = subprocess.run([*command, _mirror()], capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        pytest.skip(f"cannot build a tree of {suite}: {done.stderr.strip().splitlines()[-1:]}")
    finish(making)
    (making / ".complete").touch()
    making.rename(made)


def _mirror() -> str:
    """The mirror that this machine uses itself."""
    own = platform.freedesktop_os_release().get("VERSION_CODENAME", "stable")
    known = subprocess.run(["apt-cache", "policy"], capture_output=True, text=True, check=False).stdout
    for line in known.splitlines():
        words = line.split()
        if len(words) > 2 and words[1].startswith("http") and words[2] == f"{own}/main":
            return words[1]
    return "http://deb.debian.org/debian"
