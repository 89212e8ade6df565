"""File systems that do not answer: only a child waits for them, and everybody else goes on. C-CSI-07."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.linux.hangfs import HangingMount
from tests.prepare.world import World
from xce.linux import proc
from xce.model.claim import Ask, BindingState, Condition, MountAsk, SharedAsk
from xce.model.profile import ScratchRoot, SharedVolume, Volume
from xce.prepare.child import Errands
from xce.prepare.handler import StepFailed
from xce.prepare.step import Evidence

pytestmark = pytest.mark.root


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[HangingMount]:
    point = tmp_path / "dead"
    point.mkdir()
    mount = HangingMount(point)
    yield mount
    mount.release()


@pytest.fixture
def far(world: World, dead: HangingMount) -> World:
    """A node with volumes on the file system that does not answer."""
    profile = msgspec.structs.replace(
        world.settings.profiles["default"],
        volumes={"far": Volume(path=str(dead.point)), "data": Volume(path=str(world.place / "data"))},
        shared={"far": SharedVolume(path=str(dead.point))},
        scratch={"far": ScratchRoot(path=str(dead.point))},
    )
    world.settings = msgspec.structs.replace(
        world.settings, profiles={"default": profile}, remote_s=4, probe_s=0.1
    )
    world.restart()
    return world


def wait_for(condition: Callable[[], object]) -> None:
    """Until it is true, for at most twenty seconds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def longest_turn(world: World, binding: str) -> float:
    """Work until the binding has settled; how long the longest call took."""
    longest = 0.0
    deadline = time.monotonic() + 20
    while world.report(binding).state not in {BindingState.FAILED, BindingState.READY}:
        before = time.monotonic()
        assert before < deadline
        world.executor.advance()
        longest = max(longest, time.monotonic() - before)
        time.sleep(0.01)
    return longest


@pytest.mark.parametrize(
    "ask",
    [
        Ask(mounts=[MountAsk(name="x", source="far", subdirectory="a")]),
        Ask(shared=[SharedAsk(volume="far")]),
        Ask(scratch_bytes=1 << 20, scratch="far"),
    ],
    ids=["mount", "shared", "scratch"],
)
def test_a_server_that_does_not_answer_fails_one_binding_and_delays_nobody(
    far: World, dead: HangingMount, ask: Ask
) -> None:
    other = Ask(mounts=[MountAsk(name="y", source="data")])
    order = far.order(ask, binding="b1")
    far.executor.prepare(op_id="o", epoch=1, binding=order[0], claim=order[1], instances={})
    far.executor.advance()
    assert far.bind(other, binding="b2").state is BindingState.READY
    assert far.report("b1").state is BindingState.PREPARING
    assert longest_turn(far, "b1") < far.settings.remote_s
    failed = far.report("b1")
    assert failed.state is BindingState.FAILED
    assert "did not answer within 4 s" in failed.reason
    errands = far.node.errands
    assert isinstance(errands, Errands)
    assert errands.abandoned >= 1
    far.until(lambda: f" at {dead.point}" in errands.hanging)
    dead.release()
    far.until(lambda: errands.abandoned == 0)
    assert errands.hanging == ""


def test_c_csi_07_a_mount_whose_server_died_is_told_and_can_be_taken_off(
    far: World, dead: HangingMount
) -> None:
    report = far.bind(Ask(mounts=[MountAsk(name="x", source="far")]))
    assert report.state is BindingState.READY
    dead.release()  # its process is gone; a look under way is told that it was aborted, later ones this
    far.until(lambda: "is dead: Transport endpoint is not connected" in far.report(report.binding).note)
    assert far.report(report.binding).conditions == [Condition.DEGRADED]
    assert far.release(report.binding).state is BindingState.RELEASED
    assert far.leftovers() == []


def test_a_successor_waits_for_the_last_child_unless_it_hangs(tmp_path: Path, dead: HangingMount) -> None:
    """What a child does in the kernel when its agent dies is finished there, mounts too."""
    now = [0.0]
    question = {"root": str(dead.point), "elements": ["a"], "parts": [], "new": False}
    killed = Errands(lambda: now[0], 20, home=str(tmp_path))
    assert killed.alone()
    assert killed("one", "look", question, True) is None
    assert dead.asked.wait(20)
    killed.close()
    successor = Errands(lambda: now[0], 20, home=str(tmp_path))
    assert not successor.alone()
    now[0] += 2
    assert successor.alone(), "one that hangs is not waited for"
    late = Errands(lambda: now[0], 20, home=str(tmp_path))
    assert not late.alone()
    dead.release()
    wait_for(late.alone)
    for errands in (successor, late):
        errands.close()


