"""Mounts by descriptor, and what statx and mountinfo say of them. Run in a mount namespace of its own."""

import errno
import os
import stat
from pathlib import Path

import pytest

from xce.linux import beneath, mountapi, mountinfo, syscalls

pytestmark = pytest.mark.root


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "file").write_text("hello")
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def bind(source: Path, target: Path, attributes: int = 0) -> int:
    """Bind mount; the id of the mount."""
    here, there = beneath.open_root(str(source)), beneath.open_root(str(target))
    tree = mountapi.clone(here)
    mountapi.set_attributes(tree, attributes, propagation=mountapi.MS_PRIVATE)
    mountapi.attach(tree, there)
    number = mountapi.place(tree).mount
    for fd in (here, there, tree):
        os.close(fd)
    return number


def test_a_bind_mount_is_found_again_by_its_id(source: Path, target: Path) -> None:
    """`os.path.ismount` says no here: the device is the same."""
    number = bind(source, target)
    [entry] = [mount for mount in mountinfo.read() if mount.id == number]
    assert entry.point == str(target)
    assert not os.path.ismount(target)
    parent = os.open(target.parent, os.O_PATH)
    assert mountapi.place_at(parent, b"target") == (number, True)
    mountapi.unmount(str(target))
    assert not mountapi.place_at(parent, b"target").root
    os.close(parent)


def test_a_read_only_bind_is_read_only_from_its_first_moment(source: Path, target: Path) -> None:
    number = bind(source, target, mountapi.MOUNT_ATTR_RDONLY | mountapi.MOUNT_ATTR_NODEV)
    [entry] = [mount for mount in mountinfo.read() if mount.id == number]
    assert {"ro", "nodev"} <= set(entry.options.split(","))
    with pytest.raises(OSError, match="Read-only") as refused:
        (target / "new").write_text("")
    assert refused.value.errno == errno.EROFS
    (source / "new").write_text("the source itself is as it was")
    mountapi.unmount(str(target))


def test_a_mount_in_use_is_not_hidden_but_busy(source: Path, target: Path) -> None:
    bind(source, target)
    with (target / "file").open(), pytest.raises(OSError, match="busy"):
        mountapi.unmount(str(target))
    assert (target / "file").exists()
    mountapi.unmount(str(target))
    assert not (target / "file").exists()


def test_a_tmpfs_holds_no_more_than_its_size(target: Path) -> None:
    there = beneath.open_root(str(target))
    tree = mountapi.make("tmpfs", {"size": "1m", "mode": "0700"}, attributes=mountapi.MOUNT_ATTR_NOSUID)
    mountapi.attach(tree, there)
    os.close(tree)
    os.close(there)
    with pytest.raises(OSError, match="No space"):
        (target / "big").write_bytes(bytes(2 << 20))
    mountapi.unmount(str(target))


def test_what_cannot_be_made_is_said_in_the_kernels_words() -> None:
    with pytest.raises(OSError, match=r"cannot make tmpfs: .*no-such-option"):
        mountapi.make("tmpfs", {"no-such-option": "1"})
    with pytest.raises(OSError, match="No such device"):
        mountapi.make("no-such-file-system", {})


def test_file_systems_that_answer_by_themselves_are_told_from_others() -> None:
    assert not mountinfo.can_hang("ext4")
    assert mountinfo.can_hang("nfs4")
    assert mountinfo.can_hang("fuse.sshfs")
    assert mountinfo.can_hang("never-heard-of")


def test_what_a_mount_covers_is_seen_without_it_and_can_be_written_on(tmp_path: Path) -> None:
    """As for a mark of whose the mount is, long after it was made."""
    (tmp_path / "source").mkdir()
    (point := tmp_path / "point").mkdir()
    (point / "below").write_text("covered")
    bind(tmp_path / "source", point)
    with mountapi.uncovered(str(tmp_path)) as below:
        assert os.listdir(f"{below}/point") == ["below"]
        os.chmod(f"{below}/point", 0o700)
    assert os.listdir(point) == []
    syscalls.umount2(str(point), 0)
    assert stat.S_IMODE(point.stat().st_mode) == 0o700
