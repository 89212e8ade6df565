"""C-PKG-03: a library whose first answer takes longer than every limit of the unit.

With XCE_TEST_FULL=1 it takes the 200 seconds of the case, and the unit's own limits.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.nvml.stand_in import StandIn
from tests.hosts.box import Host
from tests.hosts.test_packages import available, install, serve

pytestmark = [pytest.mark.root, pytest.mark.system, pytest.mark.slow]

SCALE = 1 if os.environ.get("XCE_TEST_FULL") else 20
"""The shipped unit gives 60 s to start and 30 s to the watchdog, the library takes 200 s: so much faster."""
UNIT = f"[Service]\nTimeoutStartSec={60 / SCALE:g}\nWatchdogSec={30 / SCALE:g}\n"
DISCOVERY = f"""
discovery:
  interval: 1
  timeout: {400 / SCALE:g}
  library: /nvml/library/libnvidia-ml.so.1
  environment: {{XCE_TEST_NVML: /nvml/answers}}
"""
GPU = {"count": 1, "0.uuid": "GPU-1f3a", "0.pci": "00000000:0F:00.0", "0.name": "slow", "driver": "550.54"}


@pytest.fixture
def slow(base: Path, packages: Path, tmp_path: Path) -> Iterator[Host]:
    """A host with a GPU library that needs its time, once."""
    library = StandIn(tmp_path / "answers", GPU)
    library.control({"once.nvmlInitWithFlags.*": 200_000 // SCALE})
    binds = (
        f"{packages}:/packages",
        f"{library.library.parent}:/nvml/library",
        f"{library.folder}:/nvml/answers",
    )
    with Host("h1", tmp_path, binds=binds) as running:
        yield running


def test_a_start_is_ready_early_while_the_library_is_silent_and_nobody_is_killed(slow: Host) -> None:
    install(slow)
    slow.must("mkdir", "-p", "/etc/systemd/system/xce-agent.service.d")
    slow.write("/etc/systemd/system/xce-agent.service.d/test.conf", UNIT)
    text = slow.read("/etc/xce/agent.yaml")
    at = text.index("\ndiscovery:\n")
    slow.write("/etc/xce/agent.yaml", text[:at] + DISCOVERY)
    slow.must("systemctl", "daemon-reload")
    serve(slow)
    assert "GPU-1f3a" not in slow.run("xce-agent", "inventory").stdout, "discovery is under way"
    pid = slow.unit("xce-agent", "MainPID")["MainPID"]
    slow.until(
        lambda: "GPU-1f3a" in slow.run("xce-agent", "inventory").stdout,
        "to hear the library",
        within_s=30 + 220 / SCALE,
    )
    available(slow)
    assert slow.unit("xce-agent", "MainPID", "NRestarts") == {"MainPID": pid, "NRestarts": "0"}
    assert slow.journal("xce-agent").count(" runs, pid ") == 1
