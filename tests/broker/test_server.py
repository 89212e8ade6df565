"""The loop, in a thread of the test: what it does when something inside or around it goes wrong."""

import contextlib
import itertools
import os
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from tests.broker.world import site
from xce.broker.audit import AuditLog
from xce.broker.background import Background
from xce.broker.core.effect import Effect
from xce.broker.core.ledger import Ledger
from xce.broker.core.machine import Broker
from xce.broker.core.peer import Peer
from xce.broker.server import Server
from xce.broker.store import Batch
from xce.broker.store.sqlite import SqliteStore
from xce.model import message as m
from xce.model.claim import Claim, ClaimForm
from xce.model.configuration import BrokerFile
from xce.model.fact import ClaimCreated
from xce.wire import codec
from xce.wire.router import Router


class Chores:
    """Stops the loop when the test wants."""

    def __init__(self) -> None:
        self.stop = False
        self.seconds = 0
        self._event = os.eventfd(0)

    def second(self, now: float) -> None:
        self.seconds += 1

    def signals(self) -> bool:
        return not self.stop

    def fileno(self) -> int:
        return self._event

    def end(self) -> None:
        self.stop = True
        os.eventfd_write(self._event, 1)


class Running:
    """A server on a local socket, and a raw peer."""

    def __init__(self, tmp_path: Path, store: SqliteStore) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        background = Background(say=lambda text: None)
        self.broker = Broker(
            BrokerFile(heartbeat=1), Ledger(), site(), incarnation="i", wall=lambda: "", now=time.monotonic()
        )
        self.server = Server(self.broker, store, AuditLog(str(tmp_path / "audit"), background))
        self.server.begin(self.broker.start(time.monotonic()))
        self.router: Router[Peer] = Router(
            listen=[],
            local=str(tmp_path / "b.sock"),
            key=None,
            admit=self.server.admit,
            gone=self.server.ended,
            context=self.context,
        )
        self.server.listen(self.router, None)
        self.chores = Chores()
        self._background, self._store = background, store
        self._thread = threading.Thread(target=self.server.run, args=(self.chores,), daemon=True)
        self._thread.start()
        self.peer = self.connect()

    def connect(self) -> "zmq.Socket[bytes]":
        peer = self.context.socket(zmq.DEALER)
        peer.linger = 0
        peer.connect(self.router.endpoints[0])
        return peer

    def ask(self, message: object) -> object:
        self.peer.send(codec.encode(message))  # type: ignore[arg-type]
        assert self.peer.poll(10_000), "no answer"
        return codec.decode_from_broker(self.peer.recv())

    def close(self) -> None:
        self.chores.end()
        self._thread.join(10)
        assert not self._thread.is_alive()
        self.peer.close()
        self.router.close()
        self.context.term()
        self._store.close(10)
        self._background.close(10)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path, SqliteStore(tmp_path))
    yield running
    running.close()


def test_a_bug_costs_the_message_that_met_it_and_is_told(running: Running) -> None:
    def broken(*_arguments: object) -> None:
        raise KeyError("a bug")

    running.broker._handlers[m.KeysRequest] = broken
    running.peer.send(codec.encode(m.KeysRequest(id="1")))
    status = running.ask(m.StatusRequest(id="2"))
    assert isinstance(status, m.BrokerStatus)
    assert status.counters["internal_errors"] == 1
    assert status.trouble == ["internal error, see the log: KeyError: 'a bug'"]


def test_a_bug_in_the_clockwork_does_not_end_the_loop(running: Running) -> None:
    def broken(_now: float) -> None:
        raise RuntimeError("tick")

    running.broker.sitemap.second = broken  # type: ignore[assignment,method-assign]
    deadline = time.monotonic() + 10
    while running.chores.seconds < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    status = running.ask(m.StatusRequest(id="2"))
    assert isinstance(status, m.BrokerStatus)
    assert status.counters["internal_errors"] >= 1


