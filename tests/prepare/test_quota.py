"""Scratch on file systems with quotas: it holds no more than asked, and leaves neither files nor limits."""

import os
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.linux.kernel import make_group
from tests.prepare.quota_disk import KINDS, Disk, mounted
from tests.prepare.world import ALICE, World
from xce.linux import quota, syscalls
from xce.model.claim import Ask, BindingState, Condition, SharedAsk
from xce.model.profile import Limit, Orphans, ScratchRoot, SharedVolume
from xce.prepare.handler import StepFailed
from xce.prepare.projects import SCRATCH as PROJECTS
from xce.prepare.scratch import Progress, way_of
from xce.prepare.step import Scratch

pytestmark = pytest.mark.root

MIB = 1 << 20
ASK = Ask(scratch_bytes=8 * MIB, scratch="quota")
READY, RELEASED, FAILED = BindingState.READY, BindingState.RELEASED, BindingState.FAILED


@pytest.fixture(params=list(KINDS))
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    yield from mounted(request.param, tmp_path)


@pytest.fixture
def node(disk: Disk, tmp_path: Path) -> Iterator[World]:
    """A node whose scratch root `quota` is the disk; at the end nothing may be left on it."""
    place = tmp_path / "node"
    place.mkdir()
    groups = make_group(tmp_path)
    world = World(place, next(groups), quota=disk.root)
    yield world
    world.close()
    next(groups, None)


def as_alice(point: str, *command: str) -> subprocess.CompletedProcess[str]:
    """In the scratch, which pytest keeps in a directory of root's."""
    user = ["setpriv", f"--reuid={ALICE.uid}", f"--regid={ALICE.gid}", "--clear-groups"]
    return subprocess.run([*user, *command], cwd=point, capture_output=True, text=True, check=False)


def fill(point: str, mib: int) -> subprocess.CompletedProcess[str]:
    """Write as the user, and to the disk: what is over a limit may be refused only there."""
    return as_alice(point, "dd", "if=/dev/zero", "of=file", "bs=1M", f"count={mib}", "conv=fsync")


def bound(world: World, binding: str = "b1") -> str:
    """A ready binding's scratch."""
    report = world.bind(ASK, binding=binding)
    assert (report.state, report.reason) == (READY, "")
    return str(world.evidence(binding, "scratch")["point"])


def directory(world: World, binding: str = "b1") -> Path:
    assert world.quota is not None
    return world.quota / f"xce-{binding}.dir"


def gone(world: World, disk: Disk, binding: str = "b1") -> None:
    """Released, and nothing of it is left: no file, no limit, nothing that counts."""
    assert world.release(binding).state is RELEASED
    assert world.leftovers() == []
    assert disk.limits() == {}


def test_who_writes_more_than_he_asked_for_is_stopped_and_his_neighbour_is_not(
    node: World, disk: Disk
) -> None:
    one, two = bound(node, "b1"), bound(node, "b2")
    full = fill(one, 20)
    assert full.returncode != 0
    assert "Disk quota exceeded" in full.stderr or "No space left" in full.stderr
    assert Path(one, "file").stat().st_size <= 8 * MIB
    assert fill(two, 6).returncode == 0
    evidence = [node.evidence(binding, "scratch") for binding in ("b1", "b2")]
    assert [one["limit"] for one in evidence] == [disk.kind.words] * 2
    assert evidence[0]["number"] != evidence[1]["number"]
    assert {one["number"]: one["limited_to"] for one in evidence} == {
        number: limit for number, (limit, _) in disk.limits().items()
    }
    assert node.release("b1").state is RELEASED
    assert Path(two, "file").stat().st_size == 6 * MIB
    gone(node, disk, "b2")


def test_it_is_the_users_own_and_he_gets_to_it_through_its_mount_alone(node: World, disk: Disk) -> None:
    point = bound(node)
    status = os.stat(point)
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (ALICE.uid, ALICE.gid, 0o700)
    assert as_alice(point, "touch", "mine").returncode == 0
    above = directory(node).stat()
    assert (above.st_uid, above.st_mode & 0o777) == (0, 0o700)
    gone(node, disk)


