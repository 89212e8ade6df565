"""Nothing is left: after a crash of the agent, many starts, a dead file server, and without root."""

import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from tests.fakes import descriptors
from tests.fakes.readable import skip_unless_readable
from tests.linux.hangfs import HangingMount, hanging
from tests.reporters.node import ROOT, Node
from xce.linux import proc
from xce.linux.reaper import Exit
from xce.linux.spawn import spawn

TREE = Path(__file__).parents[2]
STARTS = int(os.environ.get("XCE_TEST_STARTS", "400"))
"""One descriptor or process in sixty that stays is seen; a thousand and more for a long look."""


def test_what_a_killed_agent_left_behind_is_ended_before_its_reporter_runs_again(node: Node) -> None:
    if node.group is None:
        pytest.skip("needs a control group")
    node.script("busy", "#!/bin/sh\ntrap '' TERM\nsetsid sleep 300 &\nsleep 300\n", "timeout: 60\n")
    node.script("removed", "#!/bin/sh\nsleep 300\n", "timeout: 60\n")
    ends: list[Exit] = []
    argv = [
        sys.executable,
        "-m",
        "tests.reporters.solo",
        str(node.base),
        node.group.name.removeprefix("xce-"),
        "0",
    ]
    agent = spawn(argv, {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TREE)}, fds={})
    node.kernel.reaper.watch(agent, ends.append)
    node.until(lambda: len([one for one in node.children() if one.name == "sleep"]) == 3)
    agent.signal(signal.SIGKILL)
    node.until(lambda: ends)
    old = {one.pid for one in node.children()}
    assert len(old) == 5
    (node.directory / "removed").unlink()
    node.script("busy", "#!/bin/sh\necho '{\"free\": 5}'\n")
    node.start()
    assert node.told["busy"][0].state == "stopping"
    assert node.told["busy"][0].cause == "a run from before is being ended"
    node.ran("busy")
    node.until(lambda: not old & {one.pid for one in node.children()})
    node.until(lambda: [group.name for group in node.group.children()] == ["reporter-busy"])  # type: ignore[union-attr]
    assert node.now("busy").cause == ""


def test_a_run_whose_time_is_over_when_there_is_no_descriptor_is_ended_all_the_same(node: Node) -> None:
    """It went on for ever: what could not be signalled was not looked at again."""
    node.script("hangs", "#!/bin/sh\ntrap '' TERM\nsleep 300\n", "timeout: 0.5\ngrace: 0.1\ninterval: 60\n")
    node.start()
    node.until(lambda: any(one.name == "sleep" for one in node.children()))
    with descriptors.allowed(100), descriptors.hoarded():
        node.kernel.during(1)
    assert node.ran("hangs").fault == "did not finish within 0.5 s"
    node.until(lambda: node.children() == [])


def test_a_state_directory_that_hangs_keeps_nobody_but_who_needs_a_new_one(node: Node) -> None:
    """Making its directory, the agent waited for ever."""
    node.script("good", "#!/bin/sh\necho '{\"a\": 1}'\n", "interval: 0.1\n")
    node.start()
    node.ran("good")
    with hanging(node.base / "state"):
        node.script("fresh", "#!/bin/sh\necho '{\"b\": 1}'\n", "interval: 0.2\n")
        state = node.reaches("fresh", "backoff")
        assert "state/reporters/fresh: is on fuse from hang now, which may hang" in state.cause
    assert node.reaches("fresh", "waiting").cause == ""


@pytest.mark.slow
def test_many_starts_and_kills_leave_descriptors_threads_and_processes_as_they_were(node: Node) -> None:
    """Half of them end by themselves and leave a child behind, half are killed at their deadline."""
    node.script("ends", "#!/bin/sh\nsetsid sleep 300 &\necho '{\"a\": 1}'\n", "interval: 0.01\n")
    hang = "#!/bin/sh\ntrap '' TERM\nsleep 300 & sleep 300\n"
    node.script("hangs", hang, "interval: 0.01\ntimeout: 0.02\ngrace: 0.01\n")
    node.start(failures_to_quarantine=1_000_000)
    node.supervisor.chance = lambda: 0.0

    def forgive() -> None:
        node.supervisor.reporters["hangs"].in_a_row = 0
        node.kernel.loop.call_later(0.005, forgive)

    forgive()
    node.ran("hangs", 5)
    before = resources()
    node.until(lambda: len(node.runs("ends")) + len(node.runs("hangs")) >= STARTS, within=200)
    assert len(node.runs("hangs")) > STARTS / 5
    assert {result.fault for result in node.runs("ends")} == {""}
    assert {result.fault for result in node.runs("hangs")} == {"did not finish within 0.02 s"}
    descriptors, threads, memory = resources()
    assert abs(descriptors - before[0]) <= 6  # two runs at most are in progress
    assert threads <= before[1]  # of tests before this one some may have ended
    assert memory - before[2] < STARTS * 30_000
    assert len(node.children()) < 10


def resources() -> tuple[int, int, int]:
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), proc.resident_bytes()


