"""Whether another user can run this tree: a clone of root's in /root cannot be read by anybody else."""

import subprocess
import sys

import pytest

from tests.project import tree

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]


def skip_unless_readable() -> None:
    """Skip the test, with the reason, where the user nobody cannot import the product."""
    command = [*NOBODY, sys.executable, "-c", "import xce.agent.cli"]
    done = subprocess.run(
        command, cwd="/", env={"PYTHONPATH": str(tree.ROOT)}, capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(
            f"the user nobody cannot run what lies in {tree.ROOT}: clone it to a folder that all can read"
        )
