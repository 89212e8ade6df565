"""Fixtures: see node.py, and tests/linux/kernel.py."""

import pytest

from tests.linux.kernel import make_kernel
from tests.reporters.node import make_node

kernel = pytest.fixture(make_kernel, name="kernel")
node = pytest.fixture(make_node, name="node")
