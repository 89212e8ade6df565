"""One run: what of its output is kept, and that memory and time stay bounded whatever it prints."""

import contextlib
import getpass
import os
import resource
import time
from pathlib import Path

import pytest

from tests.fakes.descriptors import allowed, hoarded
from tests.linux.kernel import Kernel
from tests.reporters.node import Node
from xce.linux import mountinfo, paths, proc
from xce.linux.reaper import Exit
from xce.reporters import cage
from xce.reporters.ending import Stuck
from xce.reporters.frame import LIMITS, TooLong
from xce.reporters.oneshot import OneShot
from xce.reporters.output import Tail
from xce.reporters.run import Start
from xce.reporters.stream import FRAMES_PER_S, Stream

MIB = 1 << 20


class Owner:
    """Drives one run and keeps what it tells."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.timeout = 60.0
        self.run: OneShot | Stream
        self.lines: list[bytes | TooLong] = []
        self.limited = ""
        self.how: Exit | None = None
        self.left: list[Stuck] = []
        self.done = False

    def line(self, line: bytes | TooLong, number: int) -> None:
        self.lines.append(line)
        assert number == len(self.lines)

    def exceeded(self, reason: str) -> None:
        self.limited = reason
        self.run.end(0.2)

    def exited(self, how: Exit, left: list[Stuck]) -> None:
        self.how, self.left = how, left

    def stuck(self, processes: list[Stuck]) -> None:
        raise AssertionError(processes)

    def over(self) -> None:
        self.done = True

    def start(self, script: Path, *, until_over: bool = True) -> OneShot:
        """A one-shot run of a script."""
        fd, start = self._checked(script)
        kernel = self.kernel
        run = OneShot(kernel.loop, kernel.reaper, self, start, {cage.SCRIPT_FD: fd}, timeout=self.timeout)
        self._started(run, fd, until_over=until_over)
        return run

    def stream(self, script: Path, *, until_over: bool = True) -> Stream:
        """A run of a script that goes on."""
        fd, start = self._checked(script)
        run = Stream(self.kernel.loop, self.kernel.reaper, self, start, {cage.SCRIPT_FD: fd})
        self._started(run, fd, until_over=until_over)
        return run

    def _checked(self, script: Path) -> tuple[int, Start]:
        directory = str(script.parent)
        start = Start(
            command=cage.command(cage.Person(user=None), BOUNDS, group="", directory=directory),
            environment={"PATH": "/usr/bin:/bin", "MARK": directory},
            group=None,
            mark=f"MARK={directory}",
            line_bytes=LIMITS.frame_bytes,
        )
        return paths.open_checked(str(script), {0, os.geteuid()}), start

    def _started(self, run: OneShot | Stream, fd: int, *, until_over: bool) -> None:
        self.run = run
        os.close(fd)
        if until_over:
            self.kernel.until(lambda: self.done, within=60)


BOUNDS = {resource.RLIMIT_NOFILE: 256, resource.RLIMIT_FSIZE: 1 << 20, resource.RLIMIT_CPU: 100}


@pytest.fixture
def owner(kernel: Kernel) -> Owner:
    return Owner(kernel)


def shell(tmp_path: Path, text: str) -> Path:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n" + text)
    script.chmod(0o755)
    return script


def test_the_checked_file_is_what_runs_even_if_its_path_is_swapped_after_the_check(
    owner: Owner, tmp_path: Path
) -> None:
    script = shell(tmp_path, "sleep 0.2; echo checked\n")
    run = owner.start(script, until_over=False)
    script.rename(tmp_path / "away")
    shell(tmp_path, "echo swapped\n")
    owner.kernel.until(lambda: owner.done)
    assert run.kept == [b"checked"]


def test_a_last_line_without_an_end_counts_in_a_run_that_is_over(owner: Owner, tmp_path: Path) -> None:
    assert owner.start(shell(tmp_path, "printf 'a\\n\\nb'")).kept == [b"a", b"", b"b"]


def test_a_last_line_without_an_end_is_dropped_from_a_stream_that_broke(owner: Owner, tmp_path: Path) -> None:
    run = owner.stream(shell(tmp_path, "echo '1 free 12'; printf '1 free 1'"))
    assert owner.lines == [b"1 free 12"]
    assert run.notes([]) == ["its last line was not complete and was dropped"]


@pytest.mark.parametrize("size", [102_400, 300_000, 3 * MIB])
def test_a_line_of_any_length_is_taken_or_named_and_the_next_is_read(
    owner: Owner, tmp_path: Path, size: int
) -> None:
    """C-REP-07. A line takes no more memory than the limit allows."""
    before = proc.resident_bytes()
    run = owner.start(shell(tmp_path, f"head -c {size} /dev/zero | tr '\\0' x; echo; echo next\n"))
    long, following = run.kept
    if size <= LIMITS.frame_bytes:
        assert long == b"x" * size
    else:
        assert isinstance(long, TooLong)
        assert long.limit == LIMITS.frame_bytes
    assert following == b"next"
    assert proc.resident_bytes() - before < 50 * MIB


@pytest.mark.parametrize("text", ["yes", "yes ''", "cat /dev/zero"])
def test_output_without_end_is_ended(owner: Owner, tmp_path: Path, text: str) -> None:
    before = proc.resident_bytes()
    run = owner.start(shell(tmp_path, f"exec {text}\n"))
    assert owner.limited.startswith("printed more than 4 MiB or 10000 lines")
    assert run.kept == []
    assert owner.how is not None
    assert owner.how.signal
    assert proc.resident_bytes() - before < 50 * MIB


def test_a_stream_without_end_is_slowed_down_and_others_go_on(owner: Owner, tmp_path: Path) -> None:
    run = owner.stream(shell(tmp_path, "exec yes '{}'\n"), until_over=False)
    turns: list[float] = []

    def beat() -> None:
        turns.append(owner.kernel.loop.now())
        owner.kernel.loop.call_later(0.05, beat)

    beat()
    owner.kernel.during(1.5)
    assert 100 <= len(owner.lines) <= 300
    assert len(turns) > 15
    assert "slowed down" in run.notes([])[0]
    run.end(0)
    owner.kernel.until(lambda: owner.done)


def test_standard_error_without_end_costs_nothing(owner: Owner, tmp_path: Path) -> None:
    before = proc.resident_bytes()
    run = owner.start(shell(tmp_path, "echo first >&2; exec yes >&2\n"), until_over=False)
    begin = os.times()
    owner.kernel.during(1.0)
    used = os.times().user - begin.user + os.times().system - begin.system
    assert used < 0.5
    assert run.stderr.gist == "first"
    assert len(run.stderr.text) == 8192
    assert proc.resident_bytes() - before < 20 * MIB
    run.end(0)
    owner.kernel.until(lambda: owner.done)


def test_what_left_the_session_is_found_without_a_control_group(owner: Owner, tmp_path: Path) -> None:
    owner.start(shell(tmp_path, "setsid sleep 300 & sleep 300 & sleep 0.1; exit 3\n"))
    assert owner.how == Exit(status=3)
    assert len(owner.left) == 2


@pytest.mark.parametrize(("timeout", "told"), [(0.05, "0.05"), (0.3, "0.3")])
def test_a_run_that_lasts_longer_than_it_may_is_told_once(
    owner: Owner, tmp_path: Path, timeout: float, told: str
) -> None:
    owner.timeout = timeout
    owner.start(shell(tmp_path, "echo; exec sleep 300\n"))
    assert owner.limited == f"did not finish within {told} s"
    assert owner.how is not None
    assert owner.how.signal


def test_what_is_printed_beyond_the_first_moment_is_read_as_it_comes(owner: Owner, tmp_path: Path) -> None:
    """A pipe holds 64 KiB: a run that prints more would otherwise wait for us, and we for it."""
    run = owner.start(shell(tmp_path, "sleep 0.2; head -c 200000 /dev/zero | tr '\\0' x; echo oops >&2\n"))
    assert run.kept == [b"x" * 200_000]
    assert run.stderr.gist == "oops"


def test_of_a_traceback_the_last_line_says_what_was_wrong() -> None:
    tail = Tail()
    tail.add(b'Traceback (most recent call last):\n  File "/proc/self/fd/9", line 2, in <module>\n')
    tail.add(b"ModuleNotFoundError: No module named 'nosuch'\n")
    assert tail.gist == "ModuleNotFoundError: No module named 'nosuch'"


def test_the_tail_keeps_the_first_line_and_the_last_bytes() -> None:
    tail = Tail()
    tail.add(b"\n  \nfir")
    tail.add(b"st\nsecond\n")
    tail.add(b"\xff" * 9000)
    assert tail.gist == "first"
    assert tail.text == "\\xff" * 8192
    endless = Tail()
    for _ in range(100):
        endless.add(b"x" * 100)
    assert endless.gist == "x" * 512


def test_a_start_that_fails_leaves_no_descriptor(owner: Owner, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    script = shell(tmp_path, "true\n")
    for environment in ({"A": "nul\0"}, {"A": "x" * (1 << 22)}):
        fd = os.open(script, os.O_RDONLY)
        start = Start(["/bin/sh"], environment, group=None, mark="A=", line_bytes=100)
        with pytest.raises((ValueError, OSError)):
            OneShot(owner.kernel.loop, owner.kernel.reaper, owner, start, {cage.SCRIPT_FD: fd}, timeout=60)
        os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("left", range(8))
def test_a_start_for_which_descriptors_do_not_suffice_leaves_none_behind(owner: Owner, left: int) -> None:
    script = os.open("/bin/true", os.O_RDONLY)
    before = os.listdir("/proc/self/fd")
    run: OneShot | None = None
    with allowed(max(map(int, before)) + 12), hoarded() as hoard:
        for fd in hoard[:left]:
            os.close(fd)
        del hoard[:left]
        start = Start(["/bin/true"], {}, group=None, mark="A=", line_bytes=100)
        fds = {cage.SCRIPT_FD: script}
        with contextlib.suppress(OSError):
            run = OneShot(owner.kernel.loop, owner.kernel.reaper, owner, start, fds, timeout=60)
    if run is not None:
        owner.run = run
        owner.kernel.until(lambda: owner.done)
    assert len(os.listdir("/proc/self/fd")) == len(before)
    os.close(script)


def test_a_run_is_over_whatever_goes_wrong_with_what_it_said(owner: Owner, tmp_path: Path) -> None:
    class Fussy(Owner):
        def exited(self, how: Exit, left: list[Stuck]) -> None:
            raise ValueError(how)

    told: list[Exception] = []
    owner.kernel.loop.on_error = lambda error, _: told.append(error)
    fussy = Fussy(owner.kernel)
    fussy.start(shell(tmp_path, "echo; sleep 300 &\n"))
    assert fussy.done
    assert [str(error) for error in told] == ["exit status 0"]


def test_of_a_flood_at_its_end_a_stream_is_told_the_newest_lines(owner: Owner, tmp_path: Path) -> None:
    script = tmp_path / "flood"
    flood = "os.write(1, b''.join(b'{\"n\": %d}\\n' % n for n in range(60_000)))"
    script.write_text(f"#!/usr/bin/python3\nimport fcntl, os\nfcntl.fcntl(1, 1031, 1 << 20)\n{flood}\n")
    script.chmod(0o755)
    run = owner.stream(script)
    assert len(owner.lines) <= 3 * FRAMES_PER_S
    assert owner.lines[-1] == b'{"n": 59999}'
    assert any("lines were dropped" in note for note in run.notes([]))


def test_a_stream_whose_lines_take_long_to_read_is_slowed_down(owner: Owner, tmp_path: Path) -> None:
    class Slow(Owner):
        def line(self, line: bytes | TooLong, number: int) -> None:
            super().line(line, number)
            time.sleep(0.03)

    slow = Slow(owner.kernel)
    run = slow.stream(shell(tmp_path, "exec yes\n"), until_over=False)
    owner.kernel.until(lambda: len(slow.lines) >= 4)
    owner.kernel.until(lambda: "slowed down: more output than a reporter may have" in run.notes([]))
    assert len(slow.lines) < 20  # of a hundred that a quick one may have
    run.end(0)
    owner.kernel.until(lambda: slow.done)


def test_a_script_on_a_file_system_that_may_hang_runs_from_its_copy(node: Node) -> None:
    nfs = mountinfo.parse("30 1 0:9 / /x rw - nfs4 server:/x rw\n")[0]
    node.script(
        "far", '#!/bin/sh\nread first < /proc/self/fd/9\necho "$first $1 $(id -un)"\n', "arguments: [x]"
    )
    node.start(mount=nfs)
    assert node.ran("far").lines == [
        f"#!/bin/sh x {'nobody' if os.geteuid() == 0 else getpass.getuser()}".encode()
    ]
    (node.directory / "far").rename(node.directory / "far.bak")  # what lies there is not looked at for a run
    node.watch.close()
    node.ran("far", 3)
    node.until(lambda: node.watch._remote._child is None)
