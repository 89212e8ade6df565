"""Trees of /proc, /sys and /dev below a directory, declared in one literal."""

import os
from collections.abc import Mapping
from pathlib import Path

from xce.prepare.devices import Finder

CASES = Path(__file__).parent.parent / "cases"


def make(root: Path, files: Mapping[str, str]) -> Finder:
    """Files by path; `-> target` makes a link, `c 195:2` below dev/ a node (as root) or nothing."""
    for path, text in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            place.symlink_to(text.removeprefix("-> "))
        elif path.startswith("dev/"):
            major, minor = (int(part) for part in text.removeprefix("c ").split(":"))
            os.mknod(place, 0o20600, os.makedev(major, minor))
        else:
            place.write_text(text)
    return Finder(str(root / "proc"), str(root / "sys"), str(root / "dev"))


def proc_devices(letter: str) -> str:
    """One of the two tables of case C-DEV-02."""
    return (CASES / f"dev/proc-devices-{letter}.txt").read_text()


def gpu_information(uuid: str, minor: int) -> str:
    """/proc/driver/nvidia/gpus/ADDRESS/information."""
    return f"Model: \t\t NVIDIA A100\nIRQ:   \t\t 61\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
