"""The probe's life, with real processes: what hangs, crashes, or grows costs only itself."""

import gc
import os
import sys
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.agent.discovery import fake_probe
from tests.agent.discovery.fake_probe import LINE, ORDERS, RESTING
from tests.linux.kernel import Kernel
from xce.agent.discovery.prober import Prober
from xce.agent.probe.frame import KERNEL, NVIDIA, Line
from xce.linux import proc
from xce.linux.cgroup import Cgroup
from xce.linux.loop import Loop
from xce.linux.reaper import Reaper
from xce.model.configuration import Discovery
from xce.model.reporter import ReporterState


class Ear:
    """The listener."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.signs = 0
        self.blind: list[Mapping[str, str]] = []

    def heard(self, line: Line) -> None:
        self.lines.append(line)

    def alive(self) -> None:
        self.signs += 1

    def unheard(self, blind: Mapping[str, str]) -> None:
        self.blind.append(blind)

    def changed(self) -> None:
        pass


class Case:
    """A prober with a fake probe."""

    def __init__(self, kernel: Kernel, folder: Path) -> None:
        self.kernel, self.folder, self.ear = kernel, folder, Ear()

    def begin(self, text: str, *, group: Cgroup | None = None, **settings: Any) -> Prober:
        wanted = {"interval": 0.2, "timeout": 5, "grace": 1, "unknown_after": 60, **settings}
        self.prober = Prober(
            self.kernel.loop,
            self.kernel.reaper,
            self.ear,
            Discovery(**wanted),
            group=group,
            chance=lambda: 0.0,
            command=fake_probe.make(self.folder, text),
        )
        self.prober.begin()
        return self.prober

    @property
    def starts(self) -> int:
        return fake_probe.starts(self.folder)

    def orders(self) -> str:
        file = self.folder / "orders"
        return file.read_text() if file.exists() else ""

    def stop(self) -> None:
        done: list[bool] = []
        self.prober.stop(lambda: done.append(True))
        self.kernel.until(lambda: done)


@pytest.fixture
def case(kernel: Kernel, tmp_path: Path) -> Case:
    return Case(kernel, tmp_path)


def test_a_probe_that_stays_is_heard_and_leaves_at_the_end_of_its_pipe(case: Case) -> None:
    prober = case.begin(f"echo '{LINE}'; echo '{{}}'; {ORDERS}", grace=60)
    case.kernel.until(lambda: case.ear.signs)
    assert prober.state is ReporterState.RUNNING
    assert [one.id for one in case.ear.lines[0].instances or ()] == ["GPU-a"]
    case.stop()
    assert prober.last_exit == "exit status 0"


def test_one_that_rests_is_started_by_an_event_or_rarely_by_time(case: Case) -> None:
    prober = case.begin(f"echo '{RESTING}'")
    case.kernel.until(lambda: prober.runs == 1 and prober.child is None)
    assert (prober.state, prober.cause) == (ReporterState.WAITING, "")
    assert prober.due is not None
    assert 40 < prober.due - case.kernel.loop.now() <= 50
    prober.wake()
    assert (prober.state, prober.shown) == (ReporterState.RUNNING, ReporterState.WAITING)
    case.kernel.until(lambda: case.starts == 2 and prober.child is None)
    assert case.ear.blind == []


def test_one_that_crashes_is_started_later_each_time(case: Case) -> None:
    prober = case.begin("echo oops >&2; kill -SEGV $$")
    case.kernel.until(lambda: prober.failures == 3)
    assert prober.state is ReporterState.BACKOFF
    assert prober.cause == "ended by itself: killed by SIGSEGV: oops"
    assert prober.due is not None
    assert prober.due - case.kernel.loop.now() > 0.5
    prober.wake()
    assert prober.child is None
    prober.reset()
    assert prober.child is not None


def test_one_that_hangs_is_told_ended_and_started_anew(case: Case) -> None:
    prober = case.begin(f"echo '{LINE}'; trap '' TERM; sleep 1000", timeout=0.3, grace=0.2)
    case.kernel.until(lambda: prober.failures == 1)
    assert prober.cause == "said nothing for 0.5 s"
    case.kernel.until(lambda: case.starts == 2)


def test_one_that_says_it_leaves_and_does_not_is_ended(case: Case) -> None:
    prober = case.begin(f"echo '{RESTING}'; trap '' TERM; sleep 1000", timeout=0.3, grace=0.2)
    case.kernel.until(lambda: prober.failures == 1)
    assert prober.cause == "did not leave within 0.3 s"
    case.kernel.until(lambda: case.starts == 2)


def test_one_that_is_being_stopped_is_not_listened_to_any_more(case: Case) -> None:
    prober = case.begin(f"echo '{LINE}'; while read -r order <&3; do :; done; echo '{RESTING}'")
    case.kernel.until(lambda: case.ear.lines)
    case.stop()
    assert (len(case.ear.lines), prober.last_exit) == (1, "exit status 0")


def test_what_is_not_read_for_too_long_is_told_once_with_the_cause(case: Case) -> None:
    prober = case.begin("kill -SEGV $$", interval=0.1, unknown_after=0.4)
    case.kernel.until(lambda: case.ear.blind)
    assert case.ear.blind[0].keys() == {KERNEL, NVIDIA}
    assert case.ear.blind[0][NVIDIA] == "not read for 0.4 s: ended by itself: killed by SIGSEGV"
    case.kernel.during(0.8)
    assert len(case.ear.blind) == 1
    assert prober.state is ReporterState.BACKOFF


def test_a_library_that_hangs_does_not_make_the_rest_unknown(case: Case) -> None:
    pending = '{"xce":1,"instances":[],"pending":["nvidia"]}'
    text = f"echo '{pending}'; trap '' TERM; sleep 1000"
    case.begin(text, interval=0.1, timeout=0.2, grace=0.1, unknown_after=2.5)
    case.kernel.until(lambda: case.ear.blind)
    assert [set(blind) for blind in case.ear.blind] == [{NVIDIA}]


def test_one_that_asks_for_a_new_process_gets_it_at_once_and_then_at_each_interval(case: Case) -> None:
    blind = '{"xce":1,"instances":[],"blind":{"nvidia":"mismatch"}}'
    prober = case.begin(f"echo '{blind}'; exit 75", interval=0.4)
    case.kernel.until(lambda: case.starts == 2)
    second = case.kernel.loop.now()
    case.kernel.until(lambda: case.starts == 4)
    assert 0.7 < case.kernel.loop.now() - second < 10
    assert prober.failures == 0
    case.kernel.until(lambda: prober.child is None)
    prober.wake()
    assert prober.child is not None


def test_after_many_new_processes_the_pauses_grow(case: Case) -> None:
    prober = case.begin("exit 75", interval=0.01)
    case.kernel.until(lambda: prober.runs == 15)
    case.kernel.until(lambda: prober.due is not None)
    assert prober.due is not None
    assert prober.due - case.kernel.loop.now() > 0.08


def test_an_old_one_and_a_large_one_are_started_anew_in_peace(case: Case) -> None:
    text = f"echo '{LINE}'; sleep 0.3; echo '{{}}'; {ORDERS}"
    prober = case.begin(text, recycle_age=0.2, grace=15)
    case.kernel.until(lambda: case.starts == 2)
    assert (prober.failures, prober.last_exit) == (0, "exit status 0")
    case.stop()
    large = Case(case.kernel, case.folder / "large")
    large.folder.mkdir()
    grow = "import os, sys; x = bytearray(40 << 20); os.write(1, b'{}\\n'); os.read(3, 1)"
    prober = large.begin(f'exec {sys.executable} -c "{grow}"', recycle_memory_mb=32, grace=15)
    large.kernel.until(lambda: large.starts == 2)
    assert (prober.failures, prober.last_exit) == (0, "exit status 0")


def test_one_that_grows_without_a_word_is_ended_by_the_kernel(case: Case, group: Cgroup) -> None:
    if "memory" not in group.controllers():
        pytest.skip("needs the memory controller")
    group.enable({"memory", "pids"})
    child = group.child("probe")
    grow = "x = bytearray(400 << 20)"
    text = f'echo 0 > {child.path}/cgroup.procs; exec {sys.executable} -c "{grow}"'
    prober = case.begin(text, group=child, recycle_memory_mb=32)
    case.kernel.until(lambda: prober.failures == 1)
    assert "SIGKILL" in prober.cause


def test_release_is_answered_and_lasts_through_a_restart(case: Case) -> None:
    prober = case.begin(f"echo '{LINE}'; {ORDERS}")
    case.kernel.until(lambda: case.ear.lines)
    answers: list[str] = []
    prober.release(answers.append)
    case.kernel.until(lambda: answers)
    assert answers == [""]
    assert prober.child is not None
    prober.child.end()
    case.kernel.until(lambda: case.starts == 2)
    assert '"released":true' in (case.folder / "starts").read_text().splitlines()[1]
    prober.resume()
    case.kernel.until(lambda: '"resume"' in case.orders())


def test_one_that_does_not_release_is_ended_and_then_it_holds_nothing(case: Case) -> None:
    prober = case.begin(f"echo '{LINE}'; trap '' TERM; sleep 1000", grace=0.2, timeout=30)
    case.kernel.until(lambda: case.ear.lines)
    assert prober.child is not None
    pid, answers = prober.child.pid, list[str]()
    prober.release(answers.append)
    case.kernel.until(lambda: answers)
    assert answers == [""]
    assert pid is not None
    assert proc.process(pid) is None
    resting: list[str] = []
    prober.release(resting.append)
    case.kernel.until(lambda: resting)


def test_nonsense_is_a_fault_with_its_reason(case: Case) -> None:
    prober = case.begin(f"echo '{{\"instances\": 7}}'; {ORDERS}")
    case.kernel.until(lambda: prober.failures)
    assert prober.cause.startswith("printed what is no frame: Expected `array | null`, got `int`")


def test_what_an_agent_before_left_running_is_ended_first(case: Case, group: Cgroup) -> None:
    child = group.child("probe")
    child.create()
    left = Case(case.kernel, case.folder / "left")
    left.folder.mkdir()
    left.begin(f"echo 0 > {child.path}/cgroup.procs; echo '{LINE}'; sleep 1000", group=child)
    case.kernel.until(child.populated)
    before = child.pids()
    prober = case.begin(
        f"echo 0 > {child.path}/cgroup.procs; echo '{LINE}'; {ORDERS}", group=child, grace=0.2
    )
    assert prober.state is ReporterState.STOPPING
    case.kernel.until(lambda: prober.state is ReporterState.RUNNING and case.ear.lines)
    assert not set(before) & set(child.pids())
    left.prober.stop(lambda: None)


class Leaping:
    """A clock that leaps over the pauses of a prober."""

    def __init__(self) -> None:
        self.offset = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.offset


def held() -> int:
    """Bytes that the product's own code holds."""
    gc.collect()
    ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/xce/*")])
    return sum(one.size for one in ours.statistics("filename"))


def restarts(count: int, command: list[str]) -> tuple[Prober, list[int]]:
    """A prober after so many starts of a probe that fails, and what is held after each quarter of them."""
    clock = Leaping()
    errors: list[Exception] = []
    loop = Loop(clock=clock, on_error=lambda error, _: errors.append(error))
    prober = Prober(loop, Reaper(loop), Ear(), Discovery(), group=None, chance=lambda: 0.5, command=command)
    tracemalloc.start()
    prober.begin()
    sizes: list[int] = []
    while prober.runs < count or prober.child is not None:
        if prober.child is None and prober.due is not None:
            if prober.runs * 4 // count > len(sizes):
                sizes.append(held())
            clock.offset += max(0.0, prober.due - clock())
        loop.turn(0.05)
    sizes.append(held())
    tracemalloc.stop()
    loop.close()
    assert errors == []
    return prober, sizes


STARTS = int(os.environ.get("XCE_PROBE_STARTS", "200"))


def test_starts_without_number_leave_no_more_than_the_first_quarter() -> None:
    """With XCE_PROBE_STARTS=10000 it is the whole of the case, in a minute."""
    prober, sizes = restarts(STARTS, ["/bin/false"])
    assert prober.failures == STARTS
    assert len(sizes) == 4
    assert sizes[-1] < sizes[0] + 10_000
