"""Both programs killed at random points under load: nothing answered is lost, nothing is left behind.

`XCE_KILL_SECONDS` says for how long; 10 by default.
"""

import os
import random
import time
from pathlib import Path

import pytest

from tests.system.harness import AgentProgram, Site
from xce.broker.client import BrokerUnreachable, Client, Watch
from xce.broker.mirror import Mirror
from xce.model.message import Done, HoldAdd, HoldRelease, HostDrain, HostUndrain, Order, PoolSet, Position

pytestmark = [pytest.mark.root, pytest.mark.system, pytest.mark.slow]

SECONDS = float(os.environ.get("XCE_KILL_SECONDS", "10"))
SEED = os.environ.get("XCE_KILL_SEED", str(os.getpid()))
BUSY = '#!/bin/sh\nn=$(date +%s%N); echo "{\\"load\\": ${n%??????}}"; sleep 0.1; sleep 60 &\n'


class Book:
    """What was answered, and what must therefore be true."""

    def __init__(self) -> None:
        self.answers: list[tuple[Order, int]] = []
        self.holds: dict[str, str] = {}
        """Label to reason."""
        self.amount: float | None = None
        self.drained = False

    def order(self, chance: random.Random, number: int) -> Order:
        op_id, label = f"op{number}", f"l{chance.randrange(20)}"
        match chance.randrange(5):
            case 0:
                return PoolSet(id=op_id, pool="cfd", resource="seats", base=float(number))
            case 1 if self.drained:
                return HostUndrain(id=op_id, host="node1")
            case 1:
                return HostDrain(id=op_id, host="node1", reason=f"reason {number}")
            case 2 if label in self.holds:
                return HoldRelease(id=op_id, location="pool:cfd", owner=f"admin:tester/{label}")
            case _:
                return HoldAdd(id=op_id, location="pool:cfd", label=label, reason=f"reason {number}")

    def took(self, order: Order, done: Done) -> None:
        self.answers.append((order, done.revision))
        match order:
            case PoolSet():
                self.amount = order.base
            case HostDrain() | HostUndrain():
                self.drained = isinstance(order, HostDrain)
            case HoldAdd():
                self.holds[order.label] = order.reason
            case HoldRelease():
                del self.holds[order.owner.rpartition("/")[2]]

    def is_true_in(self, mirror: Mirror) -> None:
        pool = mirror.locations["pool:cfd"]
        held = {hold.owner.rpartition("/")[2]: hold.reason for hold in pool.holds}
        assert held == self.holds
        if self.amount is not None:
            assert pool.amounts["seats"].base == self.amount
        assert (mirror.locations["host:node1"].state == "draining") == self.drained


def test_killed_at_random_under_load_nothing_answered_is_lost_and_nothing_is_left(site: Site) -> None:
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    types = [{"name": "seats", "kind": "numeric", "scope": "pool"}, {"name": "load", "kind": "numeric"}]
    pools = [{"name": "cfd", "resources": {"seats": {"base": 1}}}]
    site.broker.resources = {"types": types, "pools": pools}
    agent = site.agent("node1")
    for number in range(4):
        text = BUSY if number == 0 else BUSY.replace("load", "nothing")
        agent.script(f"busy{number}", text, interval=0.5, timeout=2)
    site.broker.start()
    agent.start()
    site.until(lambda: "load" in site.values("node1"))
    book = Book()
    end = time.monotonic() + SECONDS
    number = kills = 0
    with site.client(timeout=20) as client, site.client() as follower:
        watch = follower.watch()
        while time.monotonic() < end:
            for _ in range(chance.randrange(1, 40)):
                number += 1
                _give(site, client, book, book.order(chance, number), chance)
            kills += 1
            if chance.random() < 0.5:
                agent.kill()
                agent.start()
            if not site.broker.running():
                site.broker.start()
            book.is_true_in(client.snapshot())
            for order, revision in chance.sample(book.answers, min(5, len(book.answers))):
                assert client.ask(order).revision == revision, "one op_id, two answers"
        site.until(lambda: _healthy(site, agent), within_s=60)
        site.until(lambda: _agree(watch, client), within_s=20, every_s=0)
    print(f"{kills} rounds, {len(book.answers)} orders answered")
    seen = set(_zombies(agent.pid))  # one that has just ended is reaped in a moment
    site.until(lambda: not seen.intersection(_zombies(agent.pid)))
    assert len(os.listdir(f"/proc/{agent.pid}/fd")) < 64
    assert len(os.listdir(f"/proc/{site.broker.pid}/fd")) < 64
    assert agent.stop() == 0
    assert site.cgroup is not None
    assert site.cgroup.pids() == []
    left = [group.name for home in site.cgroup.children() for group in home.children()]
    assert left == []


def _give(site: Site, client: Client, book: Book, order: Order, chance: random.Random) -> None:
    """An order, with the broker killed under it now and then; the same id again is done once."""
    if chance.random() < 0.03 and site.broker.running():
        site.broker.process.kill()  # type: ignore[union-attr]  # at some point of what comes now
    for _ in range(5):
        try:
            book.took(order, client.ask(order, timeout=3))
            return
        except BrokerUnreachable:
            if site.broker.process is not None and site.broker.process.poll() is not None:
                site.broker.start()
    raise AssertionError(f"no answer to {order}\n{site.broker.tail()}")


def _healthy(site: Site, agent: AgentProgram) -> bool:
    status = agent.status()
    if not status or status["agent"]["pid"] != agent.pid or not agent.reporter("busy0").get("runs"):
        return False  # what the broker holds may be its predecessor's
    place = site.snapshot().locations["host:node1"]
    return isinstance(place.values.get("load"), int | float) and "silent" not in place.conditions


def _agree(watch: Watch, client: Client) -> bool:
    """A mirror that has followed from the begin is what a snapshot says, at the same position."""
    snapshot = client.snapshot()
    end = time.monotonic() + 20
    while (mirror := watch.mirror) is None or _is_before(mirror.position, snapshot.position):
        assert time.monotonic() < end, f"still at {mirror and mirror.position}, not at {snapshot.position}"
        watch.next(0.2)
    assert mirror.position == snapshot.position, "it has gone past the snapshot: another one is needed"
    there, here = snapshot.locations, mirror.locations
    wrong = {
        key: (here.get(key), there.get(key)) for key in {*here, *there} if here.get(key) != there.get(key)
    }
    assert not wrong, f"mirror and snapshot at {snapshot.position}: {wrong}"
    return True


def _is_before(one: Position, other: Position) -> bool:
    """Whether a follower at `one` may still come to `other`."""
    return one.incarnation != other.incarnation or one.sequence < other.sequence


def _zombies(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state == "Z" and int(parent) == pid:
            found.append(int(path.parent.name))
    return found