def test_children_that_do_not_end_are_bounded(tmp_path: Path, dead: HangingMount) -> None:
    now = [0.0]
    errands = Errands(lambda: now[0], 1, home=str(tmp_path), abandoned=1)
    question = {"root": str(dead.point), "elements": ["a"], "parts": [], "new": False}
    assert errands("one", "look", question, True) is None
    assert dead.asked.wait(20)
    now[0] += 2
    with pytest.raises(TimeoutError, match="did not answer within 1 s"):
        errands("one", "look", {}, True)
    with pytest.raises(StepFailed, match="1 children hang"):
        errands("two", "look", {}, True)
    dead.release()
    wait_for(lambda: not errands.abandoned)
    errands.close()


def children() -> set[int]:
    """Of this process, those that do errands."""
    found = set()
    for one in proc.processes():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{one.pid}/cmdline").read_bytes()
            if one.parent == os.getpid() and b"xce.prepare.child" in command:
                found.add(one.pid)
    return found


class Killer:
    """Kills the children that come, with the signal that the kernel sends where memory has run out."""

    def __init__(self, slow: HangingMount, most: int) -> None:
        self.seen, self._slow, self._most = children(), slow, most
        self.came: list[int] = []

    def look(self) -> list[int]:
        """All that have come, once those asked the server that are to be killed."""
        for pid in children() - self.seen:
            self.seen.add(pid)
            self.came.append(pid)
            if len(self.came) <= self._most:
                self._slow.asked.wait(20)
                os.kill(pid, signal.SIGKILL)
        self._slow.asked.clear()
        return self.came


@pytest.fixture
def slow(world: World, tmp_path: Path) -> Iterator[HangingMount]:
    """A volume of the world, whose server takes a while for each answer."""
    (point := tmp_path / "slow").mkdir()
    mount = HangingMount(point, after=0.1)
    profile = msgspec.structs.replace(
        world.settings.profiles["default"], volumes={"slow": Volume(path=str(point))}
    )
    world.settings = msgspec.structs.replace(world.settings, profiles={"default": profile})
    world.restart()
    yield mount
    mount.release()


SLOW = Ask(mounts=[MountAsk(name="x", source="slow", subdirectory="a", read_only=True)])


def test_an_errand_whose_child_was_killed_is_done_once_more_and_the_binding_says_so(
    world: World, slow: HangingMount
) -> None:
    killer = Killer(slow, most=1)
    world.each = killer.look
    report = world.bind(SLOW)
    assert (report.state, report.reason) == (BindingState.READY, "")
    said = world.evidence(report.binding, "bind")["tried again"]
    assert said.startswith("the child that was sent for it was killed (SIGKILL; ")
    assert len(world.mounts()) == 1
    assert len(killer.came) == 2, "the second child has done the rest"
    world.release(report.binding)
    world.until(lambda: world.report(report.binding).state is BindingState.RELEASED)
    assert world.leftovers() == []


def test_an_errand_whose_children_are_killed_is_not_done_a_third_time(
    world: World, slow: HangingMount
) -> None:
    killer, notes = Killer(slow, most=9), set[str]()
    order = world.order(SLOW, binding="b1")
    world.executor.prepare(op_id="o", epoch=1, binding=order[0], claim=order[1], instances={})

    def look() -> None:
        killer.look()
        notes.add(world.report("b1").note)

    world.each = look
    failed = world.settled("b1")
    assert failed.state is BindingState.FAILED
    assert "was killed (SIGKILL" in failed.reason
    assert "twice" in failed.reason
    assert len(killer.came) == 2
    assert any("again: the child that was sent for it was killed" in note for note in notes)
    assert world.leftovers() == []


def test_nothing_is_done_once_more_before_somebody_has_looked_what_there_is(
    tmp_path: Path, slow: HangingMount
) -> None:
    """A mount may have been made when the child was killed."""
    errands, killer = Errands(time.monotonic, 20, home=str(tmp_path)), Killer(slow, most=1)
    question = {"root": str(slow.point), "elements": ["a"], "parts": [], "new": False}
    assert errands("one", "look", question, True) is None
    wait_for(killer.look)
    wait_for(lambda: errands.answered() == ["one"])
    assert (errands.pending("one"), children() - killer.seen) == (False, set())
    assert errands("one", "look", question, True) is None
    wait_for(lambda: len(killer.look()) == 2)
    errands.close()


def test_a_child_answers_like_the_function_itself(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    errands = Errands(time.monotonic, 20, home=str(tmp_path))
    question = {"root": str(tmp_path), "elements": ["a"], "parts": ["in"], "new": False}
    here = errands("k", "look", question, False)
    there: list[Evidence] = []

    def answered() -> bool:
        there.extend(filter(None, [errands("k", "look", question, True)]))
        return bool(there)

    wait_for(answered)
    assert there == [here]
    assert (here or {})["new"] == ["a", "a/in"]
    with pytest.raises(OSError, match="No such file") as failed:
        wait_for(lambda: errands("k", "look", question | {"root": "/nowhere"}, True))
    assert failed.value.filename == "/nowhere"
    errands.close()
    assert before == set(os.listdir("/proc/self/fd"))
