"""Directories on a shared volume say which node has made them: nobody else removes them, and he waits."""

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.prepare.test_shared import HOME, READY, RELEASED, tree
from tests.prepare.world import World
from xce.linux import mountapi, syscalls
from xce.model.claim import Ask, Consumer, SharedAsk
from xce.prepare import directories
from xce.prepare.errand import opened
from xce.prepare.journal import Work
from xce.prepare.tags import ATTRIBUTE, GOING

pytestmark = pytest.mark.root

NAMES = iter(range(1000))


@pytest.fixture
def other(world: World, tmp_path: Path) -> Iterator[World]:
    """Another node, with the same shared volume."""
    place = tmp_path / "other"
    place.mkdir()
    other = World(place, world.group)
    other.settings = msgspec.structs.replace(other.settings, profiles=world.settings.profiles)
    other.restart()
    yield other
    other.close()


def member(job: str = "9", index: str = "") -> Consumer:
    """A consumer of its own, of the same job."""
    return Consumer(name=f"m{next(NAMES)}", user="alice", job=job, index=index)


def top(world: World, path: str = "alice/9") -> Path:
    return world.place / "shared" / path


def wait_for(world: World) -> None:
    """Until what is kept was looked at again."""
    world.ahead += 61
    for _ in range(3):
        world.executor.advance()


def test_each_directory_names_node_binding_and_host(world: World) -> None:
    report = world.bind(HOME, consumer=member(index="7"))
    said = f"{world.node.owner.id} {report.binding} {world.node.owner.boot} here"
    made = [path for path in (world.place / "shared").rglob("*") if path.is_dir()]
    assert len(made) == 6
    assert {os.getxattr(path, ATTRIBUTE).decode() for path in made} == {said}
    assert "owner" not in world.evidence(report.binding, "shared")


def test_of_a_gang_the_node_that_made_them_removes_them_after_the_last_has_gone(
    world: World, other: World
) -> None:
    first = world.bind(HOME, consumer=member(), binding="b1")
    second = other.bind(HOME, consumer=member(), binding="b2")
    whose = f"it is of another agent, {world.node.owner.id}, for b1"
    assert other.evidence("b2", "shared")["owner"] == whose
    (top(world) / "out/result").write_text("1")
    assert world.release(first.binding).state is RELEASED
    wait_for(world)
    assert (top(world) / "out/result").read_text() == "1", "the other's job is still at work on it"
    assert other.release(second.binding).state is RELEASED
    assert (top(world) / "out/result").exists(), "it is not the other's to remove"
    wait_for(world)
    assert tree(world) == []
    assert (world.journal.kept, other.journal.kept) == ({}, {})


def test_a_node_that_keeps_results_longer_is_waited_for(world: World, other: World) -> None:
    world.bind(HOME, consumer=member(), binding="b1")
    other.bind(HOME, consumer=member(), binding="b2", retention_s=3600)
    assert other.release("b2").state is RELEASED
    assert world.release("b1").state is RELEASED
    wait_for(world)
    assert top(world).exists()
    other.ahead += 3601
    wait_for(other)
    wait_for(world)
    assert tree(world) == []


def follow(words: str) -> None:
    """What they say to do about a node that is gone for good."""
    *command, path = shlex.split(words.partition("(if that one is gone for good: ")[2].rstrip(")"))
    if command == ["rm", "-r"]:
        subprocess.run(["rm", "-r", path], check=True)
    else:
        assert command[:2] == ["setfattr", "-x"]
        os.removexattr(path, command[2])


