"""How soon a change of the reporters' directory is seen, and what it costs where a look at it may hang."""

import errno
import os
import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.linux.hangfs import HangingMount
from tests.linux.kernel import Kernel
from tests.reporters.test_directory import GOOD, TRUSTED, put
from xce.linux import mountinfo
from xce.reporters import remote
from xce.reporters.directory import Candidate, scan
from xce.reporters.watch import AT_MOST, RESCAN, SETTLE, Watch

BEFORE_THE_NEXT_LOOK = RESCAN - SETTLE - AT_MOST
"""Two seconds are promised; a busy machine may need longer, and the look that comes in any case has to come
later still."""


def test_a_directory_that_cannot_be_read_leaves_what_was_known(place: Path, kernel: Kernel) -> None:
    put(place / "free")
    seen: list[dict[str, Candidate]] = []
    watch = Watch(kernel.loop, kernel.reaper, str(place), TRUSTED, seen.append)
    watch.look()
    assert seen[-1].keys() == {"free"}
    place.rename(place.parent / "away")
    kernel.until(lambda: watch.fault)
    assert watch.fault == f"cannot read {place}: No such file or directory"
    assert seen[-1].keys() == {"free"}
    (place.parent / "away").rename(place)
    kernel.until(lambda: not watch.fault)
    watch.close()


def test_a_directory_that_comes_later_is_seen(tmp_path: Path, kernel: Kernel) -> None:
    seen: list[dict[str, Candidate]] = []
    watch = Watch(kernel.loop, kernel.reaper, str(tmp_path / "a/reporters.d"), TRUSTED, seen.append)
    watch.look()
    (tmp_path / "a").mkdir()
    kernel.during(0.5)
    (tmp_path / "a/reporters.d").mkdir()
    put(tmp_path / "a/reporters.d/free")
    kernel.until(lambda: seen[-1], within=BEFORE_THE_NEXT_LOOK)
    watch.close()


def test_every_kind_of_change_is_seen_within_two_seconds(place: Path, kernel: Kernel) -> None:
    seen: list[dict[str, Candidate]] = []
    watch = Watch(kernel.loop, kernel.reaper, str(place), TRUSTED, seen.append)
    watch.look()
    assert SETTLE + AT_MOST < 2
    looks = len(seen)
    kernel.during(0.4)
    assert len(seen) == looks  # a look is no change

    def soon(condition: str) -> None:
        kernel.until(lambda: eval(condition, {"seen": seen[-1]}), within=BEFORE_THE_NEXT_LOOK)

    script = put(place / "free")
    soon("'free' in seen and not seen['free'].problem")
    script.write_text("echo no first line\n")
    soon("'no #!' in seen['free'].problem")
    script.write_text(GOOD)
    soon("not seen['free'].problem")
    script.chmod(0o777)
    soon("'writable' in seen['free'].problem")
    script.chmod(0o755)
    soon("not seen['free'].problem")
    put(place / "free.yaml", "interval: 7\n", 0o644)
    soon("seen['free'].settings.interval == 7")
    (place / "free.yaml").unlink()
    soon("seen['free'].settings.interval is None")
    place.chmod(0o777)
    soon("'writable' in seen['free'].problem")
    place.chmod(0o755)
    soon("not seen['free'].problem")
    place.parent.chmod(0o777)
    soon("'writable' in seen['free'].problem")
    place.parent.chmod(0o700)
    soon("not seen['free'].problem")
    script.rename(place / "other")
    soon("'other' in seen and 'free' not in seen")
    (place / "other").unlink()
    soon("not seen")
    watch.close()


def test_writing_without_end_does_not_put_the_look_off_for_ever(place: Path, kernel: Kernel) -> None:
    seen: list[dict[str, Candidate]] = []
    watch = Watch(kernel.loop, kernel.reaper, str(place), TRUSTED, seen.append)
    watch.look()

    def write() -> None:
        with (place / "log").open("a") as log:
            log.write("x")
        kernel.loop.call_later(0.05, write)

    write()
    put(place / "free")
    kernel.until(lambda: "free" in seen[-1], within=BEFORE_THE_NEXT_LOOK)
    looks = len(seen)
    kernel.during(1.5)
    assert len(seen) - looks <= 3
    watch.close()


NFS = mountinfo.parse("30 1 0:9 / /x rw - nfs4 server:/x rw\n")[0]


def test_where_a_look_may_hang_a_child_looks_and_changes_are_seen_as_elsewhere(
    place: Path, kernel: Kernel
) -> None:
    put(place / "free")
    put(place / "free.yaml", "interval: 7\n", 0o644)
    seen: list[dict[str, Candidate]] = []
    watch = Watch(kernel.loop, kernel.reaper, str(place), TRUSTED, seen.append, may_hang=lambda _: NFS)
    watch.look()
    kernel.until(lambda: seen)
    here = scan(str(place), TRUSTED)["free"]
    assert seen[-1]["free"].same_as(here)
    assert seen[-1]["free"].copy == (place / "free").read_bytes()
    (place / "free").write_text(GOOD + "#\n")
    kernel.until(lambda: seen[-1]["free"].copy.endswith(b"#\n"))
    (place / "free").unlink()
    kernel.until(lambda: seen[-1].keys() == {"free.yaml"})
    place.rename(place.parent / "away")
    kernel.until(lambda: watch.fault)
    assert watch.fault == f"cannot read {place}: No such file or directory; it is on nfs4 from server:/x"
    watch.close()
    kernel.until(lambda: not len(kernel.reaper))


def test_a_look_for_which_there_was_no_descriptor_is_followed_by_another(
    kernel: Kernel, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xce.reporters.watch.RESCAN_BLIND", 0.05)
    dry = [True]

    def may_hang(_path: str) -> None:
        if dry:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    seen: list[dict[str, Candidate]] = []
    watch = Watch(kernel.loop, kernel.reaper, str(place), TRUSTED, seen.append, may_hang=may_hang)
    try:
        watch.look()
        assert "Too many open files" in watch.fault
        dry.clear()
        kernel.until(lambda: seen)
        assert watch.fault == ""
    finally:
        watch.close()


def test_a_directory_that_hangs_is_a_fault_and_costs_neither_the_loop_nor_what_is_known(
    place: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-REP-08 of the directory itself: one look at it once hung the agent for ever."""
    monkeypatch.setattr(remote, "PATIENCE", 2.0)
    put(place / "free")
    seen: list[dict[str, Candidate]] = []
    watch = Watch(kernel.loop, kernel.reaper, str(place), TRUSTED, seen.append)
    watch.look()
    mount = HangingMount(place)
    try:
        watch.soon()
        ticks: list[float] = []

        def tick() -> None:
            ticks.append(kernel.loop.now())
            kernel.loop.call_later(0.01, tick)

        tick()
        kernel.until(lambda: watch.fault)
        assert re.fullmatch(
            rf"cannot look at {place}: no answer within 2 s \(pid \d+( in \w+)?\); it is on fuse from hang",
            watch.fault,
        )
        assert seen[-1].keys() == {"free"}
        kernel.during(3.5)  # more looks, and no second child beside the one that hangs
        assert len(kernel.reaper) == 1
        assert max(after - before for before, after in pairwise(ticks)) < remote.PATIENCE
    finally:
        mount.release()
    kernel.until(lambda: not watch.fault)
    assert seen[-1].keys() == {"free"}
    watch.close()
    kernel.until(lambda: not len(kernel.reaper))
