"""Limits by the pids and memory controllers of control group version 2, where the machine has them there."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reporters.node import Node
from xce.linux.cgroup import Cgroup
from xce.linux.reaper import Exit
from xce.linux.spawn import spawn
from xce.reporters.launch import GROUP
from xce.reporters.supervisor import BESIDE, CONTROLLERS

TREE = Path(__file__).parents[2]
JOIN = 'echo 0 > "$1/cgroup.procs" || exit 125; shift; exec "$@"'


@pytest.fixture
def limited(node: Node) -> Node:
    if node.group is None or not node.group.controllers() >= CONTROLLERS:
        pytest.skip("needs the pids and memory controllers below our own version 2 group")
    return node


def test_the_number_of_processes_is_bounded_whoever_the_user_is(limited: Node) -> None:
    bomb = "#!/bin/sh\nn=0\nwhile [ $n -lt 60 ]; do sleep 5 & n=$((n + 1)); done\nexit 0\n"
    limited.script("bomb", bomb, "limits: {processes: 12}\ntimeout: 30\ninterval: 60\n")
    limited.start()
    result = limited.ran("bomb", within=60)
    assert "fork" in result.stderr
    assert "left 11 processes behind" in result.notes[0]


def group_of(node: Node, name: str) -> Cgroup:
    """A reporter's own."""
    assert node.group is not None
    return node.group.child(GROUP + name)


def test_memory_without_end_is_killed_and_the_limit_is_that_of_the_whole_group(limited: Node) -> None:
    hog = "#!/bin/sh\nhead -c 200000000 /dev/zero | tail | wc -c &\nwait $!\nexit 0\n"
    limited.script("hog", hog, "limits: {memory_mb: 20}\ntimeout: 60\ninterval: 60\n")
    limited.start()
    limited.ran("hog", within=60)
    group = group_of(limited, "hog")
    events = dict(line.split() for line in Path(group.path, "memory.events").read_text().splitlines())
    assert int(events["oom_kill"]) > 0
    assert Path(group.path, "memory.max").read_text() == f"{20 << 20}\n"


def test_a_group_that_somebody_has_made_anew_gets_its_limits_again(limited: Node) -> None:
    limited.script(
        "free", '#!/bin/sh\necho "{\\"n\\": $(cut -d. -f1 /proc/uptime)}"\n', "limits: {processes: 12}\n"
    )
    limited.start(interval=0.2)
    limited.ran("free")
    limited.until(lambda: not limited.supervisor.running)
    group = group_of(limited, "free")
    limited.until(group.remove)
    group.create()
    assert Path(group.path, "pids.max").read_text() == "max\n"
    limited.until(lambda: Path(group.path, "pids.max").read_text() == "12\n", within=10)


@pytest.fixture
def unit(limited: Node) -> Iterator[Cgroup]:
    """A group that is delegated as systemd does it: with controllers, and a process in it."""
    assert limited.group is not None
    unit = limited.group.parent().child(f"xce-unit-{limited.base.name}")
    unit.create()
    yield unit
    unit.kill()
    limited.until(unit.remove)


def test_an_agent_that_has_its_group_to_itself_moves_aside_so_that_limits_work(
    node: Node, unit: Cgroup
) -> None:
    node.script("free", '#!/bin/sh\ncat "/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/pids.max"\n')
    output = node.base / "output"
    with output.open("w") as file:
        ends: list[Exit] = []
        solo = [sys.executable, "-m", "tests.reporters.solo", str(node.base), "test", "2"]
        argv = ["/bin/sh", "-c", JOIN, "join", unit.path, *solo]
        child = spawn(argv, {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TREE)}, fds={1: file.fileno(), 2: 2})
        node.kernel.reaper.watch(child, ends.append)
        node.until(lambda: unit.child(BESIDE).pids() == [child.pid], within=60)
        assert unit.own_pids() == []
        node.until(lambda: ends, within=60)
    assert '"lines": ["64"]' in output.read_text()
