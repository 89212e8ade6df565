"""Volumes that are devices: what the job gets, what its filter lets it do, and what is no volume's device."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.prepare.csi_world import FAILED, READY, RELEASED, CsiWorld, asked, gone, ready
from tests.prepare.world import ALICE, DENIED
from xce.linux import disks
from xce.linux.mountinfo import Mount
from xce.model.claim import AccessMode, BindingState, Consumer
from xce.model.profile import Claims, Csi, CsiVolume, Profile, Volume, problems
from xce.prepare.csi import usage

root = pytest.mark.root
TRY = """
import os, sys
for how in (os.O_RDONLY, os.O_RDWR):
    try:
        fd = os.open(sys.argv[1], how)
    except OSError as error:
        print(error.strerror)
        continue
    if how == os.O_RDWR:
        os.pwrite(fd, b"written", 512)
        os.fsync(fd)
    print("ok")
"""


def device(csi: CsiWorld, binding: str) -> Path:
    return csi.place_of(binding) / "device"


def tried(csi: CsiWorld, binding: str, path: Path | str) -> list[str]:
    """What a process of the consumer may do with a device: read, write."""
    command = csi.inside(binding, [sys.executable, "-I", "-S", "-c", TRY, str(path)])
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def loop(csi: CsiWorld) -> str:
    return f"/dev/loop{os.minor(device_number(csi))}"


def device_number(csi: CsiWorld) -> int:
    return os.stat(csi.target()).st_rdev


@root
def test_a_job_gets_the_device_of_the_volume_and_no_other(csi: CsiWorld) -> None:
    binding = ready(csi, "raw")
    (call,) = csi.plugin.calls("NodePublishVolume")
    assert "block" in call["volume_capability"]
    about = device(csi, binding).stat()
    assert stat.S_ISBLK(about.st_mode)
    assert about.st_rdev == device_number(csi)
    assert (about.st_uid, stat.S_IMODE(about.st_mode)) == (ALICE.uid, 0o600), "a user can open it, too"
    other = min({0, 1, 2, 3} - {os.minor(device_number(csi))})
    assert tried(csi, binding, device(csi, binding)) == ["ok", "ok"]
    assert tried(csi, binding, f"/dev/loop{other}") == [DENIED] * 2
    assert (csi.plugin.folder / "vol1.img").read_bytes()[512:519] == b"written"
    csi.executor.check()
    assert csi.report(binding).note == ""
    gone(csi, binding)
    assert csi.rpcs() == ["stage", "publish", "unpublish", "unstage"]


@root
def test_what_a_consumer_is_told_names_the_device_on_the_host_and_in_a_container(csi: CsiWorld) -> None:
    binding = ready(csi, "raw")
    assert csi.variables(binding)["XCE_DEVICE_M"] == str(device(csi, binding))
    (cdi,) = (csi.place / "cdi").iterdir()
    edits = json.loads(cdi.read_text())["devices"][0]["containerEdits"]
    (node,) = edits["deviceNodes"]
    assert node["path"] == "/xce/m"
    assert node["hostPath"] == str(device(csi, binding))
    assert (node["type"], node["permissions"]) == ("b", "rw")
    assert "XCE_DEVICE_M=/xce/m" in edits["env"]
    assert [mount["containerPath"] for mount in edits["mounts"]] == ["/xce/claim.json"]
    gone(csi, binding)


@root
@pytest.mark.parametrize(
    ("source", "read_only", "access"),
    [("raw", True, "RWX"), ("raw", False, "ROX"), ("raw-fixed", False, "RWX")],
    ids=["request", "claim's access", "volume's access"],
)
def test_a_device_is_read_only_if_anybody_says_so_whatever_the_plugin_does(
    csi: CsiWorld, source: str, *, read_only: bool, access: str
) -> None:
    csi.plugin.control(behaviours=["ignores-read-only"])
    binding = ready(csi, source, mount={"read_only": read_only}, access=AccessMode(access))
    assert tried(csi, binding, device(csi, binding)) == ["ok", DENIED]
    rules = csi.evidence(binding, "filter")["rules"]
    number = device_number(csi)
    assert f"b {os.major(number)}:{os.minor(number)} r" in [rule.replace("m", "") for rule in rules]
    gone(csi, binding)


@root
def test_two_consumers_have_one_device_each_in_its_own_way(csi: CsiWorld) -> None:
    writer, reader = ready(csi, "raw"), ready(csi, "raw", mount={"read_only": True})
    assert csi.rpcs() == ["stage", "publish"]
    assert tried(csi, reader, device(csi, reader)) == ["ok", DENIED]
    gone_first = csi.release(writer)
    assert gone_first.state is RELEASED
    assert tried(csi, reader, device(csi, reader))[0] == "ok"
    gone(csi, reader)


@root
def test_after_its_release_a_consumer_that_goes_on_cannot_open_the_device(csi: CsiWorld) -> None:
    consumer = Consumer(name="job-7", user="alice")
    first, second = ready(csi, "raw", consumer=consumer), csi.bind(asked("fixed"), consumer=consumer).binding
    path = loop(csi)
    assert tried(csi, first, path) == ["ok", "ok"]
    csi.executor.release(op_id="e", epoch=1, binding=first)
    csi.until(lambda: csi.report(first).state is RELEASED)
    assert tried(csi, second, path) == [DENIED] * 2
    gone(csi, second)


@root
def test_who_has_the_device_open_is_waited_for_and_named(csi: CsiWorld) -> None:
    binding = ready(csi, "raw")
    with device(csi, binding).open("rb"):
        report = csi.release(binding)
        assert report.state is BindingState.RELEASING
        assert f"pid {os.getpid()}" in report.note
        assert "unpublish" not in csi.rpcs()
    gone(csi, binding)


@root
def test_a_file_system_in_a_devices_place_is_refused(csi: CsiWorld) -> None:
    csi.plugin.control(behaviours=["mounts-block"], filesystem="bind", stage="nothing")
    report = csi.bind(asked("raw"))
    assert report.state is FAILED
    assert "a directory at the target, not a device" in report.reason
    assert csi.leftovers() == []


@root
def test_a_character_device_is_no_volume(csi: CsiWorld) -> None:
    csi.plugin.control(device="/dev/null")
    report = csi.bind(asked("raw"))
    assert report.state is FAILED
    assert "a file at the target, not a device" in report.reason


@root
def test_a_device_that_this_node_has_mounted_is_no_volume(csi: CsiWorld, tmp_path: Path) -> None:
    """A plugin hands out the disk of another file system: a job that writes to it would destroy that."""
    image, point = tmp_path / "disk.img", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(4 << 20)
    point.mkdir()
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)
    try:
        csi.plugin.control(device=f"/dev/loop{os.minor(point.stat().st_dev)}")
        report = csi.bind(asked("raw"))
        assert report.state is FAILED
        assert f"is mounted on {point} of this node" in report.reason
    finally:
        subprocess.run(["umount", str(point)], check=True)
    assert csi.leftovers() == []


@root
def test_a_target_that_becomes_another_device_is_told(csi: CsiWorld) -> None:
    binding = ready(csi, "raw")
    subprocess.run(["mount", "--bind", "/dev/loop-control", csi.target()], check=True)
    csi.executor.check()
    assert csi.target() in csi.report(binding).note
    subprocess.run(["umount", csi.target()], check=True)
    gone(csi, binding)


@root
def test_a_restart_of_the_agent_changes_nothing_for_a_device(csi: CsiWorld) -> None:
    binding = ready(csi, "raw")
    csi.plugin.stop()
    csi.restart()
    csi.executor.check()
    assert (csi.report(binding).state, csi.report(binding).note) == (READY, "")
    assert tried(csi, binding, device(csi, binding)) == ["ok", "ok"]
    csi.plugin.start()
    gone(csi, binding)


@root
def test_without_device_isolation_nobody_gets_a_device(csi: CsiWorld) -> None:
    csi.overrides["mechanisms"] = ()
    csi.restart()
    report = csi.bind(asked("raw"))
    assert report.state is FAILED
    assert "device isolation unavailable" in report.reason
    assert csi.leftovers() == []


@root
def test_a_device_has_no_directories(csi: CsiWorld) -> None:
    report = csi.bind(asked("raw", subdirectory="a"))
    assert report.state is FAILED
    assert "without directories" in report.reason


@pytest.mark.parametrize("wrong", [{"type": "ext4"}, {"options": ["noatime"]}])
def test_settings_of_a_file_system_do_not_go_with_a_device(wrong: dict[str, Any]) -> None:
    volume = Volume(csi=CsiVolume(plugin="p", id="v", block=True))
    settings = Claims(csi=Csi(plugins={"p": "/s"}), profiles={"default": Profile(volumes={"v": volume})})
    assert problems(settings) == {}
    bad = Profile(volumes={"v": msgspec.structs.replace(volume, **wrong)})
    found = problems(msgspec.structs.replace(settings, profiles={"default": bad}))
    assert list(found) == ["profiles.default.volumes.v.csi.block"]


def test_a_disk_with_a_mounted_partition_counts_as_mounted(tmp_path: Path) -> None:
    disk = tmp_path / "devices/pci/block/sda"
    (disk / "sda1").mkdir(parents=True)
    (disk / "dev").write_text("8:0\n")
    (disk / "sda1/partition").write_text("1\n")
    (tmp_path / "dev/block").mkdir(parents=True)
    (tmp_path / "dev/block/8:1").symlink_to(disk / "sda1")
    (tmp_path / "dev/block/8:0").symlink_to(disk)
    whole = disks.whole(str(tmp_path))
    assert (whole("8:1"), whole("8:0"), whole("9:9")) == ("8:0", "", "")
    table = [Mount(1, 0, "8:1", "/", "/data", "rw", "ext4", "/dev/sda1", "rw")]
    assert usage.mounted_device("8:0", table, whole) == "/data"
    assert usage.mounted_device("8:1", table, whole) == "/data"
    assert usage.mounted_device("8:16", table, whole) == ""
    assert usage.mounted_device("", table, whole) == ""
