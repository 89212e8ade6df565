"""All open descriptors of character devices, as the kernel lists them; nothing is guessed about a kernel."""

import contextlib
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from xce.linux import bpf, btf, holders, openfiles
from xce.linux.btf import BtfRefused
from xce.linux.openfiles import DeviceNumber, OpenFile, OpenFiles

pytestmark = pytest.mark.root
FULL = DeviceNumber("c", os.makedev(1, 7))
_OF_A_THREAD = """
import ctypes, os, sys, threading
def alone():
    assert ctypes.CDLL(None).unshare(0x400) == 0  # CLONE_FILES: a table of its own
    print(os.open("/dev/full", os.O_RDONLY), flush=True)
    sys.stdin.read()
threading.Thread(target=alone).start()
"""


@pytest.fixture(name="files")
def make_files() -> Iterator[OpenFiles]:
    try:
        files = OpenFiles()
    except (OSError, BtfRefused) as error:
        pytest.skip(f"this kernel has no iterator over open files: {error}")
    yield files
    files.close()


def test_they_are_those_that_proc_shows(files: OpenFiles) -> None:
    with open("/dev/full", "rb") as full, open("/dev/zero", "rb") as zero:
        listed = {one for one in files() if one.pid == os.getpid()}
        mine = set()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                found = os.stat(f"/proc/self/fd/{name}")
                if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
                    kind = "b" if stat.S_ISBLK(found.st_mode) else "c"
                    mine.add(OpenFile(os.getpid(), int(name), DeviceNumber(kind, found.st_rdev)))
        assert listed == mine
        assert {one.fd for one in listed} >= {full.fileno(), zero.fileno()}
    assert not [one for one in files() if one.pid == os.getpid() and one.device == FULL]


def test_a_descriptor_of_one_thread_alone_is_seen_though_proc_shows_it_nowhere(files: OpenFiles) -> None:
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _OF_A_THREAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    number = int(child.stdout.readline())
    assert OpenFile(child.pid, number, FULL) in set(files())
    devices = holders.Devices()
    assert [one.pid for one in devices({FULL})] == [child.pid]
    assert holders.of_device({FULL}) == []
    child.communicate()
    assert devices({FULL}) == []
    devices.close()


def test_where_the_kernel_does_not_let_us_proc_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(bpf, "load", refused)
    devices = holders.Devices()
    with open("/dev/full", "rb"):
        assert [one.pid for one in devices({FULL})] == [os.getpid()]
    assert devices._files is None
    devices.close()


def test_a_list_without_our_own_files_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a PID namespace its numbers would be others than ours."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert openfiles.find() is None


def types(*entries: tuple[int, str, int, bytes], vlen: int = 0) -> bytes:
    """A BTF file: kind, name, size, and what follows."""
    names, body = b"\0", b""
    for kind, name, size, rest in entries:
        place = len(names)
        names += name.encode() + b"\0"
        body += struct.pack("=III", place, kind << 24 | vlen, size) + rest
    head = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(body), len(body), len(names))
    return head + body + names


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (types((4, "inode", 8, b""), (4, "inode", 8, b"")), "has inode twice"),
        (types((4, "file", 8, b"")), "has no inode"),
        (types((4, "inode", 8, b"")), "has no member i_rdev"),
        (b"\x9f\xeb\x02" + bytes(40), "version 2 is not known"),
        (b"\x9f\xeb", "is not understood"),
    ],
)
def test_types_that_are_not_clear_are_refused(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "btf").write_bytes(data)
    with pytest.raises(BtfRefused, match=why):
        btf.read([], {"inode": ["i_rdev"]}, str(tmp_path / "btf"))


def test_members_and_functions_are_found_by_name(tmp_path: Path) -> None:
    data = types((12, "walk", 1, bytes(12)), (4, "inode", 8, struct.pack("=III", 1, 0, 96)), vlen=1)
    (tmp_path / "btf").write_bytes(data.replace(b"\0walk\0", b"\0i_no\0"))
    assert btf.read([], {"inode": ["i_no"]}, str(tmp_path / "btf")).offsets == {"inode.i_no": 12}
