"""A site of real programs for each test that asks for one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.harness import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as site:
        yield site
