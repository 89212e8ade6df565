"""Checked paths, watches, mount table, /proc."""

import os
import stat
import struct
import time
from pathlib import Path

import pytest

from xce.linux import inotify, mountinfo, paths, proc, syscalls

ME = os.geteuid()
TRUSTED = {0, ME}


def test_a_trusted_file_is_opened(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("hello")
    fd = paths.open_checked(str(script), TRUSTED)
    assert os.read(fd, 10) == b"hello"
    assert not os.get_inheritable(fd)
    os.close(fd)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_a_file_or_directory_that_others_may_write_is_named(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    script = directory / "script"
    script.write_text("")
    script.chmod(mode)
    with pytest.raises(
        paths.NotTrustedError, match=rf"d/script is writable by (everybody|its group) \(mode 0{mode:o}\)"
    ):
        paths.open_checked(str(script), TRUSTED)
    script.chmod(0o755)
    directory.chmod(mode)
    with pytest.raises(paths.NotTrustedError, match=f"^{directory} is writable by"):
        paths.open_checked(str(script), TRUSTED)


def test_a_sticky_directory_is_good_enough_for_a_trusted_next_element(tmp_path: Path) -> None:
    directory = tmp_path / "sticky"
    directory.mkdir()
    directory.chmod(0o1777)
    (directory / "script").write_text("")
    os.close(paths.open_checked(str(directory / "script"), TRUSTED))


def test_a_link_anywhere_in_the_path_is_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/script").write_text("")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/alias").symlink_to("script")
    for path, link in (("link/script", "link"), ("real/alias", "real/alias")):
        with pytest.raises(paths.NotTrustedError, match=f"^{tmp_path / link} is a symbolic link$"):
            paths.open_checked(str(tmp_path / path), TRUSTED)


@pytest.mark.skipif(ME != 0, reason="needs root to give files away")
def test_a_stranger_as_owner_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("")
    os.chown(script, 1000, 1000)
    with pytest.raises(paths.NotTrustedError, match="script is owned by uid 1000, not by 0"):
        paths.open_checked(str(script), {0})
    os.close(paths.open_checked(str(script), {0, 1000}))


@pytest.mark.parametrize("path", ["relative/script", "/etc/../etc/passwd", "/"])
def test_only_plain_absolute_paths_are_taken(path: str) -> None:
    with pytest.raises(paths.NotTrustedError, match="absolute path"):
        paths.open_checked(path, TRUSTED)


def test_what_is_missing_is_named_and_a_fifo_does_not_block(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        paths.open_checked(str(tmp_path / "no/script"), TRUSTED)
    assert missing.value.filename == str(tmp_path / "no")
    os.mkfifo(tmp_path / "fifo", 0o600)
    fd = paths.open_checked(str(tmp_path / "fifo"), TRUSTED)
    assert stat.S_ISFIFO(os.fstat(fd).st_mode)
    os.close(fd)


def test_failed_checks_leak_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "d").mkdir(mode=0o755)
    (tmp_path / "d").chmod(0o777)
    for path in (tmp_path / "d/x", tmp_path / "none"):
        with pytest.raises(OSError, match=r"d is writable|No such file"):
            paths.open_checked(str(path), TRUSTED)
    assert len(os.listdir("/proc/self/fd")) == before


def test_changes_of_a_directory_are_seen_with_their_names(tmp_path: Path) -> None:
    watcher = inotify.Inotify()
    number = watcher.watch(str(tmp_path))
    assert watcher.watch(str(tmp_path)) == number
    assert watcher.read() == []
    name = "odd\nname\udcff"
    (tmp_path / name).write_text("x")
    (tmp_path / name).chmod(0o700)
    events = wait_for(watcher)
    assert {event.name for event in events} == {os.fsencode(name)}
    assert any(event.mask & syscalls.IN_ATTRIB for event in events)
    tmp_path.chmod(0o701)
    assert any(event.name == b"" and event.watch == number for event in wait_for(watcher))
    watcher.forget(number)
    watcher.forget(number)
    watcher.close()
    watcher.close()


def wait_for(watcher: inotify.Inotify) -> list[inotify.Event]:
    deadline = time.monotonic() + 20
    while not (events := watcher.read()):
        assert time.monotonic() < deadline
    return events


def test_events_are_read_to_the_last_whole_one() -> None:
    one = struct.pack("iIII", 3, syscalls.IN_CREATE, 0, 16) + b"name".ljust(16, b"\0")
    overflow = struct.pack("iIII", -1, syscalls.IN_Q_OVERFLOW, 0, 0)
    events = inotify.parse(one + overflow + b"\1\2")
    assert [(event.watch, event.name) for event in events] == [(3, b"name"), (-1, b"")]


def test_mounts_with_odd_names_are_read() -> None:
    text = (
        "36 35 98:0 /mnt1 /mnt/a\\040b\\134c rw,noatime master:1 - ext3 /dev/ro\\012ot rw,errors=continue\n"
        "not a mount\n"
        "37 35 0:1 / /x rw - tmpfs tmpfs rw\n"
    )
    first, second = mountinfo.parse(text)
    assert first.point == "/mnt/a b\\c"
    assert first.source == "/dev/ro\not"
    assert (first.id, first.parent, first.device, first.root, first.kind) == (36, 35, "98:0", "/mnt1", "ext3")
    assert second.super_options == "rw"
    assert "/" in {mount.point for mount in mountinfo.read()}


MOUNTS = mountinfo.parse(
    """21 1 8:1 / / rw - ext4 /dev/sda1 rw
22 21 0:30 / /data rw - nfs4 server:/data rw
23 21 0:31 / /home rw - autofs /etc/auto.home rw
24 21 0:32 / /mnt rw - ext4 /dev/sdb rw
25 24 0:33 / /mnt rw - fuse.sshfs host:/ rw
26 22 0:34 / /data/scratch rw - tmpfs none rw
"""
)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/etc/xce/reporters.d", None),
        ("/data", "nfs4"),
        ("/database", None),
        ("/data/scratch/x", "nfs4"),  # on the way there
        ("/home/somebody", "autofs"),
        ("/mnt/x", "fuse.sshfs"),  # the last mount of a point is on top
        ("/link/reporters.d", "nfs4"),
        ("/relative", "nfs4"),
        ("/up", "nfs4"),
        ("/loop", None),
    ],
)
def test_a_path_may_hang_if_any_mount_on_its_way_is_not_local(path: str, kind: str | None) -> None:
    links = {
        "/link": "/etc/site",
        "/etc/site": "/data/site",
        "/relative": "etc/../data/x",
        "/up": "data/../../etc",
        "/loop": "/loop",
    }
    touched: list[str] = []

    def readlink(name: str) -> str:
        touched.append(name)
        if name not in links:
            raise OSError
        return links[name]

    found = mountinfo.may_hang(path, mountinfo.tops(MOUNTS), readlink)
    assert (found.kind if found else None) == kind
    assert not [name for name in touched if name.startswith(("/data/", "/home/", "/mnt/")) or name == "/data"]


def test_a_process_with_an_odd_name_is_read(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = "D 3 7 5 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0"
    (tmp_path / "7/stat").write_text(f"7 (a) b (c) {fields}\n")
    found = proc.process(7, str(tmp_path))
    assert found == proc.Process(pid=7, name="a) b (c", state="D", parent=3, session=5, started=12345)
    assert proc.process(8, str(tmp_path)) is None


def test_facts_of_this_very_process() -> None:
    mine = proc.process(os.getpid())
    assert mine is not None
    assert mine.parent == os.getppid()
    assert mine.pid in {found.pid for found in proc.processes()}
    assert proc.resident_bytes() > 1 << 20
    assert len(proc.boot_id()) == 36
    assert proc.wait_channel(2**22 + 1) == ""
    assert proc.has_environment(os.getpid(), "PATH=" + os.environ["PATH"])
    assert not proc.has_environment(os.getpid(), "PATH=")
    assert not proc.has_environment(2**22 + 1, "PATH=")
