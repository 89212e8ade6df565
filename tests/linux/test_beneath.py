"""Work below a directory that others write to: nothing outside is seen, touched or deleted."""

import ctypes
import errno
import os
import threading
from pathlib import Path

import pytest

from tests.linux.test_mountapi import bind
from xce.linux import beneath, mountapi

_libc = ctypes.CDLL(None)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A user's tree with links out of it, and beside it what must survive."""
    (tmp_path / "outside/deep").mkdir(parents=True)
    for name in ("one", "deep/two"):
        (tmp_path / "outside" / name).write_text("precious")
    top = tmp_path / "job"
    (top / "a/b/c").mkdir(parents=True)
    (top / "a/file").write_text("x")
    (top / "a/last").symlink_to(tmp_path / "outside")
    (top / "a/b/up").symlink_to("../../..")
    (top / "a/dangling").symlink_to("nowhere")
    return top


def survivors(tmp_path: Path) -> list[str]:
    return sorted(str(path.relative_to(tmp_path / "outside")) for path in (tmp_path / "outside").rglob("*"))


ALL = ["deep", "deep/two", "one"]


def remove(top: Path, budget: int = 1_000_000) -> list[beneath.Left]:
    parent = os.open(top.parent, os.O_PATH)
    try:
        return beneath.remove_tree(parent, top.name, budget=budget)
    finally:
        os.close(parent)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("a/last", errno.ELOOP),
        ("a/last/one", errno.ELOOP),
        ("a/b/up", errno.ELOOP),
        ("a/../a", errno.EINVAL),
        ("../outside", errno.EINVAL),
        ("/etc", errno.EINVAL),
        ("", errno.EINVAL),
        ("a//b", errno.EINVAL),
        ("a/none", errno.ENOENT),
    ],
)
def test_only_plain_paths_without_links_are_opened(tree: Path, path: str, code: int) -> None:
    root = beneath.open_root(str(tree))
    with pytest.raises(OSError, match=r".") as refused:
        beneath.open_beneath(root, path)
    assert refused.value.errno == code
    fd = beneath.open_beneath(root, "a/b")
    assert os.path.samestat(os.fstat(fd), (tree / "a/b").stat())
    os.close(fd)
    os.close(root)


def test_a_tree_is_removed_and_its_links_lead_nowhere(tree: Path, tmp_path: Path) -> None:
    assert remove(tree) == []
    assert not tree.exists()
    assert survivors(tmp_path) == ALL
    assert remove(tree) == []  # and once more: nothing to do


def test_a_tree_deeper_than_descriptors_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "job"
    top.mkdir()
    at = os.open(top, os.O_RDONLY)
    for _ in range(beneath.DEPTH * 5):
        below = beneath.make_directory(at, "d" * 200)
        os.close(at)
        at = below
    os.close(at)
    before = len(os.listdir("/proc/self/fd"))
    assert remove(top) == []
    assert not top.exists()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_small_budget_ends_early_and_the_next_call_goes_on(tmp_path: Path) -> None:
    top = tmp_path / "job"
    top.mkdir()
    for number in range(25):
        (top / str(number)).write_text("")
    assert [left.why for left in remove(top, budget=10)] == ["not finished yet"]
    assert len(list(top.iterdir())) == 15
    remove(top, budget=10)
    assert remove(top, budget=10) == []


@pytest.mark.root
def test_a_mount_in_the_tree_is_left_and_named(tree: Path, tmp_path: Path) -> None:
    (tree / "a/b/c").mkdir(exist_ok=True)
    bind(tmp_path / "outside", tree / "a/b/c")
    assert remove(tree) == [("job/a/b/c", "a file system is mounted on it")]
    assert survivors(tmp_path) == ALL
    assert not (tree / "a/file").exists()
    mountapi.unmount(str(tree / "a/b/c"))
    assert remove(tree) == []


@pytest.mark.root
def test_a_tree_that_is_itself_a_mount_is_left_whole(tree: Path, tmp_path: Path) -> None:
    bind(tmp_path / "outside", tree)
    assert remove(tree) == [("job", "a file system is mounted on it")]
    assert survivors(tmp_path) == ALL
    mountapi.unmount(str(tree))


def exchange(one: Path, other: Path) -> None:
    """Swap two names at once, if both are there: renameat2(2) with RENAME_EXCHANGE."""
    _libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2)


def test_c_dir_05_a_swap_during_the_removal_leads_nowhere_in_a_thousand_rounds(tmp_path: Path) -> None:
    """A loop swaps a directory of the tree for a link to the outside and back, as fast as it can."""
    (tmp_path / "outside/deep").mkdir(parents=True)
    for name in ("one", "deep/two"):
        (tmp_path / "outside" / name).write_text("precious")
    top, spare, new = tmp_path / "job", tmp_path / "spare", tmp_path / "new"
    stop, swapped = threading.Event(), []

    def swap() -> None:
        while not stop.is_set():
            exchange(top / "d", spare)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(1000):
            (new / "d/deep").mkdir(parents=True)
            (new / "d/one").write_text("the job's")
            if spare.is_dir() and not spare.is_symlink():
                spare.rename(new / "old")
                swapped.append(True)
            if not spare.is_symlink():
                spare.symlink_to(tmp_path / "outside")
            new.rename(top)
            while remove(top):
                pass  # what could not be removed was named; it is tried again
    finally:
        stop.set()
        swapper.join()
    assert swapped
    assert survivors(tmp_path) == ALL
