"""The cache of last values: it comes back with its age, or is refused once and whole."""

import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce.broker.background import Background
from xce.broker.store import cache
from xce.broker.store.cache import Cache, Cached, Stamp, age_ms

THEN = Stamp("boot-a", 50_000, 1_700_000_000_000)
ENTRIES = {f"host:node{n:04d}": b"v" * (n % 700) for n in range(2000)}


def read(path: Path, now: Stamp = THEN) -> tuple[Cached | None, list[str]]:
    said: list[str] = []
    return cache.read(path, now=now, say=said.append), said


@pytest.fixture
def background() -> Iterator[Background]:
    said: list[str] = []
    made = Background(say=said.append)
    yield made
    assert made.close(10)


@given(st.dictionaries(st.text(max_size=20), st.binary(max_size=300), max_size=20), st.binary(max_size=50))
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, entries: dict[str, bytes], about: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.cache"
    cache.write(path, entries, about=about, revision=7, now=THEN)
    assert read(path) == (Cached(entries, about, 7, THEN, 0), [])


def test_a_big_one_is_written_in_pieces_and_replaces_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "last.cache"
    cache.write(path, {"host:old": b"x"}, about=b"", revision=1, now=THEN)
    cache.write(path, ENTRIES, about=b"a", revision=2, now=THEN)
    found, said = read(path)
    assert found is not None
    assert (found.entries, said) == (ENTRIES, [])
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.cache"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("now", "age"),
    [
        (Stamp("boot-a", 53_000, 1_600_000_000_000), 3_000),  # the wall clock was set back: not asked
        (Stamp("boot-a", 50_000, 1_700_000_009_000), 0),
        (Stamp("boot-a", 49_000, 1_700_000_009_000), 0),
        (Stamp("boot-b", 1_000, 1_700_000_009_000), 9_000),
        (Stamp("boot-b", 99_000, 1_600_000_000_000), 0),  # another boot, and the wall clock went back
        (Stamp("", 51_000, 1_700_000_002_000), 2_000),
    ],
)
def test_age_is_monotonic_within_a_boot_and_wall_time_between_boots(now: Stamp, age: int) -> None:
    assert age_ms(THEN, now) == age


def test_an_unknown_boot_id_is_never_taken_for_the_same_boot() -> None:
    assert age_ms(Stamp("", 5_000, 1_000), Stamp("", 7_000, 9_000)) == 8_000


def test_this_machines_stamp_has_its_boot_and_goes_forward(tmp_path: Path) -> None:
    first, second = cache.stamp(), cache.stamp()
    assert len(first.boot) == 36
    assert first.boot == second.boot
    assert first.monotonic_ms <= second.monotonic_ms
    assert cache.stamp(str(tmp_path)).boot == ""


def test_no_cache_is_nothing_to_speak_of(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == (None, [])


@pytest.mark.parametrize("size", [0, 1, 7, 8, 40, 200_000, -1])
def test_a_torn_cache_is_refused_and_said_once(tmp_path: Path, size: int) -> None:
    path = tmp_path / "last.cache"
    cache.write(path, ENTRIES, about=b"", revision=1, now=THEN)
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    found, said = read(path)
    assert found is None
    assert len(said) == 1
    assert said[0].startswith(f"cannot use the cache of last values {path}: ")


def test_a_cache_cut_between_two_pieces_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "last.cache"
    cache.write(path, ENTRIES, about=b"", revision=1, now=THEN)
    data = path.read_bytes()
    ends = list(frame_ends(data))
    assert len(ends) > 2
    path.write_bytes(data[: ends[-2]])
    found, said = read(path)
    assert found is None
    assert "of 2000 entries" in said[0]


def frame_ends(data: bytes) -> Iterator[int]:
    end = 0
    while end < len(data):
        end += 8 + int.from_bytes(data[end : end + 4], "big")
        yield end


@given(st.data())
def test_a_scribbled_byte_is_noticed_wherever_it_is(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "scribbled.cache"
    entries = {f"host:n{n}": b"value" * n for n in range(9)}
    cache.write(path, entries, about=b"about", revision=1, now=THEN)
    bad = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(bad) - 1))
    bad[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bad)
    found, said = read(path)
    assert found is None
    assert len(said) == 1


