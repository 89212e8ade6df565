"""The client library over real sockets, against a broker that does what a test wants.

What the real broker and the client do together is in `test_client_live.py`.
"""

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.scripted_broker import Answers, ScriptedBroker
from xce.broker.client import (
    Broker,
    BrokerRefused,
    BrokerUnreachable,
    Changed,
    Client,
    Fresh,
    LinkNews,
    Watch,
)
from xce.model.message import (
    Delta,
    Done,
    Failed,
    HostDrain,
    LocationChange,
    LocationView,
    Lost,
    Position,
    Quality,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRequest,
    StatusRequest,
    ToBroker,
    WatchBegin,
    WatchRequest,
)
from xce.model.role import Role
from xce.model.supply import Source
from xce.wire import keys

HERE = Position(epoch=1, incarnation="one", sequence=5)


def silence(_message: ToBroker) -> Answers:
    return []


def obedient(message: ToBroker) -> Answers:
    """A map with one host and no changes; every order is done."""
    match message:
        case SnapshotRequest(id=name):
            view = LocationView(source=Source.CONFIG, state="available", values={"mem": 1})
            yield SnapshotBegin(
                id=name,
                revision=3,
                position=HERE,
                broker_ms=1,
                taken_at="",
                parts=1,
                quality=Quality(),
                types=[],
            )
            yield SnapshotPart(id=name, part=0, locations={"host:node1": view})
            yield SnapshotEnd(id=name)
        case WatchRequest(id=name, since=since):
            yield (
                WatchBegin(id=name, since=since)
                if since.incarnation == "one"
                else Lost(id=name, reason="gone")
            )
        case HostDrain(id=name):
            yield Done(id=name, revision=4)


def change(watch_id: str, sequence: int) -> Delta:
    return Delta(
        id=watch_id,
        position=Position(epoch=1, incarnation="one", sequence=sequence),
        revision=3,
        broker_ms=2,
        locations={"host:node1": LocationChange(values={"mem": sequence})},
    )


def at(path: Path) -> Broker:
    return Broker(f"ipc://{path}")