def test_facts_are_with_the_store_before_anything_is_published(tmp_path: Path) -> None:
    """Whoever waits for the disk does not wait for the followers too."""
    seen: list[str] = []

    class Told(SqliteStore):
        def submit(self, batch: Batch, token: int) -> bool:
            seen.append("submitted")
            return super().submit(batch, token)

    running = Running(tmp_path, Told(tmp_path))
    try:
        turn, handle = running.broker.turn, running.broker.handle

        def turned(now: float) -> list[Effect]:
            seen.append("published")
            return turn(now)

        def handled(peer: Peer, message: m.Tick | m.ToBroker, now: float) -> list[Effect]:
            seen.append("judged")
            return handle(peer, message, now)

        running.broker.turn, running.broker.handle = turned, handled  # type: ignore[method-assign]
        assert isinstance(running.ask(m.HostAdd(id="1", host="n1")), m.Done)
        judged, deadline = seen.index("judged"), time.monotonic() + 10
        while len(seen) < judged + 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert seen[judged : judged + 3] == ["judged", "submitted", "published"]
    finally:
        running.close()


def test_facts_wait_for_a_store_that_has_no_room_and_none_is_lost(tmp_path: Path) -> None:
    running = Running(tmp_path, SqliteStore(tmp_path, room=1))
    try:
        for number in range(50):
            running.peer.send(codec.encode(m.HostAdd(id=f"{number}", host=f"n{number}")))
        answers = []
        for _ in range(50):
            assert running.peer.poll(10_000)
            answers.append(codec.decode_from_broker(running.peer.recv()))
        assert all(isinstance(answer, m.Done) for answer in answers)
    finally:
        running.close()
    again = SqliteStore(tmp_path)
    assert len(again.load().facts) == 51
    again.close(10)


def test_what_was_handed_over_is_on_the_disk_at_the_end(tmp_path: Path) -> None:
    running = Running(tmp_path, SqliteStore(tmp_path))
    running.peer.send(codec.encode(m.HostAdd(id="1", host="last")))
    assert running.peer.poll(10_000)
    running.close()
    again = SqliteStore(tmp_path)
    loaded = again.load()
    assert len(loaded.facts) == 2
    assert list(loaded.answers) == ["admin:root 1"] or os.geteuid() != 0
    again.close(10)


def test_a_store_that_cannot_write_stops_the_start_in_words(tmp_path: Path) -> None:
    from xce.broker.store import StoreError

    class Full(SqliteStore):
        def submit(self, batch: Batch, token: int) -> bool:
            self._fault = "cannot record: no space left"
            return False

    store = Full(tmp_path)
    with pytest.raises(StoreError, match="no space left"):
        Running(tmp_path, store)
    store.close(10)


def test_a_peer_that_is_cut_hears_why_before_its_connection_ends(running: Running) -> None:
    agent, rival = running.connect(), running.connect()
    hello = m.Hello(protocol=m.PROTOCOL, role="agent", name="node1", nonce="1", address="first")
    agent.send(codec.encode(hello))
    assert agent.poll(10_000)
    running.ask(m.HostAdd(id="1", host="vm"))
    rival.send(codec.encode(m.Hello(protocol=m.PROTOCOL, role="agent", name="vm", nonce="2")))
    assert rival.poll(10_000)
    assert isinstance(codec.decode_from_broker(rival.recv()), m.Welcome)
    monitor = rival.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    running.ask(m.HostRelease(id="2", host="vm", reason="gone"))
    said = None
    while not isinstance(said, m.Refused):
        assert rival.poll(20_000)
        said = codec.decode_from_broker(rival.recv())
    assert said.code == "released"
    assert monitor.poll(10_000), "its connection was not ended"
    monitor.close()
    for socket in (agent, rival):
        socket.close()


def claim(name: str) -> m.ClaimCreate:
    return m.ClaimCreate(id=f"make-{name}", claim=Claim(id=name, form=ClaimForm.STANDALONE))


