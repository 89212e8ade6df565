"""Fixtures: see node.py, and tests/linux/kernel.py."""

from pathlib import Path

import pytest

from tests.linux.kernel import make_kernel
from tests.reporters.node import make_node

kernel = pytest.fixture(make_kernel, name="kernel")
node = pytest.fixture(make_node, name="node")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory of reporters."""
    place = tmp_path / "reporters.d"
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    return place