def test_it_works_without_root_and_without_control_groups(node: Node) -> None:
    """A developer's run: as the same user, and the state says so."""
    if not ROOT:
        pytest.skip("is run without root anyway by the other tests")
    skip_unless_readable()
    with tempfile.TemporaryDirectory(prefix="xce-test-") as text:
        base = Path(text)
        os.chmod(base, 0o755)
        (base / "reporters.d").mkdir()
        script = base / "reporters.d/free"
        script.write_text("#!/bin/sh\nid -un\nulimit -n\nsetsid sleep 300 &\n")
        script.chmod(0o755)
        os.chown(script, 65534, 65534)
        for directory in (base, base / "reporters.d"):
            os.chown(directory, 65534, 65534)
        output = base / "output"
        fd = os.open(output, os.O_WRONLY | os.O_CREAT, 0o644)
        ends: list[Exit] = []
        setpriv = ["/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
        python = [sys.executable, "-m", "tests.reporters.solo", str(base), "nobody", "2"]
        tree = base / "tree"  # the source may lie where only root gets to
        shutil.copytree(TREE, tree, symlinks=True, ignore=shutil.ignore_patterns(".*", "docs", "bench"))
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        child = spawn(setpriv + python, environment, fds={1: fd, 2: fd})
        os.close(fd)
        node.kernel.reaper.watch(child, ends.append)
        node.until(lambda: ends, within=40)
        told = [json.loads(line) for line in output.read_text().splitlines()]
        assert ends == [Exit(status=0)], output.read_text()
    assert told[0] == {"group": False}
    runs = [one for one in told if "run" in one]
    assert [one["lines"] for one in runs] == [["nobody", "256"]] * 2
    assert "left 1 processes behind" in runs[0]["notes"][0]
    states = [one for one in told if one.get("name") == "free"]
    assert states[-1]["note"] == "runs as uid 65534, not as 'nobody': the agent is not root"
    assert states[-1]["cause"] == ""
    assert told[-1] == {"stopped": True}
    assert [one for one in node.children() if one.name == "sleep"] == []


def test_a_process_that_cannot_be_killed_is_named_never_doubled_and_bounded(node: Node) -> None:
    mount = node.base / "mount"
    mount.mkdir()
    hanging = HangingMount(mount)
    try:
        for name in ("one", "two", "three"):
            script = f"#!/bin/sh\nexec stat {mount}/x\n"
            node.script(name, script, "interval: 0.2\ntimeout: 0.3\ngrace: 0.1\nweight: 2\n")
        node.script("good", "#!/bin/sh\necho '{\"a\": 1}'\n", "interval: 0.2\n")
        node.start(patience=0.3, budget=4, max_abandoned=2)
        # The budget allows two at a time; then the bound holds back the third, and the good one, too.
        node.until(lambda: node.supervisor.abandoned == 2)
        stuck = [name for name in ("one", "two", "three") if node.now(name).state == "abandoned"]
        assert len(stuck) == 2
        for name in stuck:
            assert "(stat, state D in " in node.now(name).cause
            view = node.supervisor.view(name)
            assert view is not None
            assert view.unkillable[0].state == "D"
            assert view.unkillable[0].wait_channel
            assert view.unkillable_for is not None
            result = node.runs(name)[0]
            assert result.exit is None
            assert result.fault.startswith("did not finish within 0.3 s, and pid ")
        node.until(lambda: "max_abandoned" in node.now("good").cause)
        node.kernel.during(0.5)
        assert [len(node.runs(name)) for name in stuck] == [1, 1]
        assert len([one for one in node.children() if one.state == "D"]) == 2
        ran = len(node.runs("good"))
    finally:
        hanging.release()
    node.until(lambda: node.supervisor.abandoned == 0)
    node.until(lambda: len(node.runs("good")) > ran)
    assert node.now("good").cause == ""
    for name in stuck:
        assert node.now(name).state in ("backoff", "abandoned", "waiting")
    node.until(lambda: all(node.now(name).state == "backoff" for name in ("one", "two", "three")))


def test_what_cannot_be_killed_of_a_reporter_that_was_removed_stays_named(node: Node) -> None:
    """Of one that this agent has run, and of one that an agent before it has."""
    mount = node.base / "mount"
    mount.mkdir()
    hanging = HangingMount(mount)
    try:
        node.script("one", f"#!/bin/sh\nexec stat {mount}/x\n", "interval: 0.2\ntimeout: 0.3\ngrace: 0.1\n")
        node.start(patience=0.3)
        node.until(lambda: node.supervisor.abandoned == 1)
        assert node.supervisor.remains == {}
        (node.directory / "one").unlink()
        (node.directory / "one.yaml").unlink()
        node.until(lambda: node.left == ["one"])
        (found,) = node.supervisor.remains["one"]
        assert (found.name, found.state) == ("stat", "D")
        assert found.wait_channel
        if node.group is None:
            return
        before, node.supervisor = node.supervisor, None  # type: ignore[assignment]  # as if it had crashed
        node.start(patience=0.3)
        node.until(lambda: node.supervisor.remains)
        assert node.supervisor.remains == {"one": [found]}
        node.supervisor = before
    finally:
        hanging.release()
    node.until(lambda: node.supervisor.remains == {})


def test_a_stuck_grandchild_does_not_cost_the_value_and_the_agent_stops_all_the_same(node: Node) -> None:
    """The script has a deadline of its own, as a good one has; what it left behind is stuck."""
    mount = node.base / "mount"
    mount.mkdir()
    hanging = HangingMount(mount)
    try:
        script = f"#!/bin/sh\nstat {mount}/x &\nsleep 0.1\necho '{{\"free\": null}}'\n"
        node.script("df", script, "interval: 0.2\n")
        node.start(patience=0.2)
        result = node.ran("df")
        assert result.lines == [b'{"free": null}']
        assert result.fault == ""
        node.reaches("df", "abandoned")
        node.kernel.during(0.5)
        assert len(node.runs("df")) == 1
        done: list[bool] = []
        node.supervisor.stop(lambda: done.append(True))
        node.until(lambda: done)
    finally:
        hanging.release()
    node.until(lambda: not node.children())
