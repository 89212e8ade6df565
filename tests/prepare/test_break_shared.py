"""What a user leaves in his directories, and what he does while they are made or removed."""

import os
from pathlib import Path

import pytest

from tests.linux.test_mountapi import bind as bind_mount
from tests.prepare.test_shared import AGAIN, FAILED, HOME, READY, RELEASED, tree
from tests.prepare.test_shared_marks import member, other, top, wait_for  # noqa: F401 - a fixture
from tests.prepare.world import World
from xce.linux import syscalls
from xce.model.claim import Condition

pytestmark = pytest.mark.root


@pytest.mark.parametrize("remote", [False, True])
def test_a_name_that_is_no_text_is_told_of_what_cannot_be_removed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, remote: bool
) -> None:
    monkeypatch.setattr("xce.prepare.shared.is_remote", lambda *_: remote)
    report = world.bind(HOME)
    inside = Path(world.variables(report.binding)["XCE_DIR_OUT"], os.fsdecode(b"\xff"))
    inside.mkdir()
    bind_mount(tmp_path / "data", inside)
    waiting = world.release(report.binding)
    assert waiting.conditions == [Condition.BLOCKED]
    assert waiting.note == f"{inside.parent}/\\xff: a file system is mounted on it"
    syscalls.umount2(str(inside), 0)


def test_an_element_of_ours_that_another_node_has_outlives_its_job(world: World, other: World) -> None:  # noqa: F811
    whole = world.bind(HOME, consumer=member())
    world.bind(HOME, consumer=member(index="7"), binding="b7", retention_s=60)
    assert other.bind(HOME, consumer=member(index="7"), binding="b8").state is READY
    assert world.release("b7").state is RELEASED
    result = top(world, "alice/9/7") / "out/result"
    result.write_text("1")
    assert world.release(whole.binding).state is RELEASED
    world.ahead += 61
    wait_for(world)
    assert result.read_text() == "1", "the other's job is still at work on it"
    assert other.release("b8").state is RELEASED
    wait_for(world)
    wait_for(world)
    assert tree(world) == []


def test_a_run_of_an_element_on_another_node_outlives_its_job(world: World, other: World) -> None:  # noqa: F811
    whole = world.bind(HOME, consumer=member())
    world.bind(HOME, consumer=member(index="7"), binding="b7")
    again = other.bind(AGAIN, consumer=member(index="7"), binding="b8", retention_s=0)
    result = Path(other.variables(again.binding)["XCE_DIR_OUT"], "result")
    result.write_text("1")
    world.release("b7")
    world.release(whole.binding)
    wait_for(world)
    assert result.read_text() == "1"
    other.release("b8")
    wait_for(other)
    wait_for(world)
    wait_for(world)
    assert tree(world) == []


def test_a_file_that_its_user_put_in_place_of_a_directory_stays(world: World) -> None:
    report = world.bind(HOME, consumer=member())
    top(world).rename(top(world).parent / "moved")
    top(world).write_text("results")
    assert world.release(report.binding).state is RELEASED
    assert top(world).read_text() == "results"
    assert (top(world).parent / "moved/out").is_dir()


def test_a_directory_of_roots_in_a_users_place_is_not_given_to_him(world: World) -> None:
    place = world.place / "shared/alice"
    place.mkdir()
    os.chown(place, 4711, 4711)
    (place / "9").mkdir(0o700)
    (place / "9/secret").write_text("1")
    report = world.bind(HOME, consumer=member())
    assert report.state is FAILED
    assert "it is there and belongs to uid 0, not to 4711" in report.reason
    assert (place / "9").stat().st_uid == 0


@pytest.mark.parametrize("remote", [False, True])
def test_a_mark_that_is_no_text_keeps_a_directory_like_any_other(
    world: World, monkeypatch: pytest.MonkeyPatch, *, remote: bool
) -> None:
    monkeypatch.setattr("xce.prepare.shared.is_remote", lambda *_: remote)
    report = world.bind(HOME, consumer=member())
    mark = f"trusted.xce.user.{'f' * 16}"
    os.setxattr(top(world), mark, b"b\xff\n here\xfe")
    assert world.release(report.binding).state is RELEASED
    assert (top(world) / "out").is_dir(), "it says that another node has it"
    world.until(lambda: world.executor._kept_later)
    os.removexattr(top(world), mark)
    world.ahead += 61
    world.until(lambda: not tree(world))
