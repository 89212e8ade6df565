"""The client library against the real broker process: whatever happens, the view is the broker's own."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.fakes.cuttable_wire import CuttableWire
from tests.fakes.fed_agent import FedAgent
from tests.fakes.live_broker import LiveBroker
from xce.broker.client import (
    Broker,
    BrokerRefused,
    BrokerUnreachable,
    Changed,
    Client,
    Event,
    Fresh,
    LinkNews,
    Mirror,
    Watch,
)
from xce.broker.client_async import AsyncClient
from xce.model.instance import Instance, Inventory
from xce.model.message import HoldAdd, HostDrain, KeyAdd, KeyRevoke, StatusRequest
from xce.model.role import Role
from xce.model.value import Reading
from xce.wire import keys

pytestmark = pytest.mark.system


@contextmanager
def updates(agent: FedAgent, each_s: float = 0.01) -> Iterator[None]:
    """About 100 changes a second, of several names."""
    stop = threading.Event()

    def feed() -> None:
        count = 0
        while not stop.wait(each_s):
            count += 1
            agent.feed(level=count, label=random.choice(["a", "b", "c"]))

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


def until(watch: Watch, found: Callable[[Event], bool], seconds: float = 20) -> Event:
    """The first event that is the one; events before it are applied."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        event = watch.next(left)
        if event is not None and found(event):
            return event
    raise AssertionError("it has not come")


def fresh(event: Event) -> bool:
    return isinstance(event, Fresh)


def assert_same_view(watch: Watch, broker: Broker, seconds: float = 20) -> None:
    """What the watcher holds is, at one position, exactly what the broker says."""
    with Client(broker) as client:
        own = client.snapshot()
    deadline = time.monotonic() + seconds
    while watch.mirror is None or watch.mirror.position != own.position:
        if watch.mirror is not None and watch.mirror.position.sequence > own.position.sequence:
            with Client(broker) as client:
                own = client.snapshot()
        assert time.monotonic() < deadline, "the watcher does not reach the broker's position"
        watch.next(0.2)
    assert_same(watch.mirror, own)


def assert_same(held: Mirror, own: Mirror) -> None:
    assert held.locations == own.locations
    assert held.types == own.types
    assert held.revision == own.revision


def test_a_consumer_that_starts_in_the_middle_of_updates_sees_the_brokers_view(tmp_path: Path) -> None:
    """C-MSG-05: twenty times, each soon, without a gap between snapshot and first change."""
    with LiveBroker(tmp_path) as broker, FedAgent(broker.local, "node1", {"level": 0}) as agent:
        agent.wait_welcome()
        with updates(agent):
            for _ in range(20):
                started = time.monotonic()
                with Client(broker.local) as client:
                    watch = client.watch()
                    until(watch, fresh)
                    until(watch, lambda event: isinstance(event, Changed))
                    assert_same_view(watch, broker.local)
                assert time.monotonic() - started < 20


def test_a_slow_watcher_is_cut_off_told_and_whole_again(tmp_path: Path) -> None:
    with (
        LiveBroker(tmp_path, keep_deltas=20) as broker,
        FedAgent(broker.local, "node1", {"level": 0, "label": "a"}) as agent,
        Client(broker.local) as client,
    ):
        agent.wait_welcome()
        watch = client.watch(credit=4)

        def values() -> dict[str, Reading]:
            return watch.mirror.locations["host:node1"].values if watch.mirror else {}

        until(watch, lambda _event: "label" in values())
        agent.feed(label=None)
        for number in range(1, 200):
            agent.feed(level=number)
            time.sleep(0.006)
        again = until(watch, fresh)
        assert isinstance(again, Fresh)
        assert "too slow" in again.reason
        assert "label" not in values(), "what was removed meanwhile is gone"
        assert_same_view(watch, broker.local)
        assert client.ask(StatusRequest(id="")).counters["watchers_cut"] >= 1


def test_json_and_messagepack_watchers_hold_the_same(tmp_path: Path) -> None:
    with (
        LiveBroker(tmp_path) as broker,
        FedAgent(broker.local, "node1", {"level": 0}) as agent,
        Client(broker.local, json=True) as text,
        Client(broker.local) as packed,
    ):
        agent.wait_welcome()
        watches = [text.watch(), packed.watch()]
        with updates(agent):
            for watch in watches:
                until(watch, fresh)
            for _ in range(50):
                for watch in watches:
                    watch.next(1)
        for watch in watches:
            assert_same_view(watch, broker.local)


def test_a_killed_broker_is_followed_again_and_what_it_knows_is_marked(tmp_path: Path) -> None:
    with (
        LiveBroker(tmp_path) as broker,
        FedAgent(broker.local, "node1", {"level": 5}) as agent,
        Client(broker.local) as client,
    ):
        agent.wait_welcome()
        watch = client.watch()
        until(watch, fresh)
        done = client.ask(HoldAdd(id="op-1", location="host:node1", reason="fan"))
        broker.kill()
        down = until(watch, lambda event: isinstance(event, LinkNews))
        assert isinstance(down, LinkNews)
        assert not down.up
        broker.start()
        again = until(watch, fresh)
        assert isinstance(again, Fresh)
        assert "another run of the broker" in again.reason
        assert [hold.reason for hold in again.mirror.locations["host:node1"].holds] == ["fan"]
        agent.wait_welcome(2)
        assert_same_view(watch, broker.local)
        assert client.ask(HoldAdd(id="op-1", location="host:node1", reason="fan")).revision == done.revision
        with pytest.raises(BrokerRefused, match="that id was given to another order") as caught:
            client.ask(HoldAdd(id="op-1", location="host:node2", reason="fan"))
        assert caught.value.code == "conflict"