def test_whoever_asks_sees_what_was_answered_before(running: Running) -> None:
    """Also when the question comes in the moment for which followers are put off."""
    for number in range(50):
        assert isinstance(running.ask(claim(f"c{number}")), m.Done)
        claims = running.ask(m.ClaimsRequest(id=f"q{number}", claim=f"c{number}"))
        assert isinstance(claims, m.Claims)
        assert list(claims.claims) == [f"c{number}"]


def test_followers_hear_of_it_soon_after_the_caller_although_nothing_else_comes(running: Running) -> None:
    with contextlib.closing(running.connect()) as follower:
        waited = []

        def told() -> object:
            began = time.monotonic()
            assert follower.poll(20_000)
            waited.append(time.monotonic() - began)
            return codec.decode_from_broker(follower.recv())

        follower.send(codec.encode(m.SnapshotRequest(id="s")))
        begin = told()
        assert isinstance(begin, m.SnapshotBegin)
        while not isinstance(told(), m.SnapshotEnd):
            pass
        follower.send(codec.encode(m.WatchRequest(id="w", since=begin.position, credit=64)))
        assert isinstance(told(), m.WatchBegin)
        for number in range(20):
            answered = running.ask(claim(f"c{number}"))
            assert isinstance(answered, m.Done)
            delta = told()
            assert isinstance(delta, m.Delta)
            assert (delta.revision, list(delta.claims)) == (answered.revision, [f"c{number}"])
        assert statistics.median(waited) < 0.5, "the loop sleeps over what it owes"


def test_orders_without_end_do_not_keep_followers_waiting(running: Running) -> None:
    """A moment is over although callers come back at once, again and again."""
    answered, published = 0, [0]
    turn = running.broker.turn

    def turned(now: float) -> list[Effect]:
        published.append(answered)
        return turn(now)

    running.broker.turn = turned  # type: ignore[method-assign]
    for number in range(8):
        running.peer.send(codec.encode(claim(f"c{number}")))
    for answered in range(1, 401):
        running.peer.send(codec.encode(claim(f"c{answered + 7}")))
        assert running.peer.poll(10_000)
        assert isinstance(codec.decode_from_broker(running.peer.recv()), m.Done)
    gaps = [later - earlier for earlier, later in itertools.pairwise([*published, answered])]
    assert max(gaps) < 200, "nothing was published while half of the orders were answered"


class Threads:
    """In which threads the core judges, by what it is given."""

    def __init__(self, running: Running) -> None:
        self.of: dict[str, str] = {}
        handle = running.broker.handle

        def handled(peer: Peer, message: m.Tick | m.ToBroker, now: float) -> list[Effect]:
            if isinstance(message, m.ClaimCreate | m.StatusRequest):
                self.of[message.id] = threading.current_thread().name
            return handle(peer, message, now)

        running.broker.handle = handled  # type: ignore[method-assign]
        self._running, self._count = running, 0

    def until_lent(self, orders: int) -> None:
        """Give orders alone until so many were judged in the store's thread."""
        deadline = time.monotonic() + 20
        while list(self.of.values()).count("store") < orders:
            self._count += 1
            assert isinstance(self._running.ask(claim(f"lent{self._count}")), m.Done)
            if time.monotonic() > deadline:
                slow = not self._running.server._commits.quick()
                pytest.skip("the disk is too slow") if slow else pytest.fail("the loop is never lent")


def test_orders_of_a_caller_alone_are_judged_where_they_are_recorded(running: Running) -> None:
    """Two words between threads less for each. What is no order is the loop's own again."""
    threads = Threads(running)
    for number in range(20):
        threads.until_lent(5)
        assert isinstance(running.ask(m.StatusRequest(id=f"s{number}")), m.BrokerStatus)
        threads.of.clear()