def test_noise_is_never_a_cache(tmp_path: Path) -> None:
    path = tmp_path / "last.cache"
    for size in (8, 100, 5000):
        path.write_bytes(os.urandom(size))
        assert read(path)[0] is None


def test_a_cache_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.cache"
    monkeypatch.setattr(cache, "VERSION", 9)
    cache.write(path, {}, about=b"", revision=1, now=THEN)
    monkeypatch.undo()
    found, said = read(path)
    assert found is None
    assert "version 9, expected 1" in said[0]


def test_a_write_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "last.cache"
    cache.write(path, {"host:a": b"1"}, about=b"", revision=1, now=THEN)
    (tmp_path / "last.cache.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        cache.write(path, {"host:a": b"2"}, about=b"", revision=2, now=THEN)
    found, _ = read(path)
    assert found is not None
    assert found.entries == {"host:a": b"1"}


def test_saving_hands_the_bytes_over_and_does_not_wait(tmp_path: Path, background: Background) -> None:
    """A second save while the first one is being written is skipped; later changes do not get into it."""
    hold = threading.Event()
    background.submit("in the way", lambda: hold.wait(60))
    kept = Cache(tmp_path / "last.cache", background)
    entries = {f"host:node{n}": b"x" * 2000 for n in range(10_000)}
    before = time.monotonic()
    assert kept.save(entries, about=b"", revision=3, now=THEN)
    assert not kept.save(entries, about=b"", revision=4, now=THEN)
    assert time.monotonic() - before < 30, "half of what is in the way"
    entries.clear()
    hold.set()
    deadline = time.monotonic() + 30
    while not (tmp_path / "last.cache").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    found, _ = read(tmp_path / "last.cache")
    assert found is not None
    assert (len(found.entries), found.revision) == (10_000, 3)
    while not kept.save({}, about=b"", revision=5, now=THEN):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_fault_is_said_once_when_it_begins_and_once_when_it_ends(tmp_path: Path) -> None:
    said: list[str] = []
    background = Background(say=said.append)
    path = tmp_path / "directory" / "last.cache"
    kept = Cache(path, background)

    def save_and_settle() -> None:
        assert kept.save({"host:a": b"1"}, about=b"", revision=1, now=THEN)
        done = threading.Event()
        background.submit("mark", done.set)
        assert done.wait(10)

    for _ in range(3):
        save_and_settle()
    assert background.faults().keys() == {"cache of last values"}
    path.parent.mkdir()
    for _ in range(2):
        save_and_settle()
    assert len(said) == 2
    assert said[0].startswith("cannot write the cache of last values: [Errno 2]")
    assert said[1] == "the cache of last values is written again"
    assert background.faults() == {}
    assert background.close(10)
    assert path.exists()


def test_a_full_background_drops_and_counts() -> None:
    hold = threading.Event()
    background = Background(say=lambda _: None, room=2)
    assert background.submit("slow", lambda: hold.wait(10))
    results = [background.submit("more", hold.is_set) for _ in range(6)]
    assert results.count(False) >= 3
    assert background.dropped == {"more": results.count(False)}
    assert not background.close(0.05), "it says that the end did not come in time"
    hold.set()
    assert background.close(10)
    assert not background.submit("late", hold.is_set)


def test_a_bug_in_one_job_does_not_end_the_others() -> None:
    said: list[str] = []
    background = Background(say=said.append)
    ran: Iterator[int] = itertools.count()

    def bad() -> None:
        raise ZeroDivisionError

    background.submit("bad", bad)
    background.submit("good", lambda: next(ran))
    assert background.close(10)
    assert next(ran) == 1
    assert said == ["internal error: cannot write the bad: ZeroDivisionError()"]
