"""The project's own files, for the tests that read them."""

import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ROOMS = sorted(link.name for link in (ROOT / "xce").iterdir())


def tracked(*patterns: str) -> list[Path]:
    """Files under version control, and new ones that will be, relative to the root."""
    command = [
        "git",
        "-c",
        "safe.directory=*",
        "ls-files",
        "-z",
        "-co",
        "--exclude-standard",
        "--",
        *patterns,
    ]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    paths = [Path(name) for name in listed.split("\0") if name]
    return sorted(path for path in paths if (ROOT / path).exists())


def copy_to(folder: Path) -> Path:
    """A copy of all tracked files, links as links."""
    for path in tracked():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target, follow_symlinks=False)
    return folder


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def modules() -> list[Path]:
    """Every Python module of the rooms; example reporters are programs of their own and not among them."""
    patterns = [f"{room}/*.py" for room in ROOMS]
    return [path for path in tracked(*patterns) if "examples" not in path.parts]
