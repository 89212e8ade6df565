"""What somebody else has made under a name of ours, and nobody has marked: never taken, ended or removed."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.prepare.world import FULL_ASK, World
from xce.linux import syscalls
from xce.linux.cgroup import Cgroup
from xce.model.claim import Ask, BindingState, Consumer
from xce.prepare.tags import ATTRIBUTE

pytestmark = pytest.mark.root
FAILED = BindingState.FAILED
ASK = msgspec.structs.replace(FULL_ASK, scratch="disk", scratch_bytes=4 << 20)
WORDS = "it was there before, and no agent has written its name on it: move it out of the way, or remove it"


def image(world: World) -> Path:
    return _filled(world.place / "scratch/xce-b1.img")


def cdi_file(world: World) -> Path:
    return _filled(world.place / "cdi/xce-claim_b1.json")


def cdi_link(world: World) -> Path:
    target, path = _filled(world.place / "theirs.json"), world.place / "cdi/xce-claim_b1.json"
    path.parent.mkdir()
    path.symlink_to(target)
    return path


def directory(world: World) -> Path:
    return _filled(world.place / "run/b1/env").parent


def directory_link(world: World) -> Path:
    target, path = _filled(world.place / "theirs/env").parent, world.place / "run/b1"
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)
    return path


def mount_point(world: World) -> Path:
    _filled(world.place / "run/b1/input/file")
    return world.place / "run/b1"


def no_directory(world: World) -> Path:
    return _filled(world.place / "run/b1")


def _filled(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("theirs")
    return path


@pytest.mark.parametrize(
    "make", [image, cdi_file, cdi_link, directory, directory_link, mount_point, no_directory]
)
def test_a_strangers_thing_of_our_name_is_refused_in_words_and_stays_as_it_is(
    world: World, make: Callable[[World], Path]
) -> None:
    path = make(world)
    before = tree(world.place)
    report = world.bind(ASK, binding="b1")
    assert report.state is FAILED
    assert f"{WORDS}: {path}" in report.reason
    assert tree(world.place) == before
    world.release("b1")
    assert tree(world.place) == before


def tree(place: Path) -> dict[str, tuple[int, bytes]]:
    """Everything that a binding could touch, as it is."""
    found = [path for name in ("run", "cdi", "scratch", "theirs") for path in (place / name).rglob("*")]
    return {
        str(path): (path.lstat().st_ino, path.read_bytes() if path.is_file() else b"")
        for path in found
        if path.name != ".staged"
    }


def test_a_strangers_control_group_of_our_name_keeps_its_processes(world: World) -> None:
    group = world.group.child("xce-consumer-job-b1")
    group.create()
    command = ["sh", "-c", f"echo $$ > {group.path}/cgroup.procs && exec sleep 60"]
    with subprocess.Popen(command) as job:
        world.until(lambda: job.pid in group.pids())
        report = world.bind(ASK, binding="b1")
        assert report.state is FAILED
        assert f"{WORDS}: {group.path}" in report.reason
        assert (job.poll(), group.pids()) == (None, [job.pid])
        job.kill()
    assert world.group.children() == [group]
    group.remove()


@pytest.mark.parametrize("begun", ["scratch", "cdi", "directory", "group"])
def test_what_is_empty_may_be_what_we_were_making_when_we_were_interrupted(world: World, begun: str) -> None:
    """The mark comes a moment after the thing."""
    if begun == "group":
        world.group.child("xce-consumer-job-b1").create()
    elif begun == "directory":
        (world.place / "run/b1").mkdir(parents=True)
    else:
        path = world.place / {"scratch": "scratch/xce-b1.img", "cdi": "cdi/xce-claim_b1.json"}[begun]
        _filled(path).write_text("")
    report = world.bind(ASK, binding="b1")
    assert report.state is BindingState.READY, report.reason
    assert world.release("b1").state is BindingState.RELEASED
    assert world.leftovers() == []


def test_a_group_whose_mark_was_lost_is_ours_as_long_as_a_binding_of_the_consumer_knows_it(
    world: World,
) -> None:
    consumer = Consumer(name="job", user="alice")
    world.bind(Ask(), binding="b1", consumer=consumer)
    group = Cgroup(world.evidence("b1", "group")["groups"][0])
    with subprocess.Popen(world.inside("b1", ["sleep", "60"])) as job:
        world.until(lambda: job.pid in group.pids())
        os.removexattr(group.path, ATTRIBUTE)
        report = world.bind(Ask(), binding="b2", consumer=consumer)
        assert (report.state, report.reason) == (BindingState.READY, "")
        for binding in ("b1", "b2"):
            assert world.release(binding).state is BindingState.RELEASED
    assert not group.exists()


def test_a_strangers_directory_beside_our_scratch_file_outlives_the_release(world: World) -> None:
    """A scratch is one or the other, and both have a name of ours."""
    path = _filled(world.place / "scratch/xce-b1.dir/file")
    assert world.bind(ASK, binding="b1").state is BindingState.READY
    assert world.release("b1").state is BindingState.RELEASED
    assert world.leftovers() == [str(path.parent), str(path)]


@pytest.mark.parametrize("name", ["env", "claim.json"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_directory_in_the_place_of_a_file_of_ours_holds_no_binding_up(
    world: World, name: str, when: str
) -> None:
    """It would be there until somebody took it away; what is on the disk is told by the look for orphans."""
    place = world.place / "run/b1"
    if when == "after":
        assert world.bind(Ask(), binding="b1").state is BindingState.READY
        (place / name).unlink()
    else:
        place.mkdir(parents=True)
        world.node.owner.take(str(place), "b1")
    (place / name / "theirs").mkdir(parents=True)
    if when == "before":
        report = world.bind(Ask(), binding="b1")
        assert (report.state, f"Is a directory: {place}/{name}" in report.reason) == (FAILED, True), report
    assert world.release("b1").state is (FAILED if when == "before" else BindingState.RELEASED)
    assert sorted(world.leftovers()) == [str(place), str(place / name), str(place / name / "theirs")]
    world.executor.scan()
    assert world.executor.orphans == [f"directory {place}"]


def test_a_link_in_the_place_of_what_was_ours_leads_no_release_outside(world: World) -> None:
    """We make none; what it leads to may have files of the same names."""
    theirs = _filled(world.place / "theirs/env").parent
    _filled(theirs / "claim.json")
    assert world.bind(Ask(scratch="disk", scratch_bytes=4 << 20), binding="b1").state is BindingState.READY
    syscalls.umount2(str(world.place / "run/b1/scratch"), 0)
    for path in (world.place / "run/b1", world.place / "cdi/xce-claim_b1.json"):
        path.rename(f"{path}.moved")
        path.symlink_to(theirs)
    before = tree(world.place)
    assert world.release("b1").state is BindingState.RELEASED
    gone = str(world.place / "scratch/xce-b1.img")
    assert tree(world.place) == {path: seen for path, seen in before.items() if path != gone}
