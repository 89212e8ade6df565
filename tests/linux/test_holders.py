"""Who uses a device or a mount is found by pid and by how, and nobody else is."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.linux.hangfs import HangingMount
from tests.linux.test_mountapi import bind
from xce.linux import holders, mountapi, mountinfo, proc
from xce.linux.openfiles import DeviceNumber

pytestmark = pytest.mark.root

FULL = DeviceNumber("c", os.makedev(1, 7))
_WAIT = "import sys\n{}\nprint('there', flush=True); sys.stdin.read()"


EXIT = 60 if platform.machine() == "x86_64" else 93
"""The call that ends one thread."""
HEADLESS = f"""
import ctypes, os, sys, threading
def stay():
    print('there', flush=True); sys.stdin.read(); os._exit(0)
threading.Thread(target=stay).start()
ctypes.CDLL(None).syscall({EXIT}, 0)
"""
"""A program whose first thread ends, while another one stays."""


class Sitter:
    """A process that holds something until `leave`."""

    def __init__(self, code: str, before: list[str] | None = None, cwd: Path | None = None) -> None:
        command = [*(before or []), sys.executable, "-I", "-S", "-c", _WAIT.format(code)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"there\n"

    def leave(self) -> None:
        self.process.communicate()


def headless(code: str, before: list[str] | None = None) -> Sitter:
    """What it holds is held by a thread, when its first one has ended."""
    sitter = Sitter(f"{code}\n{HEADLESS}", before)
    until = time.monotonic() + 10
    while (found := proc.process(sitter.process.pid)) and found.state != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)
    return sitter


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    (tmp_path / "source/file").write_bytes(bytes(4096))
    target = tmp_path / "target"
    yield bind(tmp_path / "source", target), target
    mountapi.unmount(str(target))


def test_a_process_with_the_device_open_is_named(tmp_path: Path) -> None:
    node = tmp_path / "node"  # wherever the node lies and whatever it is called
    os.mknod(node, 0o20666, FULL.number)
    sitter = Sitter(f"f = open({str(node)!r})")
    other = Sitter("f = open('/dev/zero')")
    devices = holders.Devices()
    for look in (holders.of_device, devices):
        [found] = look({FULL})
        assert found.pid == sitter.process.pid
        assert str(found).startswith(f"pid {found.pid} (python")
        assert found.how.endswith("on 1:7")
    sitter.leave()
    assert holders.of_device({FULL}) == devices({FULL}) == []
    other.leave()
    devices.close()


def test_a_process_whose_first_thread_has_ended_has_its_devices_still() -> None:
    sitter = headless("f = open('/dev/full')")
    devices = holders.Devices()
    for look in (holders.of_device, devices):
        [found] = look({FULL})
        assert (found.pid, found.how) == (sitter.process.pid, "fd 3 on 1:7")
    [(found, device)] = holders.devices_of([sitter.process.pid])
    assert (found.pid, device) == (sitter.process.pid, FULL)
    sitter.leave()
    assert holders.of_device({FULL}) == []
    devices.close()


def test_a_process_whose_first_thread_has_ended_keeps_its_mount_and_its_namespace(
    mounted: tuple[int, Path],
) -> None:
    number, point = mounted
    sitter = headless(f"f = open({str(point / 'file')!r})")
    assert [found.pid for found in holders.of_mount(number, str(point))] == [sitter.process.pid]
    sitter.leave()
    status = os.stat(point)
    sought = [holders.Sought(str(point), f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}")]
    sitter = headless("pass", before=["unshare", "-m", "--propagation", "private"])
    [found] = holders.of_copies(sought)[str(point)]
    assert found.pid == sitter.process.pid
    sitter.leave()


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("f = open({file!r})", "fd 3"),
        ("import os; os.chdir({point!r})", "current directory"),
        ("import mmap; f = open({file!r}); m = mmap.mmap(f.fileno(), 0, prot=1); f.close()", ""),
    ],
)
def test_whoever_keeps_a_mount_busy_is_named(mounted: tuple[int, Path], code: str, how: str) -> None:
    number, point = mounted
    sitter = Sitter(code.format(file=str(point / "file"), point=str(point)))
    [found] = holders.of_mount(number, str(point))
    assert found.pid == sitter.process.pid
    assert how in found.how
    sitter.leave()
    assert holders.of_mount(number, str(point)) == []


@pytest.mark.parametrize("name", ["x\x0by", "x\u2028y", "x\x85y", "x\ny"])
def test_a_copy_is_seen_whatever_its_user_has_called_its_place(
    mounted: tuple[int, Path], tmp_path: Path, name: str
) -> None:
    number, point = mounted
    mount = mountinfo.one(number)
    assert mount is not None
    place = tmp_path / name
    place.mkdir()
    sought = [holders.Sought(str(point), mount.device, lambda one: one.root == mount.root)]
    move = f"mount --bind '{point}' '{place}' && umount '{point}' && exec \"$@\""
    before = ["unshare", "-m", "--propagation", "private", "sh", "-c", move, "sh"]
    sitter = Sitter("pass", before=before)
    assert [found.pid for found in holders.of_copies(sought)[str(point)]] == [sitter.process.pid]
    sitter.leave()


def test_a_mount_copied_into_another_namespace_is_named_by_a_process_in_it(mounted: tuple[int, Path]) -> None:
    _, point = mounted
    status = os.stat(point)
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    sought = [holders.Sought(name, device) for name in (str(point), f"{point}/not-mounted")]
    assert holders.of_copies(sought) == {}
    sitter = Sitter("pass", before=["unshare", "-m", "--propagation", "private"])
    copies = holders.of_copies(sought)
    assert copies.keys() == {str(point)}
    [found] = copies[str(point)]
    assert found.pid == sitter.process.pid
    assert found.how.startswith("mount namespace mnt:[")
    sitter.leave()


def test_a_dead_file_server_does_not_keep_the_search(tmp_path: Path) -> None:
    """A process sleeps in state D in a directory of a file system that does not answer."""
    point = tmp_path / "dead"
    point.mkdir()
    dead = HangingMount(point)
    process = subprocess.Popen(["sh", "-c", f"cd {point}; ls"], stderr=subprocess.DEVNULL)
    try:
        assert dead.asked.wait(10)
        assert holders.of_device({FULL}) == []
        assert holders.of_mount(-2, "/nowhere") == []
    finally:
        dead.release()
        process.wait(10)
