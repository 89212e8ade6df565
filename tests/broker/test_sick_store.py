"""A disk that fails or is read-only under a broker's store: it says so, and nothing is taken for damaged."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.stored import wait
from tests.linux.sickdisk import SickFolder
from tests.linux.surroundings import read_only
from xce.broker.store import Batch, Damaged, StoreError
from xce.broker.store.sqlite import SqliteStore
from xce.linux import mountapi

pytestmark = pytest.mark.root


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SickFolder]:
    """With a store in it."""
    with SickFolder(tmp_path / "state", tmp_path) as disk:
        assert SqliteStore(disk.point).close(5)
        yield disk


def assert_whole(disk: SickFolder) -> None:
    store = SqliteStore(disk.point)
    assert store.fault == ""
    assert store.close(5)
    assert not [name for name in os.listdir(disk.point) if "damaged" in name]


@pytest.mark.parametrize("ill", [{"reads": errno.EIO}, {"writes": errno.EIO, "syncs": errno.EIO}])
def test_a_store_on_a_disk_that_fails_is_refused_in_words_and_is_whole_when_it_is_well(
    disk: SickFolder, ill: dict[str, int]
) -> None:
    disk.ill(**ill)
    with pytest.raises(StoreError) as refused:
        SqliteStore(disk.point)
    disk.ill()
    assert str(disk.point) in str(refused.value)
    assert not isinstance(refused.value, Damaged)
    assert_whole(disk)


def test_a_store_on_a_file_system_that_is_read_only_is_refused_with_that_word(disk: SickFolder) -> None:
    read_only(disk.point)
    with pytest.raises(StoreError, match=r"Read-only|is read-only"):
        SqliteStore(disk.point)
    mountapi.unmount(str(disk.point))
    assert_whole(disk)


def test_files_that_cannot_be_looked_at_are_named_as_the_disks_fault(disk: SickFolder) -> None:
    store = SqliteStore(disk.point)
    disk.ill(reads=errno.EIO)
    assert store.submit(Batch([], {"a": ("digest", b"answer")}), token=1)
    (outcome,) = wait(store, 1, 10)
    disk.ill()
    assert f"the disk of {disk.point} fails" in (outcome.error or "")
    assert store.close(5)
    assert_whole(disk)


def test_a_sync_that_fails_is_named_as_the_disks_fault(disk: SickFolder) -> None:
    disk.ill(syncs=errno.EIO)
    store = SqliteStore(disk.point)
    assert f"the disk of {disk.point} fails" in store.fault
    disk.ill()
    assert store.close(5)
    assert_whole(disk)