def test_followers_hear_soon_of_what_came_while_the_loop_was_lent(running: Running) -> None:
    """What somebody says right after an order was answered is not slept over, though nothing else comes."""
    threads, told = Threads(running), threading.Event()
    judge, turn = running.broker.handle, running.broker.turn

    def judged(peer: Peer, message: m.Tick | m.ToBroker, now: float) -> list[Effect]:
        effects = judge(peer, message, now)
        told.clear()
        return effects

    def turned(now: float) -> list[Effect]:
        told.set()
        return turn(now)

    running.broker.handle, running.broker.turn = judged, turned  # type: ignore[method-assign]
    waited: list[float] = []
    deadline = time.monotonic() + 20
    while len(waited) < 8 and time.monotonic() < deadline:
        threads.until_lent(1)
        assert isinstance(running.ask(m.StatusRequest(id="s")), m.BrokerStatus)
        began = time.monotonic()
        assert told.wait(5)
        if threads.of["s"] == "store":
            waited.append(time.monotonic() - began)
        threads.of.clear()
    if not waited:
        pytest.skip("the machine is too busy: nothing came while the loop was lent")
    assert statistics.median(waited) < 0.2


def test_a_disk_that_hangs_stops_neither_the_loop_nor_its_end(tmp_path: Path) -> None:
    """Also when the thread that is with the disk had the loop."""
    store = SqliteStore(tmp_path)
    running = Running(tmp_path, store)
    try:
        threads = Threads(running)
        threads.until_lent(5)
        with contextlib.closing(running.connect()) as other, store._recorder._alone:
            running.peer.send(codec.encode(claim("waits")))
            time.sleep(0.1)
            for number in range(3):
                began = time.monotonic()
                other.send(codec.encode(m.StatusRequest(id=f"during-{number}")))
                assert other.poll(10_000)
                assert isinstance(codec.decode_from_broker(other.recv()), m.BrokerStatus)
                assert time.monotonic() - began < 5
            other.send(codec.encode(claim("waits-too")))
            assert not other.poll(100), "nothing is answered that is not on the disk"
            assert threads.of["during-0"] != "store"
            assert not running.peer.poll(0)
        assert running.peer.poll(10_000)
        answer = codec.decode_from_broker(running.peer.recv())
        assert isinstance(answer, m.Done)
        assert answer.id == "make-waits"
        assert isinstance(running.ask(claim("after")), m.Done)
        with store._recorder._alone:
            running.peer.send(codec.encode(claim("last")))
            time.sleep(0.1)
            running.chores.end()
            running._thread.join(10)
            assert not running._thread.is_alive()
    finally:
        running.close()
    again = SqliteStore(tmp_path)
    made = [fact.change.claim.id for fact in again.load().facts if isinstance(fact.change, ClaimCreated)]
    assert made[-4:] == ["waits", "waits-too", "after", "last"]
    again.close(10)


def test_a_bug_where_the_loop_is_lent_keeps_neither_the_loop_nor_the_answers(running: Running) -> None:
    def broken() -> bool:
        assert threading.current_thread().name == "store"
        raise KeyError("a bug")

    Threads(running).until_lent(1)
    running.server._take_alone = broken  # type: ignore[method-assign]
    deadline = time.monotonic() + 20
    while not running.broker.state.counts["internal_errors"] and time.monotonic() < deadline:
        assert isinstance(running.ask(claim(f"c{time.monotonic_ns()}")), m.Done)
    status = running.ask(m.StatusRequest(id="2"))
    assert isinstance(status, m.BrokerStatus)
    assert status.trouble == ["internal error, see the log: KeyError: 'a bug'"]


def test_orders_of_many_callers_at_once_are_all_answered(running: Running) -> None:
    """Whoever has the loop, and however often it goes from thread to thread."""
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(contextlib.closing(running.connect())) for _ in range(5)]
        for number in range(60):
            busy = callers[: 1 + number % 5]
            for index, caller in enumerate(busy):
                caller.send(codec.encode(claim(f"c{number}-{index}")))
            for caller in busy:
                assert caller.poll(10_000)
                assert isinstance(codec.decode_from_broker(caller.recv()), m.Done)
    claims = running.ask(m.ClaimsRequest(id="q"))
    assert isinstance(claims, m.Claims)
    assert len(claims.claims) == 60 * 3
