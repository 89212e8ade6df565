"""A mount bears no mark, but the point that it covers does: whose it is, and which mount is meant."""

import os
from pathlib import Path

import msgspec
import pytest

from tests.linux.test_mountapi import bind as bind_mount
from tests.prepare.world import FULL_ASK, World
from xce.linux import mountapi, mountinfo, syscalls
from xce.linux.mountinfo import Mount
from xce.model.claim import Ask, BindingState, MountAsk
from xce.model.profile import Orphans
from xce.prepare.journal import Work
from xce.prepare.tags import ATTRIBUTE, Mark

pytestmark = pytest.mark.root

DATA = Ask(mounts=[MountAsk(name="data", source="data")])
ALL = msgspec.structs.replace(FULL_ASK, scratch="disk", scratch_bytes=4 << 20, shared=[], ports=[])


def mark_below(world: World, point: str) -> str:
    root = world.settings.directory
    with mountapi.uncovered(root) as below:
        return os.getxattr(below + point.removeprefix(root), ATTRIBUTE).decode()


def there(point: Path | str) -> list[Mount]:
    return [mount for mount in mountinfo.read() if mount.point == str(point)]


def lose_journal(world: World, policy: Orphans) -> None:
    """The agent comes back without its journal, and the cluster knows of no binding here."""
    world.settings = msgspec.structs.replace(world.settings, orphans=policy)
    world.stop()
    for file in (world.place / "state").iterdir():
        file.unlink()
    world.start()
    world.take_up()


def scan(world: World) -> list[str]:
    """Of mounts alone."""
    world.executor.scan()
    return [line for line in world.executor.orphans if line.startswith("mount ")]


@pytest.mark.parametrize("scratch", ["memory", "disk"])
def test_the_point_below_each_mount_names_agent_binding_and_mount(world: World, scratch: str) -> None:
    report = world.bind(msgspec.structs.replace(ALL, scratch=scratch))
    who = f"{world.node.owner.id} {report.binding} {world.node.owner.boot}"
    home = f"{world.settings.directory}/{report.binding}"
    [data] = there(f"{home}/input")
    assert mark_below(world, f"{home}/input") == f"{who} {data.device} {data.root}"
    image = f"ext4 {world.place}/scratch/xce-{report.binding}.img"
    made = image if scratch == "disk" else f"tmpfs xce-scratch:{report.binding}"
    assert mark_below(world, f"{home}/scratch") == f"{who} {made}"
    staged = f"{world.settings.directory}/.staged/staged"
    assert mark_below(world, staged) == f"{who} tmpfs xce-staged"
    with pytest.raises(OSError, match="No data available"):
        os.getxattr(f"{home}/input", ATTRIBUTE)
    assert world.evidence(report.binding, "bind")["mark"] == f"{data.device} {data.root}"


def test_mounts_that_a_lost_agent_left_are_told_and_stay(world: World) -> None:
    report = world.bind(ALL)
    home = f"{world.settings.directory}/{report.binding}"
    lose_journal(world, Orphans.REPORT)
    [scratch] = there(f"{home}/scratch")
    [data] = there(f"{home}/input")
    assert sorted(scan(world)) == sorted(
        [
            f"mount {home}/input ({data.kind} {data.source})",
            f"mount {home}/scratch (ext4 {scratch.source})",
            f"mount {home}/cache (tmpfs xce-staged)",
            f"mount {world.settings.directory}/.staged/staged (tmpfs xce-staged)",
        ]
    )
    assert len(world.mounts()) == 4


def test_mounts_that_a_lost_agent_left_are_taken_off_where_the_admin_wants_it(world: World) -> None:
    world.bind(ALL)
    lose_journal(world, Orphans.CLEAN)

    def clean() -> bool:
        world.executor.scan()
        return not world.executor.orphans

    world.until(clean)
    assert world.leftovers() == []
    assert (world.place / "data/file").read_text() == "data"


@pytest.mark.parametrize("where", ["beside", "over", "instead", "on the binding's"])
def test_what_others_mount_at_our_places_is_told_and_never_taken_off(world: World, where: str) -> None:
    """It has another point than ours, or is not the mount that the point speaks of."""
    report = world.bind(DATA)
    home = Path(world.settings.directory, report.binding)
    place = {"beside": home / "theirs", "on the binding's": home}.get(where, home / "data")
    if where == "beside":
        place.mkdir()
    if where in {"instead", "on the binding's"}:
        syscalls.umount2(str(home / "data"), 0)
    bind_mount(world.place / "shared", place)
    lose_journal(world, Orphans.CLEAN)
    line = f"mount {place} ({there(place)[-1].kind} {there(place)[-1].source})"
    why = (
        "no agent has written its name on it" if where == "beside" else "we have mounted something else there"
    )
    told = [f"{line}: not ours: {why}"]
    told += [f"{line}: something else is mounted over it"] if where == "over" else []
    assert scan(world) == told
    assert scan(world) == told
    assert [mount.root.endswith("/shared") for mount in there(place)][-1]
    syscalls.umount2(str(place), 0)
    assert scan(world) == []
    assert there(home / "data") == []


def test_what_others_mount_inside_a_mount_of_ours_holds_it_and_stays(world: World) -> None:
    report = world.bind(DATA)
    inside = Path(world.settings.directory, report.binding, "data/dir")
    bind_mount(world.place / "shared", inside)
    lose_journal(world, Orphans.CLEAN)
    inner, outer = scan(world)
    assert inner.endswith("not ours: it lies in another mount")
    assert outer.endswith("Device or resource busy")
    assert len(there(inside)) == 1
    syscalls.umount2(str(inside), 0)
    assert scan(world) == []
    assert world.mounts() == []


def test_what_an_older_version_has_mounted_gets_its_mark_below_it(world: World) -> None:
    """Without a moment in which it is not there."""
    report = world.bind(ALL)
    root = world.settings.directory
    before = {point: there(point)[0].id for point in world.mounts()}
    with mountapi.uncovered(root) as below:
        for point in before:
            os.removexattr(below + point.removeprefix(root), ATTRIBUTE)
    entry = world.executor.entries[report.binding]
    for number, work in enumerate(entry.works):
        evidence = {key: value for key, value in work.evidence.items() if key != "mark"}
        entry.works[number] = Work(step=work.step, state=work.state, evidence=evidence)
    world.executor.check()
    assert world.report(report.binding).conditions == []
    assert {point: there(point)[0].id for point in world.mounts()} == before
    with mountapi.uncovered(root) as below:
        whose = {world.node.owner.whose(below + point.removeprefix(root))[0] for point in before}
    assert whose == {Mark.OURS}
    assert world.release(report.binding).state is BindingState.RELEASED
    assert world.leftovers() == []
