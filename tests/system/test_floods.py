"""One host with a good key floods the broker with the worst that it may say; everybody else is served."""

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
import zmq

from tests.system.harness import AgentProgram, Site
from xce.model import message as m
from xce.model.instance import Instance, Inventory
from xce.model.resource import Kind, ResourceType
from xce.wire import codec
from xce.wire.keys import KeyPair

pytestmark = [pytest.mark.root, pytest.mark.system]

SECONDS = 3.0
HELLO = m.Hello(protocol=m.PROTOCOL, role="agent", name="evil", nonce="n")


def states(number: int) -> m.ReporterNews:
    state = m.ReporterState(state="waiting", cause=str(number))
    return m.ReporterNews(reporters={f"r{one}": state for one in range(1000)})


def inventory(number: int) -> m.InventoryNews:
    units = [
        Instance(id=f"{number}-{one}", kind="gpu", attributes={"text": "x" * 200}) for one in range(3000)
    ]
    return m.InventoryNews(
        inventory=Inventory(reporter="r", generation=number + 1, complete=True, instances=units)
    )


def types(number: int) -> m.Declare:
    return m.Declare(types={"f": [ResourceType(name="flips", kind=Kind.NUMERIC, maximum=float(number + 1))]})


def orders(number: int) -> m.HoldAdd:
    return m.HoldAdd(id=f"o{number}", location="host:node1", reason="x" * 4000)


@pytest.fixture
def node(site: Site) -> AgentProgram:
    site.broker.resources = {"types": [{"name": "ticks", "kind": "numeric"}]}
    agent = site.agent("node1")
    agent.script("ticks", '#!/bin/sh\necho "{\\"ticks\\": $(date +%s)}"\n', interval=0.5, timeout=2)
    return agent


@pytest.mark.parametrize("say", [states, inventory, types, orders])
def test_a_flood_of_one_host_keeps_nobody_else_waiting(
    site: Site, node: AgentProgram, say: Callable[[int], msgspec.Struct]
) -> None:
    """Some of these once kept the broker from answering at all, also its own stop."""
    evil = site.key("evil", "agent", hosts=("evil",))
    site.broker.start()
    node.start()
    site.until(lambda: isinstance(site.value("node1", "ticks"), int))
    size = site.broker.log.stat().st_size
    took = []
    with flood(site, evil, [codec.encode(say(number)) for number in range(50)]), site.client() as client:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            began = time.monotonic()
            client.ask(m.StatusRequest(id=""))
            took.append(time.monotonic() - began)
            time.sleep(0.02)
        value = site.value("node1", "ticks")
        assert isinstance(value, int)
        assert time.time() - value < 3
        assert site.broker.stop(10) == 0
    assert statistics.median(took) < 0.5
    assert site.broker.log.stat().st_size - size < 1 << 20


@contextlib.contextmanager
def flood(site: Site, key: KeyPair, messages: list[bytes]) -> Iterator[None]:
    """These again and again, as fast as they are taken; what is answered is not read."""
    over = threading.Event()

    def pour() -> None:
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.curve_publickey, dealer.curve_secretkey = key.public, key.secret
            dealer.curve_serverkey = site.broker.key.public
            dealer.linger, dealer.sndhwm = 0, 100
            dealer.connect(site.broker.endpoint)
            dealer.send(codec.encode(HELLO))
            while not over.is_set():
                for message in messages:
                    with contextlib.suppress(zmq.Again):
                        dealer.send(message, zmq.NOBLOCK)
                        continue
                    over.wait(0.001)

    thread = threading.Thread(target=pour)
    thread.start()
    try:
        time.sleep(0.5)
        yield
    finally:
        over.set()
        thread.join()
