"""Fixtures: see tests/linux/kernel.py."""

import pytest

from tests.linux.kernel import make_group, make_kernel

kernel = pytest.fixture(make_kernel, name="kernel")
group = pytest.fixture(make_group, name="group")
