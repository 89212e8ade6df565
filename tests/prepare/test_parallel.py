"""Many bindings at once: a slow one delays no other, and an order does not wait for all that is under way."""

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest

from tests.linux.hangfs import HangingMount
from tests.prepare.test_isolation import group_of, take_off
from tests.prepare.world import World
from xce.linux import bpf, mountinfo
from xce.model.claim import Ask, BindingState, MountAsk
from xce.model.profile import Volume
from xce.prepare.child import Errands

pytestmark = pytest.mark.root
READY = BindingState.READY
AFTER = 0.4
SLOW = Ask(mounts=[MountAsk(name="x", source="slow", subdirectory="a")])
MANY = 40


@pytest.fixture
def slow(tmp_path: Path, world: World) -> Iterator[HangingMount]:
    """A file server that takes its time; `slow` is a volume on it."""
    point = tmp_path / "slow"
    point.mkdir()
    mount = HangingMount(point, after=AFTER)
    volumes = world.settings.profiles["default"].volumes | {"slow": Volume(path=str(point))}
    profile = msgspec.structs.replace(world.settings.profiles["default"], volumes=volumes)
    world.settings = msgspec.structs.replace(world.settings, profiles={"default": profile})
    world.restart()
    yield mount
    world.close()
    mount.release()


def order(world: World, ask: Ask, *, cards: tuple[str, ...] = ()) -> str:
    """Give an order, and do nothing for it yet."""
    binding, claim = world.order(ask, cards=cards)
    world.executor.prepare(
        op_id=f"op-{binding.id}", epoch=1, binding=binding, claim=claim, instances=world.instances
    )
    return binding.id


def took(world: World, number: int) -> float:
    """Seconds until so many slow bindings are ready."""
    before = time.monotonic()
    names = [order(world, SLOW) for _ in range(number)]
    world.until(lambda: all(world.report(name).state is READY for name in names), within=20)
    return time.monotonic() - before


def test_slow_bindings_take_about_as_long_together_as_one_alone(world: World, slow: HangingMount) -> None:
    alone = took(world, 1)
    assert alone >= 2 * AFTER, "it looks, and it mounts"
    together = took(world, 8)
    assert together < 4 * alone, "one after the other they would take eight times as long"


def test_a_place_that_does_not_answer_has_half_of_the_children(tmp_path: Path) -> None:
    (point := tmp_path / "dead").mkdir()
    dead = HangingMount(point)
    errands = Errands(time.monotonic, 20, home=str(tmp_path))
    try:
        for number in range(20):
            asked = {"root": str(point), "elements": ["a"], "parts": [], "new": False}
            assert errands(f"dead/{number}", "look", asked, True) is None
        good = {"root": str(tmp_path), "elements": ["a"], "parts": [], "new": False}
        assert errands("good/0", "look", good, True) is None
        end = time.monotonic() + 10
        while (answer := errands("good/0", "look", good, True)) is None:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert (answer["elements"], answer["new"]) == (["a"], ["a"])
    finally:
        dead.release()
        errands.close()


def test_children_are_used_again_and_end_when_nothing_is_asked(tmp_path: Path) -> None:
    now = [0.0]
    errands = Errands(lambda: now[0], 20, home=str(tmp_path))
    asked = {"root": str(tmp_path), "elements": ["a"], "parts": [], "new": False}

    def answered(key: str) -> bool:
        return errands(key, "look", asked, True) is not None

    for number in range(3):
        end = time.monotonic() + 10
        while not answered(f"b/{number}"):
            assert time.monotonic() < end
            time.sleep(0.002)
    assert len(errands._idle) == 1
    assert errands.due() == 5
    now[0] += 5
    assert errands.answered() == ["b/0", "b/1", "b/2"]
    assert errands._idle == []
    assert errands.due() is None
    errands.close()


class Ticking:
    """A clock for which every look costs a hundredth of a second: a slice is the same few steps each time."""

    def __init__(self) -> None:
        self._ticks = count(1)

    def __call__(self) -> float:
        return next(self._ticks) / 100


def recovering(world: World) -> list[str]:
    """Many bindings that the machine's restart has voided, and the inventory is known."""
    names = [order(world, Ask()) for _ in range(MANY)]
    world.until(lambda: all(world.report(name).state is READY for name in names))
    world.boot = "boot-2"
    world.restart()
    world.executor.node = world.node._replace(clock=Ticking())
    world.executor.resume(world.instances)
    return names


def unready(world: World, names: list[str]) -> int:
    return sum(world.report(name).state is not READY for name in names)


def test_an_order_goes_through_while_many_recover(fast: Path, world: World) -> None:
    names = recovering(world)
    assert world.executor.advance() == 0.0
    assert 0 < unready(world, names) < MANY
    late = order(world, Ask(), cards=("full",))
    world.executor.advance()
    assert world.report(late).state is READY
    world.executor.release(op_id="end", epoch=1, binding=late)
    world.executor.advance()
    assert world.report(late).state is BindingState.RELEASED
    assert unready(world, names) > MANY // 2
    world.until(lambda: unready(world, names) == 0)


def test_drift_is_seen_while_many_recover(fast: Path, world: World) -> None:
    names = recovering(world)
    world.executor.advance()
    ready = next(name for name in names if world.report(name).state is READY)
    group = group_of(world, ready)
    take_off(group)
    while not bpf.query(group).ids:
        world.executor.advance()
        assert unready(world, names), "it was not mended before all had recovered"
    world.until(lambda: unready(world, names) == 0)


def test_a_volume_for_all_is_mounted_once_though_two_want_it_at_the_same_moment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mount is a child's, as that of a network file system."""
    monkeypatch.setattr(mountinfo, "LOCAL", mountinfo.LOCAL - {"tmpfs"})
    names = [order(world, Ask(mounts=[MountAsk(name="cache", source="staged")])) for _ in range(3)]
    world.until(lambda: all(world.report(name).state is READY for name in names))
    [staged] = [point for point in world.mounts() if "/.staged/" in point]
    assert len(world.node.mounts.at(staged)) == 1
    for name in names:
        world.executor.release(op_id=f"end-{name}", epoch=1, binding=name)
    world.until(lambda: not world.executor.entries)
    assert world.leftovers() == []
