"""Files as block devices, as long as somebody uses them."""

import os
from pathlib import Path

import pytest

from xce.linux import loopdevice

pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def needs_loop_devices() -> None:
    if not os.path.exists("/dev/loop-control"):
        pytest.skip("no loop devices here")


def test_a_file_is_a_device_until_its_last_user_goes(tmp_path: Path) -> None:
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
