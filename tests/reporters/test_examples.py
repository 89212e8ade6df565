"""The shipped example reporters, run for real, judged by the contract and their own NAME.yaml."""

import os
import subprocess
from pathlib import Path

import pytest

from xce.model import document
from xce.model.configuration import ReporterSettings
from xce.model.resource import Kind, ResourceType, Scope
from xce.model.value import Absent
from xce.reporters.contract import Context, Outcome, finish_run

EXAMPLES = Path(__file__).parents[2] / "reporters" / "examples"
SCRIPTS = sorted(path for path in EXAMPLES.iterdir() if path.suffix != ".yaml")


def settings(name: str) -> ReporterSettings:
    path = EXAMPLES / f"{name}.yaml"
    return document.load(path.read_text(), str(path), ReporterSettings)


def run(
    name: str, state: Path, *, more: tuple[ResourceType, ...] = (), **environment: str
) -> tuple[Outcome, int, str]:
    """Run an example as the agent would see it; returns what it gave, its status and its stderr."""
    own = settings(name)
    env = {
        "PATH": "/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        "XCE_STATE_DIR": str(state),
        **own.environment,
        **environment,
    }
    done = subprocess.run([EXAMPLES / name], env=env, check=False, capture_output=True, timeout=60)
    types = {kind.name: kind for kind in (*own.types, *more)}
    lines = done.stdout.splitlines()
    return (
        finish_run(lines, Context(reporter=name, types=types, external=bool(more))),
        done.returncode,
        done.stderr.decode(),
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_each_example_can_be_dropped_in(script: Path) -> None:
    """Executable, with an interpreter, and with settings that the agent accepts."""
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/bin/sh\n# ")
    settings(script.name)


def test_scratch_space_gives_the_space_of_a_mount(tmp_path: Path) -> None:
    outcome, status, _ = run("scratch_space", tmp_path, SCRATCH="/proc")
    assert status == 0
    assert outcome.values == {"scratch_free_mb": 0, "scratch_total_mb": 0}
    assert not outcome.refusals


def test_scratch_space_never_takes_the_disk_below_for_the_scratch(tmp_path: Path) -> None:
    outcome, status, stderr = run("scratch_space", tmp_path, SCRATCH=str(tmp_path))
    assert (status, outcome.values) == (1, {})
    assert "is not mounted" in stderr


def test_scratch_space_ends_by_itself_when_the_server_is_dead(tmp_path: Path) -> None:
    """A df that never answers stands for one that hangs in the kernel."""
    slow = tmp_path / "df"
    slow.write_text("#!/bin/sh\nexec sleep 20\n")
    slow.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    own = EXAMPLES / "scratch_space"
    env = {"PATH": path, "XCE_STATE_DIR": str(tmp_path), "SCRATCH": "/proc", "PATIENCE": "1"}
    with subprocess.Popen(
        [own], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.wait(timeout=15) == 0
        assert child.stdout is not None
        assert (
            os.read(child.stdout.fileno(), 4096) == b'{"scratch_free_mb": null, "scratch_total_mb": null}\n'
        )
        os.killpg(child.pid, 9)


def test_cached_datasets_lists_what_is_complete(tmp_path: Path) -> None:
    for name, complete in {"imagenet@3": True, "laion@1": False, "bad name": True, "c4@2": True}.items():
        (tmp_path / name).mkdir()
        if complete:
            (tmp_path / name / ".complete").touch()
    outcome, status, stderr = run("cached_datasets", tmp_path, CACHE=str(tmp_path))
    assert (status, outcome.values) == (0, {"datasets": ["c4@2", "imagenet@3"]})
    assert "bad name" in stderr


def test_cached_datasets_does_not_apply_to_a_node_without_a_cache(tmp_path: Path) -> None:
    assert run("cached_datasets", tmp_path, CACHE=str(tmp_path / "none"))[1] == 78


FEATURE = ResourceType(name="matlab_free", kind=Kind.NUMERIC, reporter="licence_free", scope=Scope.POOL)


def test_licence_free_counts_what_is_left(tmp_path: Path) -> None:
    tool = tmp_path / "lmstat"
    tool.write_text(
        "#!/bin/sh\n"
        "echo 'Users of other:  (Total of 9 licenses issued;  Total of 9 licenses in use)'\n"
        "echo 'Users of matlab:  (Total of 50 licenses issued;  Total of 12 licenses in use)'\n"
    )
    tool.chmod(0o755)
    outcome, status, _ = run("licence_free", tmp_path, more=(FEATURE,), COMMAND=str(tool))
    assert (status, outcome.values) == (0, {"matlab_free": 38})


@pytest.mark.parametrize("command", ["false", "echo lmgrd is not running", "/no/such/tool"])
def test_a_licence_server_that_is_down_is_not_zero_free(tmp_path: Path, command: str) -> None:
    outcome, status, stderr = run("licence_free", tmp_path, more=(FEATURE,), COMMAND=command)
    assert (status, outcome.values) == (3, {})
    assert stderr.strip()


def test_node_health_says_what_is_wrong_and_holds(tmp_path: Path) -> None:
    outcome, status, _ = run("node_health", tmp_path, LOW_MB="999999999")
    assert (status, outcome.values) == (0, {"healthy": False})
    (condition,) = [item for item in outcome.conditions or [] if item.name == "root_full"]
    assert condition.hold
    assert "MB free on /" in condition.reason


def test_node_health_of_a_healthy_node_finds_nothing(tmp_path: Path) -> None:
    outcome, status, _ = run("node_health", tmp_path, LOW_MB="1")
    assert status == 0
    assert not outcome.refusals
    assert not isinstance(outcome.values["healthy"], Absent)