@pytest.mark.parametrize("index", ["", "8"])
def test_a_node_that_is_gone_for_good_is_named_after_a_week_with_the_way_out(
    world: World, other: World, index: str
) -> None:
    """It has the same directory, or has made one in it."""
    world.bind(HOME, consumer=member(), binding="b1")
    other.bind(HOME, consumer=member(index=index), binding="b2")
    assert world.release("b1").state is RELEASED
    world.ahead += 6 * 86400
    wait_for(world)
    assert world.executor.unremoved == {}, "a long job is no trouble"
    world.ahead += 86400
    wait_for(world)
    [words] = world.executor.unremoved.values()
    assert f"it is of another agent, {other.node.owner.id}" in words
    follow(words)
    wait_for(world)
    assert (tree(world), world.executor.unremoved) == ([], {})


def test_what_has_failed_on_one_node_takes_nothing_from_the_others(world: World, other: World) -> None:
    world.bind(HOME, consumer=member(), binding="b1")
    foreign = Path(world.settings.profiles["default"].shared["foreign"].path, "alice")
    foreign.mkdir(parents=True)
    os.chown(foreign, 4712, 4712)
    both = Ask(shared=[SharedAsk(volume="home"), SharedAsk(volume="foreign")])
    before = tree(world)
    assert other.bind(both, consumer=member(), binding="b2").state is not READY
    assert tree(world) == before
    assert world.release("b1").state is RELEASED
    assert tree(world) == [], "nothing says that the other has it"


def test_elements_of_an_array_go_one_by_one_and_the_last_takes_their_job_with_it(
    world: World, other: World
) -> None:
    whole = world.bind(HOME, consumer=member())
    world.bind(HOME, consumer=member(index="7"), binding="b7")
    other.bind(HOME, consumer=member(index="8"), binding="b8")
    (top(world, "alice/9/8") / "out/result").write_text("1")
    world.release("b7")
    assert world.release(whole.binding).state is RELEASED
    wait_for(world)
    assert (top(world, "alice/9/8") / "out/result").read_text() == "1"
    assert not top(world, "alice/9/7").exists()
    assert other.release("b8").state is RELEASED
    wait_for(world)
    assert tree(world) == []


@pytest.mark.parametrize("retention_s", [0.0, 60.0])
def test_a_directory_that_no_node_has_made_stays(world: World, retention_s: float) -> None:
    top(world).mkdir(parents=True)
    for path in (top(world), top(world).parent):
        os.chown(path, 4711, 4711)
    (top(world) / "notes").write_text("mine")
    report = world.bind(HOME, consumer=member(), retention_s=retention_s)
    words = "no agent has written its name on it"
    assert world.evidence(report.binding, "shared")["owner"] == f"{words}: it stays after the release"
    ended = world.release(report.binding)
    assert ended.state is RELEASED
    assert ended.reason == ("" if retention_s else f"{top(world)} stays: {words}")
    world.ahead += 61
    wait_for(world)
    assert (top(world) / "notes").read_text() == "mine"
    assert world.journal.kept == {}


def test_what_an_older_version_has_made_and_kept_goes_when_its_time_is_over(world: World) -> None:
    """It wrote no marks: its journal is what there is. Nothing is lost that the job gets again either."""
    old = world.bind(HOME, consumer=member(), retention_s=60)
    for path in (world.place / "shared").rglob("*"):
        os.removexattr(path, ATTRIBUTE)
    entry = world.executor.entries[old.binding]
    entry.works = [forget(work) for work in entry.works]
    assert world.release(old.binding).state is RELEASED
    again = world.bind(HOME, consumer=member(), retention_s=3600)
    assert world.release(again.binding).state is RELEASED
    world.ahead += 3500
    wait_for(world)
    assert top(world).exists(), "as long as the last of them has said"
    world.ahead += 100
    wait_for(world)
    assert tree(world) == []


def forget(work: Work) -> Work:
    """As an older version had it."""
    evidence = {key: value for key, value in work.evidence.items() if key != "agent"}
    return msgspec.structs.replace(work, evidence=evidence)


