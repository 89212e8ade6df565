"""Fixtures: see world.py."""

import pytest

from tests.prepare.world import make_world

world = pytest.fixture(make_world, name="world")