def test_a_cut_wire_costs_no_snapshot_and_no_change(tmp_path: Path) -> None:
    broker = LiveBroker(tmp_path, tcp=True)
    controller = broker.new_key("ctl", Role.CONTROLLER)
    with (
        broker,
        CuttableWire(broker.port) as wire,
        FedAgent(broker.local, "node1", {"level": 0}) as agent,
        Client(Broker(f"tcp://127.0.0.1:{wire.port}", controller.key, controller.broker_key)) as client,
    ):
        agent.wait_welcome()
        watch = client.watch()
        until(watch, fresh)
        with updates(agent):
            for _ in range(5):
                wire.cut()
                while not isinstance(event := watch.next(10), LinkNews) or not event.up:
                    assert event is not None
                    assert not fresh(event), "the stream could go on where it was"
                until(watch, lambda event: isinstance(event, Changed))
        assert_same_view(watch, broker.local)


def test_wrong_keys_are_told_in_words_by_the_real_broker_too(tmp_path: Path) -> None:
    broker = LiveBroker(tmp_path, tcp=True)
    good = broker.new_key("ctl", Role.CONTROLLER)
    stranger, other = keys.new("x", Role.ADMIN), keys.new("broker", "broker")
    with broker:
        with (
            Client(broker.remote(stranger), timeout=10) as client,
            pytest.raises(BrokerUnreachable, match="rejected by broker"),
        ):
            client.snapshot()
        with (
            Client(Broker(good.endpoint, good.key, other.public), timeout=10) as client,
            pytest.raises(BrokerUnreachable, match="broker's key does not match"),
        ):
            client.snapshot()
        with Client(good) as client, pytest.raises(BrokerRefused, match=r"may not say key\.add") as caught:
            client.ask(KeyAdd(id="", name="a", role="admin", public="x" * 40))
        assert caught.value.code == "forbidden"


def test_a_revoked_key_loses_its_link_at_once(tmp_path: Path) -> None:
    broker = LiveBroker(tmp_path, tcp=True)
    pair = keys.new("ctl", Role.CONTROLLER)
    with broker, Client(broker.local) as admin:
        admin.ask(KeyAdd(id="", name="ctl", role="controller", public=pair.public.decode()))
        with Client(broker.remote(pair)) as client:
            watch = client.watch()
            until(watch, fresh)
            admin.ask(KeyRevoke(id="", name="ctl", reason="lost laptop"))
            until(watch, lambda event: isinstance(event, LinkNews) and not event.up)
            until(watch, lambda event: isinstance(event, LinkNews) and "rejected" in event.text)


def test_a_full_broker_says_so_in_its_words(tmp_path: Path) -> None:
    with LiveBroker(tmp_path, max_peers=1, metrics="") as broker, ExitStack() as stack:
        deadline = time.monotonic() + 10
        while True:  # whoever saw the broker start may not be gone for it yet
            first = stack.enter_context(Client(broker.local))
            with suppress(BrokerRefused):
                first.ask(StatusRequest(id=""))
                break
            first.close()
            assert time.monotonic() < deadline
        second = stack.enter_context(Client(broker.local))
        with pytest.raises(BrokerRefused, match="serves 1 peers already") as caught:
            second.ask(StatusRequest(id=""))
        assert caught.value.code == "busy"


def test_inventories_come_with_the_watch_and_are_fetched_when_new(tmp_path: Path) -> None:
    gpus = Inventory(
        reporter="fed", generation=1, complete=True, instances=[Instance(id="GPU-1", kind="gpu")]
    )
    more = Inventory(
        reporter="fed",
        generation=2,
        complete=True,
        instances=[*gpus.instances, Instance(id="GPU-2", kind="gpu")],
    )
    with (
        LiveBroker(tmp_path) as broker,
        FedAgent(broker.local, "node1", {"level": 0}, inventory=gpus) as agent,
        Client(broker.local) as client,
    ):
        agent.wait_welcome()
        watch = client.watch(inventories=True)

        def held() -> Inventory | None:
            return watch.mirror.inventory("host:node1", "fed") if watch.mirror else None

        until(watch, lambda _event: held() == gpus)
        agent.publish(more)
        until(watch, lambda _event: held() == more)


def test_the_async_client_holds_the_same_view(tmp_path: Path) -> None:
    async def main(broker: LiveBroker) -> None:
        async with AsyncClient(broker.local) as client:
            watch = client.watch()
            answers = await asyncio.gather(
                *(client.ask(HostDrain(id=f"op-{n}", host=f"node{n}", reason="fan")) for n in (1, 2, 3))
            )
            assert len({answer.revision for answer in answers}) == 3
            own = await client.snapshot()
            while watch.mirror is None or watch.mirror.position.sequence < own.position.sequence:
                assert await watch.next(10) is not None
            while watch.mirror.position != own.position:
                own = await client.snapshot()
                await watch.next(0.05)
            assert_same(watch.mirror, own)

    with LiveBroker(tmp_path) as broker:
        asyncio.run(main(broker))
