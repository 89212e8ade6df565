"""Files as block devices, as long as somebody uses them."""

import os
from pathlib import Path

import pytest

from tests.linux.surroundings import need_device
from xce.linux import loopdevice


@pytest.mark.root
def test_a_file_is_a_device_until_its_last_user_goes(tmp_path: Path) -> None:
    need_device("/dev/loop-control")
    image = tmp_path / "image"
    image.write_bytes(bytes(1 << 20))
    file = os.open(image, os.O_RDWR)
    path, device = loopdevice.attach(file)
    os.close(file)
    status = os.fstat(device)
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    assert loopdevice.backing(number) == str(image)
    os.pwrite(device, b"hello", 0)
    os.fsync(device)
    assert image.read_bytes()[:5] == b"hello"
    os.close(device)
    assert loopdevice.backing(number) != str(image)  # another test may have it by now
    assert path.startswith("/dev/loop")


def test_another_device_has_no_file(tmp_path: Path) -> None:
    assert loopdevice.backing("1:3") == ""


def test_a_device_is_found_by_its_file_whatever_bytes_names_of_files_have(tmp_path: Path) -> None:
    for number, file in enumerate([b"/srv/\xff\xfe", b"/srv/image (deleted)"]):
        place = tmp_path / f"block/loop{number}/loop"
        place.mkdir(parents=True)
        (place / "backing_file").write_bytes(file + b"\n")
    (tmp_path / "block/loop2/loop").mkdir(parents=True)
    assert loopdevice.having("/srv/image", str(tmp_path)) == "/dev/loop1"
    assert loopdevice.having(os.fsdecode(b"/srv/\xff\xfe"), str(tmp_path)) == "/dev/loop0"
    assert loopdevice.having("", str(tmp_path)) == "", "one without a file has none"
    assert [name for name, _ in loopdevice.attached(str(tmp_path))] == ["loop0", "loop1"]