def test_what_is_used_is_known(node: World, disk: Disk) -> None:
    point = bound(node)
    assert fill(point, 3).returncode == 0
    os.sync()
    node.executor.check()
    held = [kept.get(Progress) for kept in node.executor.entries["b1"].progress.values()]
    [used] = [one.used for one in held if one is not None]
    assert used is not None
    assert 3 * MIB <= used < 4 * MIB
    gone(node, disk)


def test_a_limit_that_was_changed_is_set_again(node: World, disk: Disk) -> None:
    bound(node)
    number = node.evidence("b1", "scratch")["number"]
    disk.set_limit(number, 0)
    node.executor.check()
    assert disk.limits()[number][0] == 8 * MIB
    assert node.report("b1").conditions == []
    gone(node, disk)


def test_a_mount_that_was_taken_off_comes_back_with_what_is_in_it(node: World, disk: Disk) -> None:
    point = bound(node)
    Path(point, "result").write_text("precious")
    syscalls.umount2(point, 0)
    node.executor.check()
    assert Path(point, "result").read_text() == "precious"
    node.restart()
    node.executor.check()
    assert Path(point, "result").read_text() == "precious"
    gone(node, disk)


def test_after_a_reboot_it_is_new_and_the_old_one_is_gone(node: World, disk: Disk) -> None:
    point = bound(node)
    fill(point, 8)
    syscalls.umount2(point, 0)
    node.boot = "boot-2"
    node.restart()
    node.executor.resume(node.instances)
    assert node.settled("b1").state is READY
    assert os.listdir(point) == []
    assert len(disk.limits()) == 1
    gone(node, disk)


@pytest.mark.parametrize("disk", ["xfs", "ext4"], indirect=True)
def test_a_project_that_anybody_uses_is_given_to_nobody_else(node: World, disk: Disk) -> None:
    """Not one of another claim that is made in the same moment, not one that an admin has set a limit for."""
    first = PROJECTS[zlib.crc32(b"b1") % len(PROJECTS)]
    twin = next(
        name
        for name in (f"b{number}" for number in range(2, 1_000_000))
        if PROJECTS[zlib.crc32(name.encode()) % len(PROJECTS)] == first
    )
    disk.set_limit(first + 1, MIB)
    for name in ("b1", twin):
        binding, claim = node.order(ASK, binding=name)
        node.executor.prepare(op_id=name, epoch=1, binding=binding, claim=claim, instances=node.instances)
    assert [node.settled(name).state for name in ("b1", twin)] == [READY, READY]
    numbers = [node.evidence(name, "scratch")["number"] for name in ("b1", twin)]
    assert numbers == [first, first + 2]
    assert node.release("b1").state is node.release(twin).state is RELEASED
    assert list(disk.limits()) == [first + 1]


@pytest.mark.parametrize("disk", ["xfs", "ext4"], indirect=True)
def test_a_directory_that_its_user_took_out_of_its_project_is_put_back(node: World, disk: Disk) -> None:
    point = bound(node)
    fd = os.open(point, os.O_RDONLY)
    quota.assign(fd, 0)
    node.executor.check()
    assert quota.project(fd) == (node.evidence("b1", "scratch")["number"], True)
    os.close(fd)
    gone(node, disk)


@pytest.mark.parametrize("disk", ["btrfs"], indirect=True)
def test_subvolumes_of_the_users_own_are_named_and_go_with_the_rest(node: World, disk: Disk) -> None:
    """They have no limit, and anybody can make them."""
    point = bound(node)
    for words in ("create one", "create one/two", "snapshot -r one fixed"):
        assert as_alice(point, "btrfs", "subvolume", *words.split()).returncode == 0
    fill(point, 8)
    node.executor.check()
    report = node.report("b1")
    assert report.conditions == [Condition.DEGRADED]
    assert "there are 3 subvolumes in it, which have no limit" in report.note
    gone(node, disk)


def forget_all(node: World) -> None:
    """As on a host on which no agent has been before: a group of ours would say that one has."""
    for name in ("claims.sqlite", "claims.head"):
        (node.place / "state" / name).unlink()
    for group in node.group.children():
        group.kill()
        node.until(group.remove)


def test_what_no_binding_owns_is_found_and_removed_with_its_limit(node: World, disk: Disk) -> None:
    point = bound(node)
    fill(point, 2)
    syscalls.umount2(point, 0)
    node.stop()
    forget_all(node)
    node.settings = msgspec.structs.replace(node.settings, orphans=Orphans.CLEAN)
    node.start()
    node.executor.scan()
    assert not directory(node).exists()
    assert disk.limits() == {}


