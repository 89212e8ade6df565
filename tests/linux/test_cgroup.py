"""Control groups with real processes in them."""

import os
import signal
import stat
from pathlib import Path

import pytest

from tests.fakes import descriptors
from tests.linux.kernel import Kernel
from xce.linux import cgroup
from xce.linux.cgroup import Cgroup, Inhabited
from xce.linux.reaper import Exit
from xce.linux.spawn import Child, spawn

ENV = {"PATH": "/usr/bin:/bin"}
JOIN = 'echo 0 > "$1/cgroup.procs" || exit 125; shift; exec "$@"'


def start(kernel: Kernel, group: Cgroup, script: str) -> tuple[Child, list[Exit]]:
    child = spawn(["/bin/sh", "-c", JOIN, "join", group.path, "/bin/sh", "-c", script], ENV, fds={})
    ends: list[Exit] = []
    kernel.reaper.watch(child, ends.append)
    return child, ends


def test_it_counts_its_processes_and_those_below(kernel: Kernel, group: Cgroup) -> None:
    below = group.child("below")
    below.create()
    assert not group.populated()
    start(kernel, group, "exec sleep 60")
    start(kernel, below, "sleep 60 & exec sleep 60")
    kernel.until(lambda: len(group.pids()) == 3)
    assert len(below.pids()) == 2
    assert group.populated()
    assert below.populated()
    assert not group.remove()
    group.kill()
    kernel.until(lambda: not group.populated())
    kernel.until(group.remove)
    assert not group.exists()
    assert group.pids() == []
    assert not group.populated()
    assert group.remove()
    group.kill()  # gone: nothing to do, no error


def test_the_kill_gets_grandchildren_that_left_the_session_and_ignore_term(
    kernel: Kernel, group: Cgroup
) -> None:
    one = "setsid sh -c 'trap \"\" TERM; sleep 60 & sleep 60' &"
    script = f"trap '' TERM HUP; for i in 1 2 3; do {one} done; sleep 60"
    _, ends = start(kernel, group, script)
    kernel.until(lambda: len(group.pids()) >= 8)
    assert group.signal(signal.SIGTERM) >= 8
    group.kill()
    kernel.until(lambda: ends and not group.populated())
    assert ends[0].signal == signal.SIGKILL


def test_a_signal_reaches_every_process_of_the_group(kernel: Kernel, group: Cgroup) -> None:
    _, ends = start(kernel, group, "sleep 60 & sleep 60 & wait")
    kernel.until(lambda: len(group.pids()) == 3)
    assert group.signal(signal.SIGTERM) == 3
    kernel.until(lambda: ends and not group.populated())


def test_a_signal_reaches_more_processes_than_there_are_descriptors(kernel: Kernel, group: Cgroup) -> None:
    """A fork storm where nothing limits it: holding each at once leaves no descriptor to end it with."""
    many = 200
    start(kernel, group, f"for i in $(seq {many}); do sleep 60 & done; wait")
    kernel.until(lambda: len(group.pids()) == many + 1)
    highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    with descriptors.allowed(highest + 50):
        assert group.signal(signal.SIGTERM) == many + 1
    kernel.until(lambda: not group.populated())


def test_asking_often_gives_the_same_answers_also_after_the_group_was_made_anew(
    kernel: Kernel, group: Cgroup
) -> None:
    inner = group.child("inner")
    often = Inhabited(inner)
    assert not often.populated()  # not there yet
    for _ in range(2):
        inner.create()
        assert not often.populated()
        start(kernel, inner, "exec sleep 60")
        kernel.until(often.populated)
        often.kill()
        kernel.until(lambda: not often.populated())
        kernel.until(inner.remove)
    often.close()
    often.close()


def test_who_asks_often_is_told_when_the_group_has_been_made_anew_by_somebody_else(group: Cgroup) -> None:
    inner = group.child("inner")
    inner.create()
    lost: list[bool] = []
    often = Inhabited(inner, on_loss=lambda: lost.append(True))
    assert not often.populated()
    assert not lost
    assert inner.remove()
    inner.create()
    assert not often.populated()
    assert lost == [True]
    assert not often.populated()
    assert lost == [True]
    often.close()
    assert inner.remove()
    never_there = Inhabited(group.child("gone"), on_loss=lambda: lost.append(False))
    assert not never_there.populated()  # taken away before the first run could join it
    assert lost == [True, False]


def test_a_group_that_is_ours_cannot_be_locked_by_others(group: Cgroup) -> None:
    """Who holds the lock keeps the next agent out of its group, and what is left in there alive."""
    os.close(group.claim())
    assert stat.S_IMODE(os.stat(group.path).st_mode) == 0o711


def test_limits_say_when_their_controller_is_not_there(group: Cgroup) -> None:
    done = group.limit("pids.max", 10)
    assert done == ("pids" in group.controllers())
    assert not group.limit("no-such.max", 1)


def test_our_own_group_is_found_in_any_mount_layout(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("3:cpu:/\n0::/system.slice/xce.service\n")
    line = "30 23 0:26 {root} {point} rw,nosuid - cgroup2 cgroup2 rw\n"
    table = tmp_path / "self/mountinfo"
    table.write_text("22 1 8:1 / / rw - ext4 /dev/sda rw\n" + line.format(root="/", point="/sys/fs/cgroup"))
    assert cgroup.own(str(tmp_path)) == cgroup.Cgroup("/sys/fs/cgroup/system.slice/xce.service")
    table.write_text(line.format(root="/system.slice", point="/cg"))
    assert cgroup.own(str(tmp_path)) == cgroup.Cgroup("/cg/xce.service")
    table.write_text(line.format(root="/system.slice/xce.service", point="/cg"))
    assert cgroup.own(str(tmp_path)) == cgroup.Cgroup("/cg")
    table.write_text(line.format(root="/other", point="/cg"))
    assert cgroup.own(str(tmp_path)) is None
    (tmp_path / "self/cgroup").write_text("3:cpu:/\n")
    assert cgroup.own(str(tmp_path)) is None


def test_our_own_group_really_holds_us() -> None:
    ours = cgroup.own()
    if ours is None:
        pytest.skip("no cgroup2 hierarchy here")
    assert os.getpid() in ours.pids()
