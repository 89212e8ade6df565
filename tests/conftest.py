"""What every test can rely on: the markers of pyproject.toml mean what they say.

`root` is skipped without root, `vm` unless `--vm` is given; both say so. Generated examples have no deadline
each: on a machine that is busy with other things it would be the machine that is tested. They are the same
in each run, so that a change is judged by what it changed; `XCE_TEST_FULL=1` looks for new ones. What tests
share says what it compared when it fails, as they do.
"""

import os
from pathlib import Path

import hypothesis
import pytest

pytest.register_assert_rewrite(
    *(f"tests.{room.name}" for room in Path(__file__).parent.iterdir() if room.is_dir())
)
hypothesis.settings.register_profile(
    "xce",
    deadline=None,
    derandomize="XCE_TEST_FULL" not in os.environ,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("xce")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vm", action="store_true", help="also run the tests that boot a virtual machine")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root"))
        if item.get_closest_marker("vm") and not config.getoption("--vm"):
            item.add_marker(pytest.mark.skip(reason="boots a virtual machine: give --vm"))
