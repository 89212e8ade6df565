"""C-CSI-01 to C-CSI-06: mounts that are never doubled, never lost, never writable by accident."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.linux.test_mountapi import bind as bind_mount
from tests.prepare.test_shared_marks import covered
from tests.prepare.world import World
from xce.linux import mountinfo, syscalls
from xce.model.claim import AccessMode, Ask, BindingState, Condition, MountAsk
from xce.prepare.errand import bind as mount_errand
from xce.prepare.errand import loop as loop_errand
from xce.prepare.errand import make as make_errand

pytestmark = pytest.mark.root

DATA = Ask(mounts=[MountAsk(name="data", source="data")])
STAGED = Ask(mounts=[MountAsk(name="cache", source="staged")])


def entries(point: str) -> list[mountinfo.Mount]:
    return [mount for mount in mountinfo.read() if mount.point == point]


def point_of(world: World, binding: str, kind: str = "bind") -> str:
    point: str = world.evidence(binding, kind)["point"]
    return point


def test_c_csi_01_repeated_orders_mount_once_and_one_release_unmounts(world: World) -> None:
    report = world.bind(DATA, binding="b1", op_id="first")
    point = point_of(world, "b1")
    for op_id in ("first", "second", "second"):
        assert world.bind(DATA, binding="b1", op_id=op_id).state is BindingState.READY
        world.restart()
        world.executor.check()
    assert len(entries(point)) == 1
    assert report.state is BindingState.READY
    assert world.release("b1").state is BindingState.RELEASED
    assert entries(point) == []
    assert world.release("b1").state is BindingState.RELEASED


def test_c_csi_01_a_place_with_another_mount_is_refused_and_that_stays(world: World, tmp_path: Path) -> None:
    place = Path(world.settings.directory, "b1", "data")
    place.mkdir(parents=True)
    bind_mount(tmp_path / "shared", place)
    report = world.bind(DATA, binding="b1")
    assert report.state is BindingState.FAILED
    assert "is taken by another mount" in report.reason
    assert [entry.root.endswith("/shared") for entry in entries(str(place))] == [True]
    syscalls.umount2(str(place), 0)


def test_c_csi_02_a_staged_volume_goes_with_the_last_of_its_users_across_a_restart(world: World) -> None:
    one, two = world.bind(STAGED), world.bind(STAGED)
    staged = point_of(world, one.binding, "stage")
    kept = Path(point_of(world, two.binding), "file")
    kept.write_text("precious")
    device = kept.stat().st_dev
    world.restart()
    world.release(one.binding)
    assert len(entries(staged)) == 1
    assert (kept.read_text(), kept.stat().st_dev) == ("precious", device)
    world.release(two.binding)
    assert entries(staged) == []
    assert world.leftovers() == []


def test_c_csi_03_a_busy_mount_is_waited_for_and_its_data_stays(world: World) -> None:
    for number in range(100):
        Path(world.place, "data", str(number)).write_text("x")
    report = world.bind(DATA)
    point = point_of(world, report.binding)
    user = subprocess.Popen(["sleep", "60"], stdin=open(f"{point}/7"))  # noqa: SIM115
    waiting = world.release(report.binding)
    assert (waiting.state, waiting.conditions) == (BindingState.RELEASING, [Condition.BLOCKED])
    assert f"{point} is busy: pid {user.pid} (sleep): fd 0" in waiting.note
    assert len(list(Path(world.place, "data").glob("[0-9]*"))) == 100
    user.kill()
    user.wait()
    world.until(lambda: world.report(report.binding).state is BindingState.RELEASED)
    assert len(list(Path(world.place, "data").glob("[0-9]*"))) == 100


def test_a_copy_in_another_mount_namespace_blocks_and_is_named(world: World) -> None:
    report = world.bind(DATA)
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", "echo there; exec sleep 60"]
    other = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"there\n"
    waiting = world.release(report.binding)
    assert f"is still mounted elsewhere: pid {other.pid}" in waiting.note
    assert "mount namespace mnt:[" in waiting.note
    other.kill()
    other.wait()
    world.until(lambda: world.report(report.binding).state is BindingState.RELEASED)


@pytest.mark.parametrize(
    ("ask", "access"),
    [
        (Ask(mounts=[MountAsk(name="data", source="data", read_only=True)]), AccessMode.RWX),
        (DATA, AccessMode.ROX),
        (Ask(mounts=[MountAsk(name="data", source="fixed")]), AccessMode.RWX),
    ],
    ids=["request", "access", "volume"],
)
def test_c_csi_04_read_only_is_read_only_whoever_says_it(world: World, ask: Ask, access: AccessMode) -> None:
    report = world.bind(ask, access=access)
    [entry] = entries(point_of(world, report.binding))
    assert "ro" in entry.options.split(",")
    with pytest.raises(OSError, match="Read-only file system"):
        Path(entry.point, "new").write_text("")


def test_c_csi_04_the_mount_itself_is_made_read_only_not_made_so_afterwards(tmp_path: Path) -> None:
    for name in ("source", "point"):
        (tmp_path / name).mkdir()
    point = str(tmp_path / "point")
    mount_errand(source=str(tmp_path / "source"), path="", point=point, read_only=True)
    [entry] = entries(point)
    assert {"ro", "nosuid", "nodev"} <= set(entry.options.split(","))
    syscalls.umount2(point, 0)


def test_c_csi_04_a_mount_that_became_writable_is_made_read_only_again(world: World) -> None:
    report = world.bind(Ask(mounts=[MountAsk(name="data", source="fixed")]))
    point = point_of(world, report.binding)
    subprocess.run(["mount", "-o", "remount,bind,rw", point], check=True)
    world.until(lambda: "ro" in entries(point)[0].options.split(","))
    assert world.report(report.binding).conditions == []


@pytest.mark.parametrize(
    "path", ["link-to-etc", "a/../../..", "dir/link/inner", "dir/link", "/etc", "dir/../dir", "none"]
)
def test_c_csi_06_a_way_out_of_the_volume_fails_and_nothing_is_mounted(world: World, path: str) -> None:
    """A link that stays inside is refused as well: one rule, and nothing to be swapped."""
    data = Path(world.place, "data")
    (data / "link-to-etc").symlink_to("/etc")
    (data / "dir/inner").mkdir()
    (data / "dir/link").symlink_to("inner")
    report = world.bind(Ask(mounts=[MountAsk(name="data", source="data", subdirectory=path)]))
    assert report.state is BindingState.FAILED
    assert "cannot mount" in report.reason
    assert world.leftovers() == []


def test_a_mount_that_vanished_is_put_back(world: World) -> None:
    report = world.bind(DATA)
    point = point_of(world, report.binding)
    syscalls.umount2(point, 0)
    world.until(lambda: entries(point))
    assert Path(point, "file").read_text() == "data"
    assert world.report(report.binding).conditions == []


def test_something_mounted_over_it_is_told_and_left_alone(world: World, tmp_path: Path) -> None:
    report = world.bind(DATA)
    point = point_of(world, report.binding)
    bind_mount(tmp_path / "shared", Path(point))
    world.until(lambda: world.report(report.binding).conditions == [Condition.DEGRADED])
    assert f"something else is mounted over {point}" in world.report(report.binding).note
    waiting = world.release(report.binding)
    assert "another mount" in waiting.note
    syscalls.umount2(point, 0)
    world.until(lambda: world.report(report.binding).state is BindingState.RELEASED)


def test_mounts_that_nobody_would_see_are_not_made(world: World) -> None:
    """C-PKG-04, as far as it is decided here: the agent has a mount namespace of its own."""
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", "echo there; exec sleep 60"]
    other = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    (trial := Path(world.settings.directory, ".visible")).mkdir()
    make_errand(type="tmpfs", options={"source": "xce-trial"}, point=str(trial))  # of one that was killed
    world.overrides["namespace"] = other.pid
    world.restart()
    assert world.mounts() == []
    assert world.bind(Ask()).state is BindingState.READY
    report = world.bind(DATA)
    assert report.state is BindingState.FAILED
    assert "mounts would not be visible outside" in report.reason
    other.kill()
    other.wait()


@pytest.mark.parametrize("root", ["memory", "disk"])
def test_scratch_holds_no_more_than_asked_and_is_the_users_own(world: World, root: str) -> None:
    report = world.bind(Ask(scratch_bytes=8 << 20, scratch=root))
    assert report.state is BindingState.READY, report.reason
    point = point_of(world, report.binding, "scratch")
    Path(point, "good").write_bytes(bytes(6 << 20))
    with pytest.raises(OSError, match="No space left"):
        Path(point, "big").write_bytes(bytes(4 << 20))
    status = os.stat(point)
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (4711, 4711, 0o700)
    assert world.release(report.binding).state is BindingState.RELEASED
    assert world.leftovers() == []


def test_scratch_on_disk_that_was_taken_off_comes_back_with_what_is_in_it(world: World) -> None:
    report = world.bind(Ask(scratch_bytes=8 << 20, scratch="disk"))
    point = point_of(world, report.binding, "scratch")
    Path(point, "result").write_text("precious")
    syscalls.umount2(point, 0)
    world.until(lambda: entries(point))
    assert Path(point, "result").read_text() == "precious"


@pytest.mark.parametrize(("root", "why"), [("disk", ""), ("memory", "MiB of memory, swap included")])
def test_scratch_that_does_not_fit_on_its_root_fails_and_leaves_nothing(
    world: World, root: str, why: str
) -> None:
    """The kernel would take a tmpfs of any size, and the job would fail, or others with it."""
    report = world.bind(Ask(scratch_bytes=1 << 50, scratch=root))
    assert report.state is BindingState.FAILED
    assert "cannot make scratch of" in report.reason
    assert why in report.reason
    assert world.leftovers() == []


def test_scratch_that_does_not_fit_does_not_fill_the_file_system_first(world: World) -> None:
    """The journal of this node, or anybody's files, may lie there."""
    root = world.place / "scratch"
    room = os.statvfs(root)
    owner = world.node.owner
    with pytest.raises(OSError, match="No space left"):
        loop_errand(
            root=str(root),
            name="xce-b1.img",
            bytes=2 * room.f_bavail * room.f_frsize,
            point=str(root),
            uid=0,
            gid=0,
            new=True,
            owner=list(owner),
            binding="b1",
        )
    assert os.stat(root / "xce-b1.img").st_blocks < 16


def test_scratch_below_what_covers_its_root_is_not_said_to_be_gone(world: World) -> None:
    root = world.place / "scratch"
    report = world.bind(Ask(scratch_bytes=4 << 20, scratch="disk"), binding="b1")
    assert report.state is BindingState.READY
    with covered(root):
        waiting = world.release("b1")
        assert (waiting.state, waiting.conditions) == (BindingState.RELEASING, [Condition.BLOCKED])
        assert f"{root}/xce-b1.img: tmpfs 0:" in waiting.note
        assert ": mount that again; if it is gone for good" in waiting.note
        world.restart()
        assert world.settled("b1").conditions == [Condition.BLOCKED]
    assert world.over("b1").state is BindingState.RELEASED
    assert world.leftovers() == []


def test_a_mount_errand_never_stacks_on_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(OSError, match=r"Not a directory|Too many"):
        mount_errand(source=str(tmp_path / "real"), path="", point=str(tmp_path / "link"), read_only=False)
