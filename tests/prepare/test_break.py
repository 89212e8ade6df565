"""What users and callers do to a binding though nobody should: odd names, moved directories, two callers."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.prepare.world import DENIED, FULL_ASK, OTHER, OWN, World
from xce.model.claim import Ask, BindingState, Consumer, SharedAsk
from xce.prepare.execute import Refused
from xce.prepare.group import PREFIX

pytestmark = pytest.mark.root
READY, RELEASED, FAILED = BindingState.READY, BindingState.RELEASED, BindingState.FAILED

NAMES = [
    "../../x",
    "a/b",
    "-rf",
    "x\ny",
    "$(id)",
    "*",
    "[a]",
    "ü" * 30,
    " ",
    ".",
    "..",
    "%2F",
    "xce-consumer-x",
    "a\tb",
]


def groups_beside(world: World) -> list[str]:
    """Where a name that leads out would make a group; other tests have theirs there too."""
    found = os.listdir(Path(world.group.path).parent)
    return sorted(name for name in found if not name.startswith("xce-") or name.startswith(PREFIX))


@pytest.mark.parametrize("name", NAMES)
def test_a_consumer_of_any_name_stays_in_its_place(world: World, name: str) -> None:
    outside = sorted(os.listdir(world.place)), groups_beside(world)
    consumer = Consumer(name=name, user="alice", job=name, index=name)
    report = world.bind(FULL_ASK, cards=["full"], consumer=consumer)
    assert report.state is READY, report.reason
    assert len(world.group.children()) == 1
    assert world.opened(report.binding, OWN, OTHER) == ["ok", DENIED]
    world.restart()
    assert world.settled(report.binding).state is READY
    assert world.release(report.binding).state is RELEASED
    assert world.leftovers() == []
    now = set(os.listdir(world.place)), groups_beside(world)
    assert (sorted(now[0] - {"cdi", "run"}), now[1]) == (sorted(set(outside[0]) - {"cdi", "run"}), outside[1])


def job(world: World) -> Path:
    (place,) = (world.place / "shared" / "alice").iterdir()
    return place


def swap(place: Path, outside: Path) -> None:
    (place / "in").rename(place / "elsewhere")
    (place / "in").symlink_to(outside)


def move(place: Path, _outside: Path) -> None:
    place.rename(place.with_name("moved"))


def replace(place: Path, outside: Path) -> None:
    place.rename(place.with_name("moved"))
    place.symlink_to(outside)


def of_the_user(place: Path, outside: Path) -> None:
    place.parent.rename(place.parent.with_name("bob"))
    place.parent.symlink_to(outside)


def a_file(place: Path, _outside: Path) -> None:
    place.rename(place.with_name("moved"))
    place.write_text("x")


def remove(place: Path, _outside: Path) -> None:
    for name in ("in", "out", "err"):
        (place / name).rmdir()
    place.rmdir()


@pytest.mark.parametrize("act", [swap, move, replace, of_the_user, a_file, remove])
def test_directories_that_their_user_moves_or_swaps_lead_nobody_outside(
    world: World, tmp_path: Path, act: Callable[[Path, Path], None]
) -> None:
    outside = tmp_path / "precious"
    for name in ("in", "out", "err"):
        (outside / name).mkdir(parents=True)
        (outside / name / "file").write_text("x")
    report = world.bind(
        Ask(shared=[SharedAsk(volume="home")]), consumer=Consumer(name="j", user="alice", job="7")
    )
    assert report.state is READY
    act(job(world), outside)
    world.executor.check()
    assert world.release(report.binding).state is RELEASED
    assert sorted(str(p.relative_to(outside)) for p in outside.rglob("file")) == [
        "err/file",
        "in/file",
        "out/file",
    ]
    assert world.group.children() == []


def test_another_call_for_the_same_binding_gets_what_the_first_began(world: World) -> None:
    binding, claim = world.order(FULL_ASK, cards=["full"])
    asked: dict[str, Any] = {"epoch": 1, "binding": binding, "claim": claim, "instances": world.instances}
    first = world.executor.prepare(op_id="one", **asked)
    second = world.executor.prepare(op_id="two", **asked)
    assert first == second
    assert world.settled(binding.id).state is READY
    steps = [work.evidence for work in world.executor.entries[binding.id].works]
    world.executor.prepare(op_id="three", **asked)
    assert [work.evidence for work in world.executor.entries[binding.id].works] == steps
    assert world.release(binding.id).state is RELEASED
    with pytest.raises(Refused):
        world.executor.prepare(op_id="four", **asked)
    assert world.leftovers() == []


def test_processes_that_start_others_without_end_are_ended_too(world: World) -> None:
    report = world.bind(Ask(), cards=["full"])
    script = "trap '' TERM INT HUP; while :; do (trap '' TERM; sleep 30) & sleep 0.02; done"
    with subprocess.Popen(world.inside(report.binding, ["sh", "-c", script])) as child:
        assert world.release(report.binding, epoch=1).state in {RELEASED, BindingState.RELEASING}
        world.until(lambda: world.report(report.binding).state is RELEASED)
        assert child.wait(10) != 0
    assert world.leftovers() == []