def test_another_directory_of_claims_leaves_nothing_behind_that_was_kept(world: World) -> None:
    """The agent has another id then; what it made is its own all the same."""
    report = world.bind(HOME, consumer=member(), retention_s=60)
    assert world.release(report.binding).state is RELEASED
    before = world.node.owner.id
    world.settings = msgspec.structs.replace(world.settings, directory=f"{world.place}/moved")
    world.restart()
    assert world.executor.node.owner.id != before
    world.ahead += 61
    wait_for(world)
    assert tree(world) == []


def test_where_no_marks_are_kept_the_journal_does_and_the_evidence_says_so(world: World) -> None:
    """ramfs keeps none, as NFS does."""
    shared = world.place / "shared"
    with opened(mountapi.make("ramfs", {"mode": "0755"})) as made, opened(os.open(shared, os.O_PATH)) as at:
        mountapi.attach(made, at)
    try:
        report = world.bind(HOME, consumer=member())
        words = "known by the journal alone: cannot be written on it: Operation not supported"
        assert world.evidence(report.binding, "shared")["owner"] == words
        assert world.release(report.binding).state is RELEASED
        assert tree(world) == []
    finally:
        syscalls.umount2(str(shared), syscalls.MNT_DETACH)


def test_what_was_made_before_a_crash_and_not_marked_yet_gets_its_mark_after_it(tmp_path: Path) -> None:
    """What was to be made is on record; what is there besides is not ours."""
    for path in ("alice", "alice/9", "alice/9/out"):
        (tmp_path / path).mkdir()
        os.chown(tmp_path / path, 4711, 4711)
    told = directories.share(
        root=str(tmp_path),
        elements=["alice", "9"],
        parts=["out"],
        uid=4711,
        gid=4711,
        new=["alice/9", "alice/9/out"],
        owner=["us", "boot"],
        binding="b1",
        host="here",
    )
    assert told == {"agent": "us"}
    assert os.getxattr(tmp_path / "alice/9", ATTRIBUTE) == b"us b1 boot here"
    with pytest.raises(OSError, match="No data available"):
        os.getxattr(tmp_path / "alice", ATTRIBUTE)
    assert directories.remove(root=str(tmp_path), elements=["alice", "9"], owner=["us"], agent="us") == {
        "left": [],
        "shared": False,
    }
    assert [path.name for path in tmp_path.rglob("*")] == ["alice"], "it was there before"


def test_what_stays_because_another_node_has_some_of_it_can_be_had_meanwhile(tmp_path: Path) -> None:
    def share(agent: str, *elements: str) -> None:
        place: dict[str, Any] = {"root": str(tmp_path), "elements": list(elements), "owner": [agent]}
        told = directories.share(**place, parts=[], uid=4711, gid=4711, new=[], binding="b1", host=agent)
        assert told["agent"] == agent

    share("one", "alice", "9")
    share("two", "alice", "9", "sub")
    for _ in range(2):
        told = directories.remove(root=str(tmp_path), elements=["alice", "9"], owner=["one"], agent="one")
        assert told["shared"]
        share("two", "alice", "9", "sub")
    directories.remove(root=str(tmp_path), elements=["alice", "9", "sub"], owner=["two"], agent="two")
    assert (
        directories.remove(root=str(tmp_path), elements=["alice", "9"], owner=["one"], agent="one")["left"]
        == []
    )


@contextlib.contextmanager
def covered(place: Path) -> Iterator[None]:
    """Another file system lies over a directory."""
    with opened(mountapi.make("tmpfs", {"mode": "0755"})) as made, opened(os.open(place, os.O_PATH)) as at:
        mountapi.attach(made, at)
    yield
    syscalls.umount2(str(place), syscalls.MNT_DETACH)


ROUNDS = 300


def test_what_was_kept_on_a_volume_that_is_away_is_told_until_it_is_back(world: World) -> None:
    shared = world.place / "shared"
    report = world.bind(HOME, consumer=member(), retention_s=60)
    assert world.release(report.binding).state is RELEASED
    world.ahead += 61
    with covered(shared):
        wait_for(world)
        [words] = world.executor.unremoved.values()
        assert words.startswith(f"{top(world)}: tmpfs 0:"), words
        assert ": mount that again; if it is gone for good" in words
    wait_for(world)
    assert (tree(world), world.executor.unremoved, world.journal.kept) == ([], {}, {})


