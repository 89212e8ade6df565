"""A scratch whose disk hangs, or takes long to write: it holds up its own release and nobody else."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.linux.sickdisk import SickFolder
from tests.prepare.world import World
from xce.linux import loopdevice
from xce.model.claim import Ask, BindingState, MountAsk
from xce.model.profile import Limit, ScratchRoot

pytestmark = pytest.mark.root
READY, RELEASED, RELEASING = BindingState.READY, BindingState.RELEASED, BindingState.RELEASING
EVERYBODY, WHO_SYNCS = 1, 2
FAR = Ask(scratch_bytes=4 << 20, scratch="far")


@pytest.fixture
def disk(world: World, tmp_path: Path) -> Iterator[SickFolder]:
    """Where scratch is, in files; it is well again after some seconds, whatever happens."""
    with SickFolder(tmp_path / "far", tmp_path / "sick") as disk:
        profile = world.settings.profiles["default"]
        far = {"far": ScratchRoot(path=str(disk.point), limit=Limit.FILE)}
        profile = msgspec.structs.replace(profile, scratch=profile.scratch | far)
        world.settings = msgspec.structs.replace(
            world.settings, profiles={"default": profile}, remote_s=0.5, check_s=60
        )
        world.restart()
        mend = threading.Timer(15, disk.ill)
        mend.start()
        yield disk
        mend.cancel()
        disk.ill()


def written(world: World, binding: str) -> None:
    Path(world.settings.directory, binding, "scratch", "file").write_bytes(bytes(1 << 20))


@pytest.mark.parametrize("who", [EVERYBODY, WHO_SYNCS])
def test_a_release_that_waits_for_its_disk_delays_nobody_and_ends_when_all_is_written(
    world: World, disk: SickFolder, who: int
) -> None:
    assert world.bind(FAR, binding="b1").state is READY
    written(world, "b1")
    disk.ill(hangs=who)
    world.executor.release(op_id="end-b1", epoch=1, binding="b1")
    began = time.monotonic()
    while time.monotonic() - began < 2:  # longer than anybody waits for an answer
        before = time.monotonic()
        world.executor.advance()
        assert time.monotonic() - before < 1
        time.sleep(0.01)
    assert world.bind(Ask(mounts=[MountAsk(name="y", source="data")]), binding="b2").state is READY
    assert world.report("b1").state is RELEASING
    assert world.report("b1").note
    image = str(disk.point / "xce-b1.img")
    assert loopdevice.having(image)
    disk.ill()
    assert world.over("b1").state is RELEASED
    assert not loopdevice.having(image)
    world.release("b2")
    assert world.leftovers() == []
    assert list(disk.behind.iterdir()) == []
