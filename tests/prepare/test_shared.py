"""C-DIR-03 to C-DIR-05: directories of users and jobs on a shared volume."""

import json
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.linux.test_mountapi import bind as bind_mount
from tests.prepare.test_names import NAMES, refused
from tests.prepare.world import OWN, World
from xce.linux import syscalls
from xce.linux.users import User
from xce.model.claim import Ask, BindingState, Condition, Consumer, SharedAsk
from xce.prepare import names

pytestmark = pytest.mark.root

HOME, AGAIN = Ask(shared=[SharedAsk(volume="home")]), Ask(shared=[SharedAsk(volume="again")])
RELEASED, FAILED, READY = BindingState.RELEASED, BindingState.FAILED, BindingState.READY


def tree(world: World) -> list[str]:
    """All that is there; what goes meanwhile is left out."""
    top = world.place / "shared"
    found = [Path(above, name) for above, folders, files in os.walk(top) for name in (*folders, *files)]
    return sorted(str(path.relative_to(top)) for path in found)


def test_an_element_of_an_array_has_its_own_directories(world: World) -> None:
    job = Consumer(name="1042[7]", user="alice", job="1042", index="7")
    report = world.bind(HOME, consumer=job)
    assert tree(world) == [
        "alice",
        "alice/1042",
        "alice/1042/7",
        "alice/1042/7/err",
        "alice/1042/7/in",
        "alice/1042/7/out",
    ]
    for path in (world.place / "shared").rglob("*"):
        assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (4711, 0o700)
    world.release(report.binding)
    assert tree(world) == []


