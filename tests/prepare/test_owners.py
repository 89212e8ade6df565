"""Whose a thing is stands on it: what is another agent's, or nobody's, is told and never touched."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.prepare.world import FULL_ASK, World
from xce.linux import mountapi, syscalls
from xce.linux.cgroup import Cgroup
from xce.model.claim import Ask, BindingState, Consumer
from xce.model.profile import Orphans
from xce.prepare.errand import opened
from xce.prepare.tags import ATTRIBUTE, Mark, Owner

pytestmark = pytest.mark.root


@pytest.fixture
def other(world: World, tmp_path: Path) -> Iterator[World]:
    """Another agent on this host, which cleans: its own directory, all else is the same."""
    place = tmp_path / "other"
    place.mkdir()
    other = World(place, world.group)
    own = other.settings
    profile = msgspec.structs.replace(
        own.profiles["default"], scratch=world.settings.profiles["default"].scratch
    )
    other.settings = msgspec.structs.replace(
        own,
        orphans=Orphans.CLEAN,
        cdi_directory=world.settings.cdi_directory,
        profiles={"default": profile},
    )
    other.restart()
    yield other
    other.close()


def in_group(world: World, binding: str) -> "subprocess.Popen[bytes]":
    """A process of the consumer."""
    job = subprocess.Popen(world.inside(binding, ["sleep", "60"]))
    group = Cgroup(world.evidence(binding, "group")["groups"][0])
    world.until(lambda: job.pid in group.pids())
    return job


DISK = msgspec.structs.replace(FULL_ASK, scratch="disk", scratch_bytes=4 << 20)


def test_an_agent_that_cleans_leaves_alone_what_another_one_on_the_host_has(
    world: World, other: World
) -> None:
    report = world.bind(DISK, cards=["full"])
    assert report.state is BindingState.READY, report.reason
    job = in_group(world, report.binding)
    before = world.leftovers()
    other.executor.scan()
    words = f"it is of another agent, {world.node.owner.id}, for {report.binding}"
    assert other.executor.orphans == [
        f"control group {world.group.path}/xce-consumer-job-b1 (1 processes): not ours: {words}",
        f"file {world.settings.cdi_directory}/xce-claim_b1.json: not ours: {words}",
        f"file {world.place}/scratch/xce-b1.img: not ours: {words}",
    ]
    assert (job.poll(), world.leftovers()) == (None, before)
    world.executor.check()
    assert world.report(report.binding).conditions == []
    world.release(report.binding)
    job.wait(20)


@pytest.mark.parametrize("what", ["group", "cdi", "scratch"])
def test_what_another_agent_has_under_the_same_name_is_neither_taken_nor_ended_nor_removed(
    world: World, other: World, what: str
) -> None:
    """Two clusters on one host number their bindings alike."""
    ask = DISK if what == "scratch" else Ask()
    ours = world.bind(ask, binding="b7", consumer=Consumer(name="job", user="alice"))
    job = in_group(world, "b7")
    before = world.leftovers()
    name = {"group": "job", "cdi": "another", "scratch": "another"}[what]
    if what == "scratch":
        other.settings = msgspec.structs.replace(other.settings, cdi_directory="")
        other.restart()
    theirs = other.bind(ask, binding="b7", consumer=Consumer(name=name, user="alice"))
    assert theirs.state is BindingState.FAILED
    assert f"it is of another agent, {world.node.owner.id}, for b7" in theirs.reason
    assert (job.poll(), world.leftovers()) == (None, before)
    world.executor.check()
    assert world.report(ours.binding).conditions == []
    assert world.release("b7").state is BindingState.RELEASED
    job.wait(20)


@pytest.mark.parametrize("what", ["directory", "cgroup"])
def test_what_was_made_before_a_setting_became_another_is_ours_until_it_has_gone(
    world: World, what: str
) -> None:
    report = world.bind(DISK, cards=["full"])
    job = in_group(world, report.binding)
    node, directory = world.node, world.settings.directory
    (later := world.group.child("later")).create()
    other = {"directory": f"{world.place}/moved", "cgroup": later.path}
    world.settings = msgspec.structs.replace(world.settings, **{what: other[what]})
    world.restart()
    world.executor.check()
    assert world.report(report.binding).conditions == []
    assert world.release(report.binding).state is BindingState.RELEASED
    job.wait(20)
    assert [*world.group.children(), *Path(world.place, "scratch").iterdir()] == [later]
    assert not Path(directory, report.binding).exists()
    world.restart()
    assert (world.node.owner.id != node.owner.id) == (what == "directory")
    assert world.node.groups == (later if what == "cgroup" else node.groups)
    assert later.remove()


def strip(path: str) -> None:
    os.removexattr(path, ATTRIBUTE)


def test_what_an_older_version_has_made_is_ours_by_the_journal_and_gets_its_mark(world: World) -> None:
    """Its things have names alone; nothing of them is an orphan, and all of them work on."""
    report = world.bind(FULL_ASK, cards=["full"])
    tagged = [
        *world.evidence(report.binding, "group")["groups"],
        f"{world.settings.directory}/{report.binding}",
        f"{world.settings.cdi_directory}/xce-claim_{report.binding}.json",
    ]
    for path in tagged:
        strip(path)
    world.settings = msgspec.structs.replace(world.settings, orphans=Orphans.CLEAN)
    world.restart()
    world.executor.scan()
    assert world.executor.orphans == []
    world.executor.check()
    assert world.report(report.binding).conditions == []
    assert {world.node.owner.whose(path)[0] for path in tagged} == {Mark.OURS}
    assert world.release(report.binding).state is BindingState.RELEASED


def test_what_has_our_name_and_no_mark_is_told_and_stays(world: World, tmp_path: Path) -> None:
    """Somebody has made it by hand; or a version that wrote no marks, which lost its journal."""
    world.settings = msgspec.structs.replace(world.settings, orphans=Orphans.CLEAN)
    world.restart()
    world.group.child("xce-consumer-mine").create()
    place = Path(world.settings.directory, "b99")
    (place / "data").mkdir(parents=True)
    with opened(mountapi.make("tmpfs", {})) as tree, opened(os.open(place / "data", os.O_PATH)) as at:
        mountapi.attach(tree, at)
    (world.place / "scratch/xce-b99.dir").mkdir()
    world.executor.scan()
    words = "not ours: no agent has written its name on it"
    assert sorted(world.executor.orphans) == sorted(
        [
            f"control group {world.group.path}/xce-consumer-mine: {words}",
            f"mount {place}/data (tmpfs none): {words}",
            f"directory {place}: {words}",
            f"scratch {world.place}/scratch/xce-b99.dir: {words}",
        ]
    )
    syscalls.umount2(str(place / "data"), 0)
    assert (world.place / "scratch/xce-b99.dir").is_dir()
    assert world.group.child("xce-consumer-mine").exists()


def test_where_nothing_can_be_written_names_must_do_and_the_evidence_says_so(
    world: World, tmp_path: Path
) -> None:
    """ramfs keeps no attributes."""
    world.stop()
    with opened(mountapi.make("ramfs", {})) as tree, opened(os.open(tmp_path / "run", os.O_PATH)) as at:
        mountapi.attach(tree, at)
    world.settings = msgspec.structs.replace(world.settings, orphans=Orphans.CLEAN)
    world.start()
    try:
        report = world.bind(FULL_ASK)
        where = f"{world.settings.directory}/{report.binding}"
        assert world.evidence(report.binding, "environment")["owner"] == (
            f"known by its name alone: cannot be written on {where}: Operation not supported"
        )
        assert world.report(report.binding).conditions == []
        lost = Path(world.settings.directory, "b99")
        lost.mkdir()
        world.executor.scan()
        assert (world.executor.orphans, lost.exists()) == ([], False)
        assert world.release(report.binding).state is BindingState.RELEASED
    finally:
        world.stop()
        syscalls.umount2(str(tmp_path / "run"), syscalls.MNT_DETACH)


def test_a_lost_agents_things_are_found_again_by_the_one_after_it(world: World) -> None:
    """Its id does not come from what it knew."""
    first = world.node.owner.id
    world.stop()
    for file in (world.place / "state").iterdir():
        file.unlink()
    world.start()
    assert world.node.owner.id == first


_WHOSE = """
import sys
from xce.prepare.tags import Owner
print(Owner("us", "boot").whose(sys.argv[1])[0].name, Owner("us", "boot").take(sys.argv[1], "b1"))
"""


def whose(path: Path, *command: str) -> str:
    """As a process of its own sees it."""
    return subprocess.run(
        [*command, sys.executable, "-c", _WHOSE, str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    ).stdout.strip()


def test_an_agent_that_cannot_write_marks_takes_what_has_none_for_what_its_name_says(tmp_path: Path) -> None:
    """Without CAP_SYS_ADMIN there is no mark to be seen anywhere: its own control groups have none either."""
    bounded = whose(tmp_path, "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all")
    assert bounded.startswith("UNKNOWN {'owner': 'known by its name alone")
    assert whose(tmp_path) == "NOBODYS {}"
    assert Owner("us", "boot").whose(str(tmp_path))[0] is Mark.OURS
    assert whose(tmp_path, "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all") == bounded


HOLDS = "import sys; from xce.prepare import tags; tags.hold(sys.argv[1]); print('held', flush=True); input()"


def test_a_second_agent_with_one_directory_serves_no_claims_while_the_first_is_there(world: World) -> None:
    """Both would have one id, and the second would end what the first has made."""
    world.stop()
    directory = world.settings.directory
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDS, directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert first.stdout is not None
    assert first.stdout.readline() == b"held\n"
    with pytest.raises(OSError, match=f"pid {first.pid} works there: another agent needs claims.directory"):
        world.start()
    first.kill()  # not waited for: what has ended holds nothing
    world.start()
    first.communicate()


@pytest.mark.parametrize("place", ["run/b1/env", "cdi/xce-claim_b1.json"])
def test_what_is_in_the_way_of_a_file_of_ours_is_no_wait_without_end(world: World, place: str) -> None:
    path = world.place / f"{place}.new"
    path.parent.mkdir(parents=True, exist_ok=True)
    world.node.owner.take(str(path.parent), "b1")
    os.mkfifo(path)
    report = world.bind(FULL_ASK, cards=["full"], binding="b1")
    assert report.state is BindingState.READY, report.reason
    assert (world.place / place).is_file()
    assert not path.exists()