def test_what_is_still_mounted_somewhere_is_not_taken_for_lost(node: World) -> None:
    bound(node)
    node.stop()
    forget_all(node)
    node.start()
    node.executor.scan()
    assert f"scratch {directory(node)}" in node.executor.orphans
    assert directory(node).exists()


def scratch(limit: Limit) -> Scratch:
    return Scratch(root="/scratch", name="b1", point="/p", bytes=1, user="alice", limit=limit)


NEITHER = {"project": "it does not", "qgroup": "it is not btrfs"}


@pytest.mark.parametrize(
    ("ways", "way"),
    [
        (NEITHER, "file"),
        ({**NEITHER, "project": ""}, "project"),
        ({**NEITHER, "qgroup": ""}, "qgroup"),
    ],
)
def test_what_the_file_system_offers_is_taken(ways: dict[str, str], way: str) -> None:
    assert way_of(scratch(Limit.AUTO), ways) == way
    if way != "file":
        assert way_of(scratch(Limit(way)), ways) == way


@pytest.mark.parametrize("limit", [Limit.PROJECT, Limit.QGROUP])
def test_a_limit_that_is_asked_for_by_name_is_not_replaced_by_another(limit: Limit) -> None:
    with pytest.raises(StepFailed, match=f"limits by {limit}, but it"):
        way_of(scratch(limit), NEITHER)


def test_an_admin_can_have_files_where_quotas_are(node: World, disk: Disk) -> None:
    profile = node.settings.profiles["default"]
    roots = {"quota": ScratchRoot(path=str(disk.root), limit=Limit.FILE)}
    changed = msgspec.structs.replace(profile, scratch=roots)
    node.settings = msgspec.structs.replace(node.settings, profiles={"default": changed})
    node.restart()
    bound(node)
    assert node.evidence("b1", "scratch")["limit"] == "ext4 in a file"
    gone(node, disk)


@pytest.mark.parametrize("disk", ["xfs", "ext4"], indirect=True)
def test_a_job_on_a_shared_volume_can_have_a_limit_too(node: World, disk: Disk) -> None:
    shared_root(node, disk)
    assert node.bind(SHARED, binding="b1").state is READY
    place = Path(str(node.evidence("b1", "shared")["path"]))
    number = node.evidence("b1", "shared")["project"]
    full = fill(f"{place}/out", 20)
    assert full.returncode != 0
    assert fill(f"{place}/err", 1).returncode != 0, "all of its directories together"
    [(found, (limit, used))] = disk.limits().items()
    assert (found, limit) == (number, 8 * MIB)
    assert used <= 8 * MIB
    node.restart()
    assert node.release("b1").state is RELEASED
    assert list(place.parent.parent.glob("*/*")) == []
    assert disk.limits() == {}


@pytest.mark.parametrize("disk", ["btrfs"], indirect=True)
def test_a_shared_volume_that_cannot_keep_to_a_limit_gives_no_directory(node: World, disk: Disk) -> None:
    shared_root(node, disk)
    report = node.bind(SHARED, binding="b1")
    assert report.state is FAILED
    assert "it does not keep to project quotas" in report.reason
    assert list(disk.root.iterdir()) == []


SHARED = Ask(shared=[SharedAsk(volume="limited")])


def shared_root(world: World, disk: Disk) -> None:
    profile = world.settings.profiles["default"]
    volume = SharedVolume(path=str(disk.root), retention_s=0, size_bytes=8 * MIB)
    changed = msgspec.structs.replace(profile, shared={"limited": volume})
    world.settings = msgspec.structs.replace(world.settings, profiles={"default": changed})
    world.restart()


def test_a_strangers_directory_of_our_name_is_refused_in_words_and_stays(node: World, disk: Disk) -> None:
    theirs = directory(node)
    theirs.mkdir()
    (theirs / "file").write_text("theirs")
    report = node.bind(ASK, binding="b1")
    assert report.state is FAILED
    assert "it was there before, and no agent has written its name on it" in report.reason
    assert str(theirs) in report.reason
    assert node.release("b1").state is FAILED
    assert (theirs / "file").read_text() == "theirs"
    assert disk.limits() == {}
