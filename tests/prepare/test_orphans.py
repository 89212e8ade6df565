"""Things of ours without an owner are found and, where the admin wants it, cleaned; strangers' never."""

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.linux.test_mountapi import bind as bind_mount
from tests.prepare.world import FULL_ASK, World
from xce.linux import syscalls
from xce.model.profile import Orphans
from xce.prepare.errand import described, opened

pytestmark = pytest.mark.root


def leave_things(world: World, tmp_path: Path) -> subprocess.Popen[bytes]:
    """What an agent could leave that lost its journal; and beside it what is somebody else's."""
    lost = world.group.child("xce-consumer-lost")
    lost.create()
    enter = f"echo $$ > {lost.path}/cgroup.procs; exec sleep 60"
    process = subprocess.Popen(["sh", "-c", f"{enter}"])
    world.group.child("somebody").create()
    run = Path(world.settings.directory)
    (run / "b99/data").mkdir(parents=True)
    (run / "b99/env").write_text("A=1\n")
    with opened(os.open(tmp_path / "data", os.O_PATH)) as data:
        seen = described(data)
    world.node.owner.take(str(run / "b99/data"), "b99", f"{seen['device']} {seen['root']}")
    bind_mount(tmp_path / "data", run / "b99/data")
    cdi = Path(world.settings.cdi_directory)
    cdi.mkdir(exist_ok=True)
    (cdi / "xce-claim_b99.json").write_text("{}")
    (cdi / "vendor-gpu.json").write_text("{}")
    (world.place / "scratch/xce-b99.img").write_bytes(b"")
    (world.place / "scratch/mine.img").write_bytes(b"")
    ours = [lost.path, str(run / "b99"), str(cdi / "xce-claim_b99.json")]
    for path in (*ours, str(world.place / "scratch/xce-b99.img")):
        world.node.owner.take(path, "b99", recorded=True)
    while not lost.pids():
        os.sched_yield()
    return process


def test_orphans_are_reported_with_what_is_in_them_and_left_alone(world: World, tmp_path: Path) -> None:
    world.bind(FULL_ASK, cards=["full"])
    process = leave_things(world, tmp_path)
    world.executor.scan()
    run = world.settings.directory
    assert sorted(world.executor.orphans) == sorted(
        [
            f"control group {world.group.path}/xce-consumer-lost (1 processes)",
            f"mount {run}/b99/data ({_line(world, f'{run}/b99/data')})",
            f"directory {run}/b99",
            f"file {world.settings.cdi_directory}/xce-claim_b99.json",
            f"file {world.place}/scratch/xce-b99.img",
        ]
    )
    assert process.poll() is None
    process.kill()
    process.wait()
    syscalls.umount2(f"{run}/b99/data", 0)


def _line(world: World, point: str) -> str:
    [mount] = world.node.mounts.at(point)
    return f"{mount.kind} {mount.source}"


def test_orphans_are_cleaned_where_the_admin_wants_it_and_nothing_else_is(
    world: World, tmp_path: Path
) -> None:
    world.settings = msgspec.structs.replace(world.settings, orphans=Orphans.CLEAN)
    world.restart()
    report = world.bind(FULL_ASK, cards=["full"])
    process = leave_things(world, tmp_path)

    def clean() -> bool:
        world.executor.scan()
        return not world.executor.orphans and not Path(world.settings.directory, "b99").exists()

    world.until(clean)
    assert process.wait(20) == -9
    assert not os.path.exists(f"{world.group.path}/xce-consumer-lost")
    assert any("xce-consumer-lost" in one for one in world.executor.cleaned), "it is told"
    assert not any("somebody" in one for one in world.executor.cleaned)
    assert (tmp_path / "data/file").read_text() == "data"
    assert os.path.exists(f"{world.group.path}/somebody")
    assert sorted(os.listdir(world.place / "scratch")) == ["mine.img"]
    assert sorted(os.listdir(world.settings.cdi_directory)) == ["vendor-gpu.json", "xce-claim_b1.json"]
    world.executor.check()
    assert world.report(report.binding).conditions == []


def test_a_directory_with_somebodys_files_is_not_emptied(world: World) -> None:
    world.settings = msgspec.structs.replace(world.settings, orphans=Orphans.CLEAN)
    world.restart()
    place = Path(world.settings.directory, "b99")
    place.mkdir()
    (place / "notes").write_text("mine")
    world.node.owner.take(str(place), "b99", recorded=True)
    world.executor.scan()
    assert world.executor.orphans == [f"directory {place}: Directory not empty"]
    assert (place / "notes").read_text() == "mine"


def test_while_the_node_is_recovering_nothing_is_an_orphan(world: World) -> None:
    world.settings = msgspec.structs.replace(world.settings, orphans=Orphans.CLEAN)
    world.bind(FULL_ASK, cards=["full"])
    before = world.leftovers()
    world.stop()
    (world.place / "state/claims.sqlite").write_bytes(b"")
    world.start()
    world.executor.scan()
    world.executor.advance()
    assert world.executor.orphans == []
    assert world.leftovers() == before
