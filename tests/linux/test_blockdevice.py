"""How the kernel uses a block device, from a tree of sysfs; with real devices: tests/prepare."""

import os
from pathlib import Path

from xce.linux import blockdevice, mountinfo

MOUNTS = mountinfo.parse("30 1 8:1 / /home rw - ext4 /dev/sda1 rw\n31 1 8:17 / /srv rw - ext4 /dev/sdb1 rw\n")


def make(sys: Path) -> None:
    for path, text in {
        "dev/block/8:0/dev": "8:0",
        "dev/block/8:0/sda1/dev": "8:1",
        "dev/block/8:0/sda1/partition": "1",
        "dev/block/8:0/queue/dev": "8:16",
        "dev/block/8:1/holders/dm-0/dev": "253:0",
        "block/loop0/loop/backing_file": "/srv/image",
        "dev/block/8:16/dev": "8:16",
    }.items():
        (sys / path).parent.mkdir(parents=True, exist_ok=True)
        (sys / path).write_text(f"{text}\n")


def test_a_disk_is_used_where_its_partitions_are(tmp_path: Path) -> None:
    make(tmp_path)
    used = blockdevice.uses(os.makedev(8, 0), MOUNTS, sys=str(tmp_path), proc=str(tmp_path))
    assert used == ["mounted on /home", "dm-0 is on it"]
    assert blockdevice.uses(os.makedev(8, 16), MOUNTS, sys=str(tmp_path), proc=str(tmp_path)) == []
    assert blockdevice.uses(os.makedev(9, 9), MOUNTS, sys=str(tmp_path), proc=str(tmp_path)) == [], "gone"
