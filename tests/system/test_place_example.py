"""`docs/examples/place.py`: one job from its claim to its end, with the real broker, agent and kernel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.harness import Site
from tests.system.test_claims import alone

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and device filters need root"),
]

PROGRAM = Path(__file__).parents[2] / "docs" / "examples" / "place.py"


def place(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    endpoint = f"ipc://{site.broker.settings['local']}"
    return subprocess.run(
        [sys.executable, str(PROGRAM), endpoint, *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


def test_it_places_a_job_on_a_host_that_has_what_it_needs_and_leaves_nothing(site: Site) -> None:
    alone(site)
    done = place(site, "job1", "card=2")
    assert done.returncode == 0, done.stderr
    assert "on node1 is ready" in done.stdout
    more = place(site, "job2", "card=3")
    assert (more.returncode, more.stderr) == (1, "no host has card=3 free\n")
    site.until(lambda: place(site, "job3", "card=2").returncode == 0)
