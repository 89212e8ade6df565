"""A site of real programs for each test that asks for one, and a CSI plugin."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.csi_node_helper.world import Plugin
from tests.system.harness import Site
from tests.system.one_node import make_one

one = pytest.fixture(make_one, name="one")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as site:
        yield site


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    """In a short path: what plugins can take is limited."""
    with tempfile.TemporaryDirectory() as folder:
        made = Plugin(Path(folder) / "plugin")
        made.volume("vol1", file="payload")
        made.start()
        yield made
        made.stop()
