"""Instances that are block devices: what is used, in whatever way, is neither given away nor given back."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest

from tests.linux.test_holders import Sitter
from tests.linux.test_mappings import MAPPED
from tests.prepare.world import World, number
from xce.linux import holders, mappings
from xce.model.claim import Ask, BindingState
from xce.model.instance import Instance

pytestmark = pytest.mark.root


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def loop(image: Path) -> Iterator[str]:
    """A block device of a file."""
    image.write_bytes(bytes(4 << 20))
    try:
        path = run("losetup", "-f", "--show", str(image))
    except (subprocess.CalledProcessError, OSError) as error:
        pytest.skip(f"no loop devices here: {error}")
    try:
        yield path
    finally:
        run("losetup", "-d", path)


@pytest.fixture
def disk(world: World, tmp_path: Path) -> Iterator[str]:
    """The device file of the instance `card-disk`."""
    with loop(tmp_path / "image") as path:
        profile = msgspec.structs.replace(world.settings.profiles["default"], device_paths=[path])
        world.settings = msgspec.structs.replace(world.settings, profiles={"default": profile})
        instance = Instance(id="card-disk", kind="card", attributes={"device_files": [path]})
        world.instances["card-disk"] = instance
        world.restart()
        yield path


Use: TypeAlias = Callable[[str, Path], contextlib.AbstractContextManager[str]]
"""Of the device file, with a place for what it needs; gives words in which it is told."""


@contextlib.contextmanager
def opened(disk: str, _: Path) -> Iterator[str]:
    sitter = Sitter(f"f = open({disk!r})")
    try:
        yield f"pid {sitter.process.pid} (python): fd 3 on block {number(disk)}"
    finally:
        sitter.leave()


@contextlib.contextmanager
def in_memory(disk: str, _: Path) -> Iterator[str]:
    if mappings.find() is None:
        pytest.skip("this kernel does not list mappings without waiting")
    sitter = Sitter(MAPPED.format(path=disk))
    try:
        yield f"pid {sitter.process.pid} (python): mapping of block {number(disk)}"
    finally:
        sitter.leave()


@contextlib.contextmanager
def mounted(disk: str, place: Path) -> Iterator[str]:
    (place / "mnt").mkdir(exist_ok=True)
    run("mkfs.ext4", "-q", disk)
    run("mount", disk, str(place / "mnt"))
    try:
        yield f"block {number(disk)} is mounted on {place}/mnt"
    finally:
        run("umount", str(place / "mnt"))


@contextlib.contextmanager
def mounted_elsewhere(disk: str, place: Path) -> Iterator[str]:
    (place / "mnt").mkdir(exist_ok=True)
    run("mkfs.ext4", "-q", disk)
    mount = f'mount {disk} {place}/mnt; exec "$@"'
    sitter = Sitter("pass", before=["unshare", "-m", "--propagation", "private", "sh", "-c", mount, "sh"])
    try:
        yield f"block {number(disk)} is mounted or in use by the kernel where it is not seen"
    finally:
        sitter.leave()


@contextlib.contextmanager
def below_another_loop(disk: str, _: Path) -> Iterator[str]:
    other = run("losetup", "-f", "--show", disk)
    try:
        yield f"block {number(disk)} is {os.path.basename(other)} is on it"
    finally:
        run("losetup", "-d", other)


@contextlib.contextmanager
def swap(disk: str, _: Path) -> Iterator[str]:
    run("mkswap", disk)
    run("swapon", disk)
    try:
        yield f"block {number(disk)} is used as swap"
    finally:
        run("swapoff", disk)


@contextlib.contextmanager
def below_device_mapper(disk: str, _: Path) -> Iterator[str]:
    name = f"xce-test-{os.getpid()}"
    try:
        run("dmsetup", "create", name, "--table", f"0 2048 linear {disk} 0")
    except (subprocess.CalledProcessError, OSError):
        pytest.skip("no device mapper here")
    try:
        yield f"block {number(disk)}"
    finally:
        run("dmsetup", "remove", name)


@pytest.mark.parametrize(
    "use", [opened, in_memory, mounted, mounted_elsewhere, below_another_loop, swap, below_device_mapper]
)
def test_a_block_device_that_is_used_is_neither_given_away_nor_given_back(
    world: World, disk: str, tmp_path: Path, use: Use
) -> None:
    with use(disk, tmp_path) as words:
        refused = world.bind(Ask(), cards=["disk"])
        assert refused.state is BindingState.FAILED
        assert words in refused.reason
    report = world.bind(Ask(), cards=["disk"])
    assert report.state is BindingState.READY, report
    with use(disk, tmp_path) as words:
        held = world.release(report.binding)
        assert "blocked" in held.conditions
        assert words in held.note
        world.until(lambda: world.report(report.binding).quarantine.keys() == {"card-disk"})
    world.until(lambda: world.report(report.binding).state is BindingState.RELEASED)


@pytest.mark.parametrize("use", [opened, in_memory])
def test_a_daemon_of_the_profile_may_have_the_device_at_any_time(
    world: World, disk: str, tmp_path: Path, use: Use
) -> None:
    profile = msgspec.structs.replace(world.settings.profiles["default"], daemons=["python"])
    world.settings = msgspec.structs.replace(world.settings, profiles={"default": profile})
    world.restart()
    with use(disk, tmp_path):
        report = world.bind(Ask(), cards=["disk"])
        assert (report.state, report.reason) == (BindingState.READY, "")
        assert world.release(report.binding).state is BindingState.RELEASED


def test_a_process_that_never_lets_its_mappings_be_seen_does_not_keep_a_release(
    world: World, disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs in a file system that does not answer, for example, and holds their lock."""
    looks = []

    def unseen(*_: object) -> tuple[list[holders.Holder], list[holders.Holder]]:
        looks.append(1)
        return [], [holders.Holder(7, "cp", 1, "mappings that are being changed")]

    report = world.bind(Ask(), cards=["disk"])
    monkeypatch.setattr(world.node.users, "mapped", unseen)
    assert world.release(report.binding).state is BindingState.RELEASED
    assert len(looks) >= 10, "it was looked at again"
