"""`./dev demo` shows what it promises and leaves nothing, also when a step fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import tree

pytestmark = pytest.mark.system

LOAD_INDICES = "r15s r1m r15m ut pg io ls it swp mem tmp"


class Demo:
    """One run of the demo, to its end; others may run on this machine meanwhile."""

    def __init__(self, root: Path) -> None:
        command = [sys.executable, str(root / "docs" / "demo.py")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            self.stdout, self.stderr = process.communicate(timeout=120)
        self.returncode = process.returncode
        mine = f"xce-demo-{process.pid}-*"
        self.left = [*Path("/tmp").glob(mine), *Path("/sys/fs/cgroup").glob(f"**/{mine}")]


def test_the_demo_shows_values_changes_and_a_fault_and_leaves_nothing() -> None:
    done = Demo(tree.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    for index in LOAD_INDICES.split():
        assert f"\n{index} " in done.stdout
    assert "host:demo-node datasets = imagenet@3 weights@7" in done.stdout
    assert "held by reporter:node_health" in done.stdout
    if os.geteuid() == 0:
        assert "/dev/full: open\n/dev/zero: not permitted" in done.stdout
        assert "Read-only file system" in done.stdout
        assert "No space left on device" in done.stdout
    assert "scratch_free_mb is unknown: exit status 1: /scratch-is-gone is not mounted" in done.stdout
    assert "Nothing is left" in done.stdout
    assert done.left == []


def test_a_failing_step_ends_the_demo_with_a_message_and_leaves_nothing(tmp_path: Path) -> None:
    copy = tree.copy_to(tmp_path / "tree")
    reporter = copy / "reporters" / "examples" / "cached_datasets"
    reporter.write_text(reporter.read_text().replace('echo "{', 'exit 3; echo "{'))
    done = Demo(copy)
    assert done.returncode == 1
    assert (
        "demo: the reporters have reported: not within" in done.stderr or "the agent is well" in done.stderr
    )
    assert "--- agent.log" in done.stderr
    assert "Nothing is left" not in done.stdout
    assert done.left == []
