"""Fixtures: see world.py."""

import pytest

from tests.prepare.world import make_fast, make_world

world = pytest.fixture(make_world, name="world")
fast = pytest.fixture(make_fast, name="fast")