def test_c_dir_03_a_share_that_gives_nothing_away_fails_and_leaves_nothing(world: World) -> None:
    """A child without CAP_CHOWN stands for a server that squashes root."""
    code = (
        "import sys, json; from xce.prepare.directories import share\n"
        "try: share(**json.loads(sys.argv[1]))\n"
        "except OSError as error: print(error.strerror, error.filename)"
    )
    question = {"root": str(world.place / "shared"), "elements": ["alice", "1"], "parts": ["in"], "uid": 4711}
    question |= {"new": [], "owner": ["us", "boot"], "binding": "b1", "host": "here"}
    command = ["setpriv", "--bounding-set=-chown", "--inh-caps=-all", sys.executable, "-c", code]
    done = subprocess.run(
        [*command, json.dumps(question | {"gid": 4711})],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "cannot give to 4711 (root squashed?) alice"
    assert tree(world) == []


def test_c_dir_04_every_name_of_a_job_is_one_directory_below_the_users(world: World) -> None:
    good = [name for name in NAMES if not refused(name) and name.isprintable() and name.strip() == name]
    for number, name in enumerate(good):
        job = Consumer(name=f"j{number}", user="alice", job=name)
        report = world.bind(HOME, binding=f"b{number}", consumer=job)
        assert report.state is READY, name
    assert len(list((world.place / "shared/alice").iterdir())) == len(good)
    assert [path.name for path in (world.place / "shared").iterdir()] == ["alice"]
    assert not (world.place / "etc").exists()


@pytest.mark.parametrize("name", ["x\0y", "n" * 256, "[" * 100])
def test_c_dir_04_a_name_that_cannot_be_is_refused_before_anything_is_made(world: World, name: str) -> None:
    report = world.bind(HOME, consumer=Consumer(name="j", user="alice", job=name))
    assert report.state is FAILED
    assert "name " in report.reason
    assert world.leftovers() == []


@pytest.mark.parametrize(
    "world", [{"find_user": lambda name: User(name, 4700 + NAMES.index(name), 4711)}], indirect=True
)
def test_c_dir_04_users_with_odd_names_are_directories_too(world: World) -> None:
    """Each of them has one of his own, directly below the volume, and his name can be read back."""
    good = [name for name in NAMES if not refused(name)]
    for number, name in enumerate(good):
        report = world.bind(HOME, binding=f"b{number}", consumer=Consumer(name="j", user=name, job=".."))
        assert report.state is READY, (name, report.reason)
    found = list((world.place / "shared").iterdir())
    assert {names.decode(path.name): path.stat().st_uid for path in found} == {
        name: 4700 + NAMES.index(name) for name in good
    }
    assert {tuple(os.listdir(path)) for path in found} == {("%2E.",)}
    for number in range(len(good)):
        world.release(f"b{number}")
    assert tree(world) == []


def test_a_directory_that_belongs_to_somebody_else_is_not_taken(world: World) -> None:
    place = world.place / "shared/alice"
    place.mkdir()
    os.chown(place, 4712, 4712)
    report = world.bind(HOME)
    assert report.state is FAILED
    assert "it is there and belongs to uid 4712, not to 4711" in report.reason
    assert tree(world) == ["alice"]


def test_a_link_in_the_users_own_directory_leads_nowhere(world: World, tmp_path: Path) -> None:
    place = world.place / "shared/alice"
    place.mkdir()
    os.chown(place, 4711, 4711)
    (place / "job-b1").symlink_to(tmp_path / "data")
    report = world.bind(HOME, binding="b1")
    assert report.state is FAILED
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["dir", "file"]


def test_a_job_that_runs_again_finds_its_directories_or_new_ones(world: World) -> None:
    job = Consumer(name="j", user="alice", job="9")
    first = world.bind(HOME, consumer=job, retention_s=3600)
    Path(world.variables(first.binding)["XCE_DIR_OUT"], "result").write_text("1")
    world.release(first.binding)
    again = world.bind(HOME, consumer=job, retention_s=3600)
    assert Path(world.variables(again.binding)["XCE_DIR_OUT"], "result").read_text() == "1"
    third = world.bind(AGAIN, consumer=job)
    assert world.variables(third.binding)["XCE_DIR_OUT"].endswith("/alice/9/attempt-2/out")
    fourth = world.bind(AGAIN, consumer=job)
    assert world.variables(fourth.binding)["XCE_DIR_OUT"].endswith("/alice/9/attempt-3/out")


def test_directories_that_two_bindings_have_go_with_the_last(world: World) -> None:
    job = Consumer(name="j", user="alice", job="9")
    one, two = world.bind(HOME, consumer=job), world.bind(HOME, consumer=job)
    out = Path(world.variables(two.binding)["XCE_DIR_OUT"], "result")
    out.write_text("1")
    world.release(one.binding)
    assert out.read_text() == "1"
    world.release(two.binding)
    assert tree(world) == []


def test_what_is_kept_goes_when_its_time_is_over(world: World) -> None:
    report = world.bind(HOME, retention_s=3600)
    world.release(report.binding)
    assert world.report(report.binding).state is RELEASED
    assert len(tree(world)) == 5
    world.ahead += 3599
    world.restart()
    world.executor.advance()
    assert len(tree(world)) == 5
    world.ahead += 2
    world.until(lambda: not tree(world))
    assert world.journal.kept == {}


def stays_for_an_hour(world: World) -> None:
    """From now on, give or take what has passed meanwhile, and no longer."""
    world.ahead += 3500
    world.executor.advance()
    assert len(tree(world)) == 5
    world.ahead += 101
    world.until(lambda: not tree(world))
    assert world.journal.kept == {}


@pytest.mark.parametrize("hours", [9, 24 * 365 * 56, -9])
def test_a_clock_that_is_set_does_not_end_the_time_of_what_is_kept(world: World, hours: int) -> None:
    """It was wrong before, or is now; and with the wrong clock it is not kept for ever either."""
    steps = [0.0]
    world.overrides["wall"] = lambda: time.time() + world.ahead + steps[0]
    world.restart()
    report = world.bind(HOME, consumer=JOB, retention_s=3600)
    assert world.release(report.binding).state is RELEASED
    steps[0] += 3600 * hours
    world.executor.advance()
    world.restart()
    stays_for_an_hour(world)


@pytest.mark.parametrize("hours", [9, 24 * 365 * 56, -9])
@pytest.mark.parametrize("boots", [False, True], ids=["restart", "reboot"])
def test_a_clock_that_is_set_while_the_agent_is_away_does_not_end_it_either(
    world: World, hours: int, *, boots: bool
) -> None:
    steps = [0.0]
    world.overrides["wall"] = lambda: time.time() + world.ahead + steps[0]
    world.restart()
    report = world.bind(HOME, consumer=JOB, retention_s=3 * 3600)
    assert world.release(report.binding).state is RELEASED
    for _ in range(2):  # the agent has seen that this has passed
        world.ahead += 3600
        world.executor.advance()
    steps[0] += 3600 * hours
    (world.reboot if boots else world.restart)()
    world.executor.advance()
    stays_for_an_hour(world)


def test_the_time_in_which_a_host_was_off_does_not_count(world: World) -> None:
    """Nobody knows how long it was: its clock may be wrong until it is set."""
    report = world.bind(HOME, consumer=JOB, retention_s=3600)
    assert world.release(report.binding).state is RELEASED
    world.ahead += 86400
    world.reboot()
    world.ahead += 3500
    world.executor.advance()
    assert len(tree(world)) == 5
    world.ahead += 101
    world.until(lambda: not tree(world))


def test_c_dir_05_what_cannot_be_removed_is_named_and_tried_again(world: World, tmp_path: Path) -> None:
    report = world.bind(HOME)
    out = Path(world.variables(report.binding)["XCE_DIR_OUT"])
    (out / "mounted").mkdir()
    (out / "file").write_text("x")
    (out / "link").symlink_to(tmp_path / "data")
    bind_mount(tmp_path / "data", out / "mounted")
    waiting = world.release(report.binding)
    assert waiting.conditions == [Condition.BLOCKED]
    assert waiting.note == f"{out}/mounted: a file system is mounted on it"
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["dir", "file"]
    syscalls.umount2(str(out / "mounted"), 0)
    world.executor.entries[report.binding].wake = time.monotonic()
    world.until(lambda: world.report(report.binding).state is RELEASED)
    assert tree(world) == []


def test_a_user_of_a_directory_service_is_asked_for_by_a_child(world: World) -> None:
    """`nobody` is none of the test's local users, but this host knows one."""
    report = world.bind(HOME, consumer=Consumer(name="j", user="nobody", job="1"))
    assert report.state is READY, report.reason
    assert (world.place / "shared/nobody/1/out").stat().st_uid == pwd.getpwnam("nobody").pw_uid


def test_a_user_that_nobody_knows_fails_it_and_leaves_nothing(world: World) -> None:
    report = world.bind(HOME, consumer=Consumer(name="j", user="no-such-user"))
    assert report.state is FAILED
    assert report.reason.startswith(
        "cannot find user 'no-such-user' on this node (its consumer's `user`, else"
    )
    assert world.leftovers() == []


JOB = Consumer(name="j", user="alice", job="9")


def kept_for_an_hour(world: World) -> None:
    """A job has run, and its directories are kept."""
    report = world.bind(HOME, consumer=JOB, retention_s=3600)
    Path(world.variables(report.binding)["XCE_DIR_OUT"], "first").write_text("1")
    assert world.release(report.binding).state is RELEASED


def test_what_is_kept_does_not_go_while_its_job_runs_again(world: World) -> None:
    kept_for_an_hour(world)
    again = world.bind(HOME, consumer=JOB)
    out = Path(world.variables(again.binding)["XCE_DIR_OUT"])
    world.ahead += 3601
    for _ in range(3):
        world.executor.advance()
    assert [path.name for path in out.iterdir()] == ["first"]
    world.release(again.binding)
    assert tree(world) == []
    world.until(lambda: not world.journal.kept)


def test_what_cannot_be_removed_in_time_does_not_keep_the_others(world: World, tmp_path: Path) -> None:
    kept_for_an_hour(world)
    other = world.bind(HOME, consumer=Consumer(name="k", user="alice", job="10"), retention_s=3600)
    world.release(other.binding)
    inside = world.place / "shared/alice/9/out/mounted"
    inside.mkdir()
    bind_mount(tmp_path / "data", inside)
    world.ahead += 3601
    world.until(lambda: not (world.place / "shared/alice/10").exists())
    assert inside.exists()
    assert list(world.executor.unremoved.values()) == [f"{inside}: a file system is mounted on it"]
    syscalls.umount2(str(inside), 0)
    world.ahead += 61
    world.until(lambda: not inside.exists())
    assert world.executor.unremoved == {}


def test_directories_of_an_element_outlive_those_of_its_job(world: World) -> None:
    element = world.bind(HOME, consumer=Consumer(name="j[7]", user="alice", job="9", index="7"))
    whole = world.bind(HOME, consumer=JOB)
    out = Path(world.variables(element.binding)["XCE_DIR_OUT"], "result")
    out.write_text("1")
    assert world.release(whole.binding).state is RELEASED
    world.executor.advance()
    assert out.read_text() == "1"
    world.release(element.binding)
    world.until(lambda: not tree(world))


def test_no_run_of_a_job_leaves_its_directories_when_others_ran_beside_it(world: World) -> None:
    runs = [world.bind(AGAIN, consumer=JOB, retention_s=0) for _ in range(3)]
    assert len({world.variables(run.binding)["XCE_DIR_OUT"] for run in runs}) == 3
    for run in runs:
        assert Path(world.variables(run.binding)["XCE_DIR_OUT"]).is_dir()
        world.release(run.binding)
    world.until(lambda: not tree(world))


def test_what_was_taken_back_before_a_long_wait_is_not_taken_back_twice(world: World) -> None:
    """The first run's card is held by a stranger when the job runs again, whose results are to be kept."""
    first = world.bind(HOME, consumer=JOB, cards=["full"])
    with open(OWN, "rb", buffering=0):
        assert world.release(first.binding).conditions == [Condition.BLOCKED]
        second = world.bind(HOME, consumer=JOB, cards=["zero"], retention_s=3600)
        out = Path(world.variables(second.binding)["XCE_DIR_OUT"], "result")
        out.write_text("1")
        world.release(second.binding)
        world.restart()
        assert Condition.BLOCKED in world.settled(first.binding).conditions
    world.until(lambda: world.report(first.binding).state is RELEASED)
    assert out.read_text() == "1"
