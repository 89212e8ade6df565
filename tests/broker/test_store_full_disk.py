"""A really full disk: refused in words, nothing half recorded, and recording goes on once there is room."""

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.live_broker import PROGRAM
from tests.linux.surroundings import own_mounts
from xce.broker.store import Batch, Outcome
from xce.broker.store.sqlite import SqliteStore
from xce.model.fact import Fact, HostAdmitted

pytestmark = pytest.mark.root


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    own_mounts()
    point = tmp_path / "disk"
    point.mkdir()
    source, options = "none", "size=4m"
    if request.param == "ext4":
        source, options = str(tmp_path / "image"), "loop"
        subprocess.run(["truncate", "-s", "4M", source], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", source], check=True)
    mounted = subprocess.run(
        ["mount", "-t", request.param, "-o", options, source, str(point)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small {request.param} here: {mounted.stderr.strip()}")
    yield point
    subprocess.run(["umount", str(point)], check=True)


def put(store: SqliteStore, revision: int, size: int = 1000) -> Outcome:
    fact = Fact(revision=revision, change=HostAdmitted(host="h" * size))
    assert store.submit(Batch([fact], {f"op-{revision}": ("d", b"a" * size)}), token=revision)
    outcomes: list[Outcome] = []
    deadline = time.monotonic() + 30
    while not outcomes:
        assert time.monotonic() < deadline
        select.select([store.fileno()], [], [], 1)
        outcomes = store.completed()
    (outcome,) = outcomes
    return outcome


def fill(directory: Path) -> Path:
    """Take all the room that is left, to the last byte."""
    path = directory / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return path


def well_again(store: SqliteStore, within_s: float = 30) -> bool:
    """Whether the fault ends by itself, as the broker's loop would notice it."""
    deadline = time.monotonic() + within_s
    while store.fault and time.monotonic() < deadline:
        select.select([store.fileno()], [], [], 0.5)
        assert store.completed() == []
    return not store.fault


def put_until_refused(store: SqliteStore, revision: int) -> tuple[int, str]:
    """The last revision that was recorded, and why the next one was not."""
    while True:
        outcome = put(store, revision + 1)
        if outcome.error is not None:
            return revision, outcome.error
        revision += 1
        assert revision < 10_000


def test_a_full_disk_is_refused_in_words_and_forgotten_once_there_is_room(small_disk: Path) -> None:
    state = small_disk / "state"
    state.mkdir()
    store = SqliteStore(state)
    assert put(store, 1).error is None
    filler = fill(small_disk)
    last, error = put_until_refused(store, 1)
    assert error == (
        f"cannot record: no space left on the file system of {state}; "
        "free some (a running broker goes on by itself)"
    )
    assert store.fault == error
    loaded = store.load()
    assert loaded.revision == last, "what was refused is not there, what was acknowledged is"
    assert len(loaded.answers) == last
    assert put(store, last + 1).error == error
    filler.unlink()
    assert well_again(store)
    assert put(store, last + 1).error is None
    assert store.load().revision == last + 1
    assert store.close(30)
    again = SqliteStore(state)
    assert again.load().revision == last + 1
    assert again.close(30)


def test_a_broker_that_starts_on_a_full_disk_can_read_and_recovers(small_disk: Path) -> None:
    store = SqliteStore(small_disk)
    assert put(store, 1).error is None
    assert store.close(30)
    filler = fill(small_disk)
    again = SqliteStore(small_disk)
    assert again.load().revision == 1
    last, _ = put_until_refused(again, 1)
    filler.unlink()
    assert well_again(again)
    assert put(again, last + 1).error is None
    assert again.close(30)


@pytest.mark.parametrize("filled", ["before the first start", "between two starts"])
def test_a_start_on_a_full_disk_names_the_file_system_and_the_way_out(small_disk: Path, filled: str) -> None:
    state = small_disk / "state"
    state.mkdir()
    if filled == "between two starts":
        store = SqliteStore(state)
        assert put(store, 1).error is None
        assert store.close(30)
    fill(small_disk)
    place = small_disk.parent
    broker_yaml = place / "broker.yaml"
    for name in ("resources.yaml", "hosts.yaml"):
        (place / name).touch()
    broker_yaml.write_text(
        f"{{listen: [], local: {place}/b.sock, accepted_keys: {place}, state_directory: {state}, "
        f"resources: {place}/resources.yaml, hosts: {place}/hosts.yaml, audit: {small_disk}/audit, "
        "metrics: ''}"
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "run", "--config", str(broker_yaml)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("xce-broker: cannot ")
    assert f"no space left on the file system of {state}; free some" in last
    assert "Traceback" not in done.stderr
