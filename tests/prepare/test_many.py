"""Many bindings: taken up again quickly, looked at cheaply, and nothing grows with those that have ended."""

import os
import time
from pathlib import Path

import pytest

from tests.prepare.world import World
from xce.model.claim import Ask, BindingState, MountAsk, PortsAsk

pytestmark = [pytest.mark.root, pytest.mark.slow]

MANY = int(os.environ.get("XCE_TEST_BINDINGS", "200"))
"""What a binding costs is asked for, so few show it as well as many; 500 and more for a long look."""
ASK = Ask(mounts=[MountAsk(name="a", source="data"), MountAsk(name="b", source="data", read_only=True)])


def resident() -> int:
    """Pages of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1])


def counts(world: World) -> tuple[int, int, int]:
    """Descriptors, things that bindings work on, bindings that something was said of."""
    return len(os.listdir("/proc/self/fd")), len(world.executor._by_key), len(world.executor._told)


def all_ready(world: World) -> bool:
    return {report.state for report in world.executor.reports()} == {BindingState.READY}


def test_many_bindings_are_taken_up_and_looked_at_quickly(fast: Path, world: World) -> None:
    for _ in range(MANY):
        binding, claim = world.order(ASK)
        world.executor.prepare(op_id=f"op-{binding.id}", epoch=1, binding=binding, claim=claim, instances={})
    world.until(lambda: all_ready(world), within=60)
    before = time.monotonic()
    world.restart()
    world.executor.advance()
    while world.executor._unchecked:
        world.executor.advance()
    taken_up = time.monotonic() - before
    assert all_ready(world)
    before = time.monotonic()
    world.executor.check()
    looked = time.monotonic() - before
    print(f"taken up in {taken_up:.2f} s, looked at in {looked * 1000:.0f} ms")
    assert taken_up < 0.5 + MANY * 0.004  # ten times what it takes on an idle machine
    assert looked < 0.1 + MANY * 0.001


def test_a_look_at_a_binding_with_ports_does_not_go_by_those_of_all_others(fast: Path, world: World) -> None:
    """Four times as many take about four times as long; not sixteen times."""

    def look(many: int) -> float:
        while len(world.executor.entries) < many:
            binding, claim = world.order(Ask(ports=[PortsAsk(name="p", count=1)]))
            world.executor.prepare(op_id="", epoch=1, binding=binding, claim=claim, instances={})
        world.until(lambda: all_ready(world), within=60)
        times = []
        for _ in range(5):
            before = time.process_time()
            world.executor.check()
            times.append(time.process_time() - before)
        return min(times)

    few = look(100)
    assert look(400) < 8 * few


def test_bindings_that_came_and_went_leave_nothing(fast: Path, world: World) -> None:
    for _ in range(50):
        world.release(world.bind(Ask()).binding)
    before, pages = counts(world), resident()
    for _ in range(2 * MANY):
        world.release(world.bind(Ask()).binding)
    world.executor.news()
    assert counts(world) == before
    assert resident() - pages < 2 * MANY  # pages: tombstones, and what the allocator keeps
    assert world.leftovers() == []
