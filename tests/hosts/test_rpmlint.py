"""What stands in packaging/rpm/rpmlint.toml: exceptions that are needed, each with its reason."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.project import tree

pytestmark = [pytest.mark.slow]
CONFIG = tree.ROOT / "packaging/rpm/rpmlint.toml"


def test_it_finds_nothing_that_has_no_reason(packages: Path) -> None:
    if shutil.which("rpmlint") is None:
        pytest.skip("needs rpmlint: apt-get install rpmlint")
    files = sorted(str(path) for path in packages.glob("xce-*.rpm"))
    command = ["rpmlint", "-c", str(CONFIG), *files]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout
    assert f"{len(files)} packages and 0 specfiles checked; 0 errors, 0 warnings" in said, said


def test_every_exception_is_still_needed_and_has_a_reason(packages: Path, tmp_path: Path) -> None:
    """One that fits nothing any more would hide what comes later."""
    if shutil.which("rpmlint") is None:
        pytest.skip("needs rpmlint: apt-get install rpmlint")
    bare = tmp_path / "bare.toml"
    bare.write_text("Filters = []\n")
    files = sorted(str(path) for path in packages.glob("*.rpm"))
    command = ["rpmlint", "-c", str(bare), *files]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout
    filters = tomllib.loads(CONFIG.read_text())["Filters"]
    assert [one for one in filters if not re.search(one, said)] == []
    lines = [line.strip() for line in CONFIG.read_text().splitlines()]
    begins = [n for n, line in enumerate(lines) if line.startswith('"')]
    assert [lines[n] for n in begins if not lines[n - 1].startswith(("#", '"'))] == []
