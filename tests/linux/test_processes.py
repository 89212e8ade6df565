"""Starting, signalling and reaping real processes; nothing of them is left."""

import errno
import os
import signal
from collections.abc import Mapping

import pytest

from tests.linux.kernel import Kernel
from xce.linux import proc
from xce.linux.reaper import Exit
from xce.linux.spawn import Child, handle, spawn

ENV = {"PATH": "/usr/bin:/bin"}


def run(kernel: Kernel, script: str, *, fds: Mapping[int, int] | None = None) -> tuple[str, Exit]:
    """Standard output and exit of a shell script."""
    read, write = os.pipe()
    ends: list[Exit] = []
    child = spawn(["/bin/sh", "-c", script], ENV, fds={1: write, **(fds or {})})
    os.close(write)
    kernel.reaper.watch(child, ends.append)
    kernel.until(lambda: ends)
    with os.fdopen(read) as output:
        return output.read(), ends[0]


def test_the_exit_status_and_the_signal_are_told(kernel: Kernel) -> None:
    assert run(kernel, "exit 37")[1] == Exit(status=37)
    assert run(kernel, "kill -KILL $$")[1] == Exit(signal=9)
    assert str(Exit(status=37)) == "exit status 37"
    assert str(Exit(signal=9)) == "killed by SIGKILL"
    assert str(Exit(signal=64)) == "killed by signal 64" or "RTMAX" in str(Exit(signal=64))


def test_a_child_has_only_the_descriptors_given_and_null_for_the_rest(kernel: Kernel) -> None:
    leak = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(leak, True)
    given = os.open("/etc/hostname", os.O_RDONLY)
    script = "cd /proc/self/fd; for f in 0 1 2 3 4 5 6 7 8 9 *; do test -e $f && readlink $f; done"
    output, _ = run(kernel, script, fds={7: given})
    os.close(leak)
    os.close(given)
    assert "passwd" not in output
    assert output.count("/etc/hostname") == 2  # once by number, once by listing
    assert output.count("/dev/null") == 4


def test_descriptors_that_trade_places_arrive_where_they_were_meant(kernel: Kernel) -> None:
    read_a, write_a = os.pipe()
    read_b, write_b = os.pipe()
    ends: list[Exit] = []
    # The child's numbers are ours of the other pipe.
    child = spawn(
        ["/bin/sh", "-c", f"echo to-a >/proc/self/fd/{write_b}; echo to-b >/proc/self/fd/{write_a}"],
        ENV,
        fds={write_b: write_a, write_a: write_b},
    )
    kernel.reaper.watch(child, ends.append)
    kernel.until(lambda: ends)
    os.close(write_a)
    os.close(write_b)
    assert (os.read(read_a, 99), os.read(read_b, 99)) == (b"to-a\n", b"to-b\n")
    os.close(read_a)
    os.close(read_b)


def test_a_child_has_its_own_session_and_default_signals(kernel: Kernel) -> None:
    output, _ = run(
        kernel, "echo $$; cut -d' ' -f6 /proc/$$/stat; exec grep -E 'SigIgn|SigBlk' /proc/self/status"
    )
    pid, session, blocked, ignored = output.split("\n")[:4]
    assert session == pid
    assert int(blocked.split()[1], 16) == 0
    of_threads = 0b11 << 31  # 32 and 33 belong to the C library
    assert int(ignored.split()[1], 16) & ~of_threads == 0  # Python ignores SIGPIPE: not inherited


def test_a_program_that_cannot_be_started_is_an_error_and_leaves_no_child(kernel: Kernel) -> None:
    with pytest.raises(OSError, match="No such file") as missing:
        spawn(["/nonexistent/program"], ENV, fds={})
    assert missing.value.errno == errno.ENOENT
    with pytest.raises(OSError, match="denied"):
        spawn(["/etc/passwd"], ENV, fds={})
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)


def test_orphans_come_to_us_and_are_reaped_and_counted(kernel: Kernel) -> None:
    before = kernel.reaper.orphans
    run(kernel, "for i in 1 2 3; do (setsid sleep 0.1 &); done")
    kernel.until(lambda: kernel.reaper.orphans >= before + 3)
    mine = [p for p in proc.processes() if p.parent == os.getpid()]
    assert mine == []


def test_a_signal_goes_to_this_child_only_while_it_lives(kernel: Kernel) -> None:
    ends: list[Exit] = []
    child = spawn(["/bin/sleep", "60"], ENV, fds={})
    kernel.reaper.watch(child, ends.append)
    assert child.signal(signal.SIGTERM)
    kernel.until(lambda: ends)
    assert ends == [Exit(signal=15)]
    assert not child.alive
    assert not child.signal(signal.SIGTERM)


def test_a_handle_is_of_a_child_alone_and_of_none_that_the_reaper_has_had(kernel: Kernel) -> None:
    """Another thread may reap a child before the one that started it has looked; its number is free then."""
    ends: list[Exit] = []
    child = spawn(["/bin/sleep", "60"], ENV, fds={})
    kernel.reaper.watch(child, ends.append)
    own = handle(child)
    signal.pidfd_send_signal(own, signal.SIGTERM)
    kernel.until(lambda: ends)
    assert ends == [Exit(signal=15)], "looking did not take its exit from the reaper"
    os.close(own)
    descriptors = len(os.listdir("/proc/self/fd"))
    for stranger in (child, Child(os.getppid())):
        with pytest.raises(ChildProcessError, match="has died"):
            handle(stranger)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_many_starts_leave_descriptors_and_processes_flat(kernel: Kernel) -> None:
    run(kernel, "true")
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        ends: list[Exit] = []
        children = [spawn(["/bin/true"], ENV, fds={}) for _ in range(4)]
        for child in children:
            kernel.reaper.watch(child, ends.append)
        kernel.until(lambda: len(ends) == 4)  # noqa: B023 - done within the round
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert len(kernel.reaper) == 0


def test_one_callback_that_fails_does_not_cost_the_others_their_exits(kernel: Kernel) -> None:
    ends: list[Exit] = []

    def bad(_told: Exit) -> None:
        raise ValueError("boom")

    kernel.reaper.watch(spawn(["/bin/true"], ENV, fds={}), bad)
    kernel.reaper.watch(spawn(["/bin/true"], ENV, fds={}), ends.append)
    kernel.until(lambda: ends and kernel.errors)
    assert [str(error) for error in kernel.errors] == ["boom"]
    kernel.errors.clear()