def until(watch: Watch, wanted: type, seconds: float = 10) -> object:
    """The next event of a kind, whatever comes before it."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        event = watch.next(left)
        if isinstance(event, wanted):
            return event
    raise AssertionError(f"no {wanted.__name__} within {seconds} s")


def heard(broker: ScriptedBroker, kind: type, count: int = 1) -> list[ToBroker]:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = [message for message in broker.heard if isinstance(message, kind)]
        if len(found) >= count:
            return found
        time.sleep(0.01)
    raise AssertionError(f"the broker has not heard {count} of {kind.__name__}")


@pytest.mark.parametrize("json", [False, True])
def test_an_order_gets_its_answer_in_either_encoding(tmp_path: Path, json: bool) -> None:
    with (
        ScriptedBroker(obedient, local=tmp_path / "b") as broker,
        Client(at(tmp_path / "b"), json=json) as client,
    ):
        done = client.ask(HostDrain(id="", host="node1", reason="fan"))
        assert done.revision == 4
        assert (broker.raw[0][:1] == b"{") is json


def test_a_refusal_has_code_message_and_hint(tmp_path: Path) -> None:
    def refuse(message: ToBroker) -> Answers:
        assert isinstance(message, HostDrain)
        return [Failed(id=message.id, code="not-found", message="no host node9", hint="xce-broker hosts")]

    with ScriptedBroker(refuse, local=tmp_path / "b"), Client(at(tmp_path / "b")) as client:
        with pytest.raises(BrokerRefused, match="no host node9") as caught:
            client.ask(HostDrain(id="", host="node9", reason="fan"))
        assert (caught.value.code, caught.value.hint) == ("not-found", "xce-broker hosts")


def test_a_silent_broker_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    with (
        ScriptedBroker(silence, local=tmp_path / "b"),
        Client(at(tmp_path / "b")) as client,
        pytest.raises(BrokerUnreachable, match=r"linked, but has not answered within 0.3 s"),
    ):
        client.ask(StatusRequest(id=""), timeout=0.3)
    with (
        Client(at(tmp_path / "none"), timeout=0.2) as client,
        pytest.raises(BrokerUnreachable, match=r"there is no socket .*/none") as caught,
    ):
        client.ask(StatusRequest(id=""))
    assert "systemctl status xce-broker" in caught.value.hint


def test_a_port_where_nobody_listens_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    mine, theirs = keys.new("me", Role.ADMIN), keys.new("broker", "broker")
    broker = Broker(f"tcp://127.0.0.1:{port}", mine, theirs.public)
    with (
        Client(broker, timeout=1) as client,
        pytest.raises(BrokerUnreachable, match=f"nobody answers at .*{port}$"),
    ):
        client.ask(StatusRequest(id=""))


@pytest.mark.parametrize(
    ("known", "right", "words"),
    [(False, True, "rejected by broker"), (True, False, "broker's key does not match")],
    ids=["our key is unknown", "the broker's key is another"],
)
def test_a_wrong_key_is_told_at_once_and_in_words(*, known: bool, right: bool, words: str) -> None:
    mine, theirs, other = keys.new("me", Role.ADMIN), keys.new("broker", "broker"), keys.new("x", "broker")
    with ScriptedBroker(obedient, key=theirs, accept=(mine.public,) if known else ()) as broker:
        peer = Broker(broker.endpoints[0], mine, theirs.public if right else other.public)
        started = time.monotonic()
        with Client(peer, timeout=30) as client, pytest.raises(BrokerUnreachable, match=words):
            client.ask(StatusRequest(id=""))
        assert time.monotonic() - started < 10


def test_a_key_that_becomes_known_works_without_a_new_client() -> None:
    mine, theirs = keys.new("me", Role.ADMIN), keys.new("broker", "broker")
    known: list[bytes] = []
    with ScriptedBroker(obedient, key=theirs) as broker:
        broker.accept = lambda public: "me" if public in known else None
        with Client(Broker(broker.endpoints[0], mine, theirs.public), timeout=20) as client:
            with pytest.raises(BrokerUnreachable, match="rejected"):
                client.snapshot()
            known.append(mine.public)
            client.wait_until(lambda: client.line.up, 20, fail_early=False)
            assert client.snapshot().revision == 3


def test_who_waits_for_a_link_that_was_given_up_sleeps_meanwhile() -> None:
    mine, theirs = keys.new("me", Role.ADMIN), keys.new("broker", "broker")
    looks: list[float] = []

    def never() -> bool:
        looks.append(time.monotonic())
        return False

    with (
        ScriptedBroker(obedient, key=theirs) as broker,
        Client(Broker(broker.endpoints[0], mine, theirs.public), timeout=20) as client,
    ):
        with pytest.raises(BrokerUnreachable, match="rejected"):
            client.snapshot()
        assert not client.wait_until(never, 0.5, fail_early=False)
    assert len(looks) < 20


def test_a_snapshot_is_whole_or_an_error(tmp_path: Path) -> None:
    with ScriptedBroker(obedient, local=tmp_path / "b"), Client(at(tmp_path / "b")) as client:
        mirror = client.snapshot(["host:node1"], detail=True)
        assert mirror.complete
        assert mirror.locations["host:node1"].values == {"mem": 1}


def test_a_message_that_cannot_be_read_is_counted_and_does_no_harm(tmp_path: Path) -> None:
    def rubbish_first(message: ToBroker) -> Answers:
        yield from [b"", b"\xc1", b'{"type":"from the future"}', b"{"]
        yield from obedient(message)

    with ScriptedBroker(rubbish_first, local=tmp_path / "b"), Client(at(tmp_path / "b")) as client:
        assert client.ask(HostDrain(id="", host="node1", reason="fan")).revision == 4
        assert client.line.rubbish == 4


def test_an_order_that_meets_a_restart_is_given_again_with_the_same_id(tmp_path: Path) -> None:
    path = tmp_path / "b"
    answers: list[Done] = []
    with Client(at(path), timeout=20) as client:
        with ScriptedBroker(silence, local=path) as broker:
            thread = threading.Thread(
                target=lambda: answers.append(client.ask(HostDrain(id="op7", host="node1", reason="fan")))
            )
            thread.start()
            heard(broker, HostDrain)
        with ScriptedBroker(obedient, local=path) as broker:
            thread.join(20)
            assert [message.id for message in heard(broker, HostDrain) if isinstance(message, HostDrain)] == [
                "op7"
            ]
    assert answers == [Done(id="op7", revision=4)]


def test_a_watch_goes_on_over_a_restart_of_the_link_without_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "b"
    with Client(at(path)) as client:
        watch = client.watch()
        with ScriptedBroker(obedient, local=path) as broker:
            assert isinstance(until(watch, Fresh), Fresh)
            (begun,) = heard(broker, WatchRequest)
            assert isinstance(begun, WatchRequest)
            broker.say(change(begun.id, 6))
            assert isinstance(until(watch, Changed), Changed)
        down = until(watch, LinkNews)
        assert isinstance(down, LinkNews)
        assert not down.up
        with ScriptedBroker(obedient, local=path) as broker:
            assert isinstance(until(watch, LinkNews), LinkNews)
            (again,) = heard(broker, WatchRequest)
            assert isinstance(again, WatchRequest)
            assert again.since.sequence == 6
            broker.say(change(again.id, 7))
            until(watch, Changed)
            assert watch.mirror is not None
            assert watch.mirror.locations["host:node1"].values == {"mem": 7}


def test_a_watch_whose_broker_never_comes_up_says_so(tmp_path: Path) -> None:
    with (
        Client(at(tmp_path / "none"), timeout=0.2) as client,
        pytest.raises(BrokerUnreachable, match="no socket"),
    ):
        next(iter(client.watch()))


def test_closing_a_watch_tells_the_broker(tmp_path: Path) -> None:
    stopped: list[str] = []

    def script(message: ToBroker) -> Answers:
        stopped.append(type(message).__name__)
        return obedient(message)

    with ScriptedBroker(script, local=tmp_path / "b") as broker, Client(at(tmp_path / "b")) as client:
        watch = client.watch()
        until(watch, Fresh)
        heard(broker, WatchRequest)
        watch.close()
        _wait(lambda: "Unwatch" in stopped)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
