"""Fixtures: see world.py and csi_world.py."""

import pytest

from tests.prepare.csi_world import make_csi_world, make_plugin
from tests.prepare.world import make_fast, make_world

world = pytest.fixture(make_world, name="world")
fast = pytest.fixture(make_fast, name="fast")
plugin = pytest.fixture(make_plugin, name="plugin", scope="module")
csi_world = pytest.fixture(make_csi_world, name="csi")