def test_what_another_node_is_removing_is_waited_for_and_made_anew(world: World, other: World) -> None:
    """Half of it is gone already, maybe."""
    first = world.bind(HOME, consumer=member(), binding="b1", retention_s=3600)
    assert world.release(first.binding).state is RELEASED
    os.setxattr(top(world), GOING, world.node.owner.id.encode())
    binding, claim = other.order(HOME, consumer=member(), binding="b2")
    other.executor.prepare(op_id="op-b2", epoch=1, binding=binding, claim=claim, instances={})
    words = f"{top(world)}: it is being removed by another agent, {world.node.owner.id}"
    other.until(lambda: other.report("b2").note.startswith(words))
    with opened(os.open(top(world), os.O_RDONLY)) as directory:
        assert world.node.owner.users(directory) == [], "it does not wait for the one that waits for it"
    world.ahead += 3601
    wait_for(world)
    assert tree(world) == []
    other.ahead += 6
    assert other.settled("b2").state is READY
    assert other.release("b2").state is RELEASED


def test_a_node_that_was_lost_while_it_removed_holds_nobody_up_longer_than_an_admin_lets_it(
    world: World, other: World
) -> None:
    world.bind(HOME, consumer=member(), binding="b1", retention_s=3600)
    assert world.release("b1").state is RELEASED
    os.setxattr(top(world), GOING, world.node.owner.id.encode())
    binding, claim = other.order(HOME, consumer=member(), binding="b2")
    other.executor.prepare(op_id="op-b2", epoch=1, binding=binding, claim=claim, instances={})
    other.until(lambda: "if that one is gone for good" in other.report("b2").note)
    follow(other.report("b2").note)
    other.ahead += 6
    assert other.settled("b2").state is READY
    assert other.release("b2").state is RELEASED


def test_what_another_node_has_by_then_is_not_marked_as_being_removed(world: World, other: World) -> None:
    world.bind(HOME, consumer=member(), binding="b1")
    other.bind(HOME, consumer=member(), binding="b2")
    assert world.release("b1").state is RELEASED
    assert GOING not in os.listxattr(top(world))
    assert other.bind(HOME, consumer=member(), binding="b3").state is READY


@pytest.mark.parametrize("index", ["", "7"])
def test_a_node_that_takes_up_again_what_it_had_begun_to_remove_says_so(
    world: World, other: World, index: str
) -> None:
    world.bind(HOME, consumer=member(), binding="b1", retention_s=3600)
    assert world.release("b1").state is RELEASED
    os.setxattr(top(world), GOING, world.node.owner.id.encode())
    assert world.bind(HOME, consumer=member(index=index), binding="b2").state is READY
    assert GOING not in os.listxattr(top(world))
    assert other.bind(HOME, consumer=member(), binding="b3").state is READY


def test_two_nodes_that_make_and_remove_directories_at_once_do_not_take_each_others(tmp_path: Path) -> None:
    """What is above both is empty now and then, and is removed while the other makes something in it."""

    def work(name: str) -> None:
        place: dict[str, Any] = {
            "root": str(tmp_path),
            "elements": ["alice", "9", name],
            "owner": [name, "boot"],
        }
        for _ in range(ROUNDS):
            told = directories.share(
                **place, parts=["out"], uid=4711, gid=4711, new=[], binding="b1", host="here"
            )
            assert told["agent"] == name
            (tmp_path / "alice/9" / name / "out/result").write_text("1")
            assert directories.remove(**place, agent=name)["left"] == []

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(work, name) for name in ("one", "two")]:
                done.result(30)
    finally:
        sys.setswitchinterval(interval)
    assert list(tmp_path.iterdir()) == []
