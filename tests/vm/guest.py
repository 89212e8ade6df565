"""What runs within the machine of test_claims.py: pytest is given this file by name there, and only there."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.prepare.quota_disk import Disk
from tests.prepare.world import OTHER, OWN, World
from xce.agent.probe import instances, links, sysfs
from xce.agent.probe.topology import topology
from xce.linux.cgroup import Cgroup
from xce.linux.proc import boot_id
from xce.model.claim import Ask, BindingState, Chosen, MountAsk
from xce.model.instance import Health
from xce.prepare.entry import Report
from xce.prepare.execute import Refused

JOBS = Cgroup("/sys/fs/cgroup/jobs")
READY, RELEASED = BindingState.READY, BindingState.RELEASED


@pytest.fixture(name="world")
def make_world(tmp_path: Path) -> Iterator[World]:
    JOBS.create()
    world = World(tmp_path, JOBS)
    yield world
    world.close()


def inside(world: World, binding: str, code: str) -> subprocess.CompletedProcess[str]:
    """Python in the consumer's control group."""
    command = world.inside(binding, [sys.executable, "-I", "-S", "-c", code])
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_limits_of_version_2_can_be_set_for_a_consumer_and_hold(world: World) -> None:
    """The controllers are handed on to it, with nothing of them set."""
    world.bind(Ask(), cards=["full"], binding="b1")
    evidence = world.evidence("b1", "group")
    assert {"cpu", "memory", "pids"} <= set(evidence["controllers"])
    [group] = evidence["groups"]
    limits = {name: Path(group, name) for name in ("memory.max", "memory.swap.max", "pids.max")}
    assert limits["memory.max"].read_text() == "max\n"
    limits["memory.max"].write_text("40M")
    assert inside(world, "b1", "len(bytearray(100 << 20))").returncode == -9
    assert "oom_kill 1" in Path(group, "memory.events").read_text()
    limits["pids.max"].write_text("1")
    assert "Resource temporarily unavailable" in inside(world, "b1", "import os; os.fork()").stderr
    assert world.release("b1").state is RELEASED
    assert not JOBS.children()


def adapters(world: World) -> list[str]:
    """The RDMA devices, as the agent's probe finds them; it offers none that is on no PCI function."""
    machine = links.refine(sysfs.read())
    found = [one for one in instances.found(machine, topology(machine)).instances if one.kind == "rdma"]
    replace = msgspec.structs.replace
    world.instances |= {one.id: replace(one, health=Health.AVAILABLE, reason="") for one in found}
    return sorted(one.id for one in found)


def bind(world: World, adapter: str, binding: str) -> Report:
    order, claim = world.order(Ask(), binding=binding)
    chosen = [Chosen(id=adapter, reporter="discovery", generation=1, kind="rdma")]
    order = msgspec.structs.replace(order, instances=chosen)
    world.executor.prepare(op_id=binding, epoch=1, binding=order, claim=claim, instances=world.instances)
    return world.settled(binding)


def test_a_claim_of_an_rdma_adapter_gives_its_device_and_no_other(world: World) -> None:
    names = adapters(world)
    assert names == ["rdma:rxe0", "rdma:rxe1"]
    for binding, name in zip(("b1", "b2"), names, strict=True):
        assert bind(world, name, binding).state is READY
    devices = ["/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"]
    assert world.node.isolation.mechanism == "bpf"
    assert world.opened("b1", *devices) == ["ok", "Operation not permitted", "ok"]
    assert world.opened("b2", *devices) == ["Operation not permitted", "ok", "ok"]
    assert world.variables("b1")["NCCL_IB_HCA"] == "=rxe0:1"
    with pytest.raises(Refused, match="rdma:rxe0 is held by binding b1"):
        bind(world, "rdma:rxe0", "b3")
    assert world.release("b1").state is RELEASED
    assert bind(world, "rdma:rxe0", "b4").state is READY
    for binding in ("b2", "b4"):
        assert world.release(binding).state is RELEASED


PLACE = Path("/disk/node")
"""On a disk that outlasts the machine; /disk/scratch has project quotas, PLACE/run is in memory."""
SCRATCH = Path("/disk/scratch")
ASK = Ask(scratch_bytes=8 << 20, scratch="quota", mounts=[MountAsk(name="data", source="data")])


class Power:
    """Lost at a point that is passed: from then on nothing is written any more."""

    lost_at = ""

    def __call__(self, name: str) -> None:
        if name == self.lost_at:
            Path("/proc/sysrq-trigger").write_text("b")


def node(mark: Callable[[str], None]) -> World:
    JOBS.create()
    world = World(PLACE, JOBS, quota=SCRATCH, mark=mark)
    world.boot = boot_id()
    world.restart()
    return world


def test_before_a_reboot() -> None:
    """One claim is ready, one is being released, and one is being made when the power goes."""
    power = Power()
    world = node(power)
    for binding, card in (("ready", "full"), ("leaving", "zero")):
        assert world.bind(ASK, cards=[card], binding=binding).state is READY
        place = world.evidence(binding, "scratch")["point"]
        Path(place, "file").write_bytes(bytes(1 << 20))
    busy = os.open(f"{world.evidence('leaving', 'scratch')['point']}/file", os.O_RDONLY)
    assert "is busy" in world.release("leaving").note
    assert os.stat(busy).st_size
    power.lost_at = "scratch.room-made"
    world.bind(ASK, binding="begun")
    raise AssertionError("the machine runs on")


def test_after_a_reboot() -> None:
    """What was ready or begun is made anew, what was leaving has left; then all is taken back."""
    world = node(lambda _: None)
    orders = {name: entry.order for name, entry in world.executor.entries.items()}
    assert set(orders) == {"ready", "leaving", "begun"}
    assert boot_id() not in {order.boot for order in orders.values()}
    assert world.report("ready").state is BindingState.PREPARING
    assert world.settled("leaving").state is RELEASED
    world.executor.resume(world.instances)
    for binding in ("ready", "begun"):
        assert world.settled(binding).state is READY
        assert os.listdir(world.evidence(binding, "scratch")["point"]) == []
    assert world.opened("ready", OWN, OTHER) == ["ok", "Operation not permitted"]
    disk = Disk("xfs", SCRATCH)
    assert [limit for limit, _ in disk.limits().values()] == [8 << 20] * 2
    for binding in ("ready", "begun"):
        assert world.release(binding).state is RELEASED
    assert world.leftovers() == []
    assert disk.limits() == {}
