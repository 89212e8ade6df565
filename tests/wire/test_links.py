"""Dealers and a Router on real sockets: keys, words, rubbish, forging, bounds."""

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zmq

from tests.wire.conftest import Hub
from xce.model.message import DOCUMENT_BYTES
from xce.wire import keys
from xce.wire.dealer import Dealer, LinkEvent, LinkState
from xce.wire.router import TURN_BYTES, ListenError, Router, Sent, Stranger

LINK_OF_ITS_OWN = """
import sys, time
from xce.wire.dealer import Dealer
dealer, end = Dealer(sys.argv[1]), time.monotonic() + 10
while time.monotonic() < end:
    for event in dealer.events():
        print(event.text)
        if event.state != "connecting":
            sys.exit()
    time.sleep(0.01)
"""


def words(hub: Hub, dealer: Dealer, last: LinkState) -> list[LinkEvent]:
    """The link's events until `last` is told."""
    told: list[LinkEvent] = []

    def arrived() -> bool:
        told.extend(dealer.events())
        return any(event.state is last for event in told)

    hub.until(arrived)
    return told


def test_connections_take_turns_and_heavy_messages_are_few_at_a_time(hub: Hub) -> None:
    heavy = hub.dealer(hub.tcp, hub.known_key("heavy"), hub.key.public)
    light = hub.dealer(hub.tcp, hub.known_key("light"), hub.key.public)
    for dealer in (heavy, light):
        words(hub, dealer, LinkState.READY)
    for _ in range(20):
        assert heavy.send(b"x" * (TURN_BYTES // 2 + 1))
    assert light.send(b"light")
    time.sleep(0.5)  # all of it is there
    turns = [hub.router.receive() for _ in range(3)]
    assert [len(turn) for turn in turns] in ([2, 3, 2], [3, 2, 2], [2, 2, 3], [2, 2, 2])
    assert b"light" in [data for turn in turns[:2] for _, data in turn]


def test_a_known_key_is_let_in_and_named_on_its_messages(hub: Hub) -> None:
    dealer = hub.dealer(hub.tcp, hub.known_key("node17"), hub.key.public)
    assert [event.state for event in words(hub, dealer, LinkState.READY)] == [
        LinkState.CONNECTED,
        LinkState.READY,
    ]
    assert dealer.send(b"\x90")
    hub.until(lambda: bool(hub.got))
    (peer, data), *rest = hub.got
    assert (peer.user, data, rest) == ("node17", b"\x90", [])
    assert peer.address.startswith("127.0.0.1:")
    assert peer.uid == -1
    assert hub.router.send(peer.routing_id, b"answer") is Sent.OK
    hub.until(dealer.readable)
    assert dealer.receive() == [b"answer"]


def test_a_link_that_is_dropped_and_not_closed_keeps_no_other_from_coming_up(hub: Hub) -> None:
    """A few hundred were enough for libzmq's thread to wait for ever, or for a name that was still taken."""
    key = hub.known_key("node17")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()  # the hub's would be hindered, too
    for _ in range(100):
        dealer = Dealer(hub.tcp, key=key, broker_key=hub.key.public, context=context)
        words(hub, dealer, LinkState.READY)
        socket_of_it = dealer._socket
        del dealer
        assert socket_of_it.closed, "by us, behind its monitor, and not whenever a collector comes to it"
    context.term()


def test_a_key_that_is_not_known_is_rejected_in_words(hub: Hub) -> None:
    stranger = keys.new("stranger", "agent")
    dealer = hub.dealer(hub.tcp, stranger, hub.key.public)
    event = words(hub, dealer, LinkState.REJECTED)[-1]
    assert event.final
    assert "rejected by broker" in event.text
    assert sum(hub.zap.refused.values()) == 1
    assert hub.zap.news == [("127.0.0.1", stranger.public)]
    assert not dealer.send(b"\x90"), "nothing may be queued for a link that will never be"
    assert hub.got == []


def test_each_key_that_is_not_known_is_told_once_though_they_come_from_one_address(hub: Hub) -> None:
    """Two hosts behind one gateway: the second one's key is what its admin looks for."""
    strangers = [keys.new(name, "agent") for name in ("one", "two", "one-again")]
    strangers[2] = strangers[0]
    for stranger in strangers:
        words(hub, hub.dealer(hub.tcp, stranger, hub.key.public), LinkState.REJECTED)
    assert hub.zap.news == [("127.0.0.1", stranger.public) for stranger in strangers[:2]]
    assert hub.zap.refused == {"127.0.0.1": 3}


def test_a_wrong_broker_key_is_told_in_words_and_tried_again(hub: Hub) -> None:
    other = keys.new("broker", "broker")
    dealer = hub.dealer(hub.tcp, hub.known_key("node17"), other.public)
    event = words(hub, dealer, LinkState.WRONG_KEY)[-1]
    assert not event.final
    assert "broker's key does not match" in event.text
    before = hub.router.dropped["handshake"]
    later: list[LinkEvent] = []

    def two_attempts_later() -> bool:
        later.extend(dealer.events())
        return hub.router.dropped["handshake"] > before + 1

    hub.until(two_attempts_later)
    assert later == [], "a state is told once, not at each attempt"


def test_a_plain_link_to_a_port_that_wants_keys_is_told_so(hub: Hub) -> None:
    event = words(hub, hub.dealer(hub.tcp), LinkState.NOT_A_BROKER)[-1]
    assert event.final
    assert "may want keys" in event.text


def test_a_port_where_nobody_listens_is_one_where_nobody_answers(hub: Hub) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dealer = hub.dealer(f"tcp://127.0.0.1:{port}", hub.known_key("a"), hub.key.public)
    assert "nobody answers" in words(hub, dealer, LinkState.NO_ANSWER)[-1].text


@pytest.mark.root
@pytest.mark.parametrize("address", ["192.0.2.7", "[2001:db8::7]"])
def test_an_address_without_a_route_is_told_from_a_port_where_nobody_listens(address: str) -> None:
    told = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", LINK_OF_ITS_OWN, f"tcp://{address}:7400"],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert f"no route to tcp://{address}:7400" in told.stdout


def test_a_program_that_is_no_broker_is_not_called_a_link_that_is_down(hub: Hub) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        dealer = hub.dealer(endpoint, hub.known_key("a"), hub.key.public)
        taken, _ = other.accept()
        with taken:
            taken.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            event = words(hub, dealer, LinkState.NOT_A_BROKER)[-1]
    assert "does not answer like an XCE broker" in event.text
    assert not event.final, "a broker that hangs may wake up"


def test_a_name_that_does_not_resolve_is_told_from_a_port_where_nobody_listens(hub: Hub) -> None:
    dealer = hub.dealer("tcp://no-such-host.invalid:7400", hub.known_key("a"), hub.key.public)
    event = words(hub, dealer, LinkState.NO_NAME)[-1]
    assert "the name no-such-host.invalid does not resolve" in event.text
    assert not event.final, "it may be known tomorrow"


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://localhost:1", "ipc:///none"]
)
def test_an_address_or_a_known_name_is_not_said_to_be_unknown(hub: Hub, endpoint: str) -> None:
    dealer = hub.dealer(endpoint)
    assert "nobody answers" in words(hub, dealer, LinkState.NO_ANSWER)[-1].text


def test_a_link_comes_back_by_itself_and_tells_both_turns(hub: Hub) -> None:
    dealer = hub.dealer(hub.tcp, hub.known_key("node17"), hub.key.public)
    words(hub, dealer, LinkState.READY)
    dealer.send(b"\x90")
    hub.until(lambda: bool(hub.met))
    hub.router.cut(hub.met[0].routing_id)
    states = [event.state for event in words(hub, dealer, LinkState.READY)]
    assert states == [LinkState.DISCONNECTED, LinkState.CONNECTED, LinkState.READY]


def test_an_endpoint_that_is_none_is_refused_at_once(hub: Hub) -> None:
    with pytest.raises(ValueError, match=r"cannot connect to 'broker\.example'.*tcp://HOST:PORT"):
        Dealer("broker.example", context=hub.context)
    with pytest.raises(ValueError, match="our key and the broker's"):
        Dealer("tcp://127.0.0.1:1", broker_key=b"x" * 40, context=hub.context)


@pytest.mark.parametrize("room", [1, 2])
def test_a_socket_that_cannot_be_made_is_told_and_an_agent_tries_again(room: int) -> None:
    """Without it an agent whose descriptors are used up waits for ever for a socket that it does not have."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, room)
    with pytest.raises(ValueError, match=r"cannot make a socket for tcp:.*: Too many open files"):
        Dealer("tcp://127.0.0.1:1", context=context)
    context.destroy(linger=0)


def test_a_local_peer_is_known_by_its_user_and_process(hub: Hub) -> None:
    dealer = hub.dealer(hub.local)
    words(hub, dealer, LinkState.READY)
    dealer.send(b"\x90")
    hub.until(lambda: bool(hub.met))
    assert hub.met[0] == Stranger(
        hub.met[0].routing_id, "", f"uid {os.geteuid()} pid {os.getpid()}", os.geteuid()
    )


def test_the_local_socket_is_closed_to_others(hub: Hub, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "b.sock").stat().st_mode) == 0o600


def test_the_end_of_a_connection_is_told(hub: Hub) -> None:
    dealer = hub.dealer(hub.tcp, hub.known_key("node17"), hub.key.public)
    words(hub, dealer, LinkState.READY)
    dealer.send(b"\x90")
    hub.until(lambda: bool(hub.met))
    dealer.close()
    hub.until(lambda: bool(hub.ended))
    assert hub.ended == hub.met
    assert len(hub.router) == 0
    assert hub.router.send(hub.met[0].routing_id, b"x") is Sent.GONE


def test_a_peer_that_is_cut_is_served_no_more(hub: Hub) -> None:
    dealer = hub.dealer(hub.tcp, hub.known_key("node17"), hub.key.public)
    words(hub, dealer, LinkState.READY)
    dealer.send(b"\x90")
    hub.until(lambda: bool(hub.got))
    del hub.known[next(iter(hub.known))]  # revoked: it may not come back either
    hub.router.cut(hub.met[0].routing_id)
    words(hub, dealer, LinkState.REJECTED)
    assert len(hub.got) == 1


def test_several_frames_cannot_forge_another_peers_message(hub: Hub) -> None:
    """Without the check of RCVMORE, [body][routing id of B][body] is two messages, the second from B."""
    good = hub.dealer(hub.local)
    words(hub, good, LinkState.READY)
    good.send(b"first")
    hub.until(lambda: bool(hub.got))
    victim = hub.met[0]
    forger = hub.context.socket(zmq.DEALER)
    forger.linger = 0
    forger.connect(hub.local)
    forger.send_multipart([b"mine", victim.routing_id, b"forged"])
    forger.send(b"\x90")
    hub.until(lambda: len(hub.got) >= 2)
    assert [(peer.routing_id == victim.routing_id, data) for peer, data in hub.got] == [
        (True, b"first"),
        (False, b"\x90"),
    ]
    assert hub.router.dropped["frames"] == 1
    forger.close()


def test_a_peer_that_chose_its_own_routing_id_is_not_served(hub: Hub) -> None:
    squatter = hub.context.socket(zmq.DEALER)
    squatter.linger = 0
    squatter.routing_id = b"node17"
    squatter.connect(hub.local)
    squatter.send(b"\x90")
    hub.until(lambda: hub.router.dropped["identity"] == 1)
    assert hub.got == []
    squatter.close()


BAD_FRAMES = [
    [b""],
    [b"\x01"],
    [b"", b"\x01"],
    [b"\x01", b"\x02", b"\x03", b"\x04", b"\x05", b"\x06", b"\x07", b"\x08"],
    [b"\xff", b"", b"\xff"],
    [b"{}"],
]
BAD_STREAMS = [b"GET / HTTP/1.1\r\nHost: x\r\n", bytes.fromhex("160301020001000001fc0303")]


def test_rubbish_on_the_port_is_dropped_and_a_good_peer_is_answered(hub: Hub) -> None:
    """C-MSG-04: each of its inputs twenty times, on the local and the CURVE endpoint."""
    good = hub.dealer(hub.tcp, hub.known_key("good"), hub.key.public)
    words(hub, good, LinkState.READY)
    port = int(hub.tcp.rsplit(":", 1)[1])
    streams: list[socket.socket] = []
    for _ in range(20):
        for stream in BAD_STREAMS:
            streams.append(socket.create_connection(("127.0.0.1", port)))
            streams[-1].sendall(stream)
        for frames in BAD_FRAMES:
            bad = hub.context.socket(zmq.DEALER)
            bad.linger = 1000
            bad.connect(hub.local)
            bad.send_multipart(frames)
            bad.close()
        good.send(b"\x90")
        hub.until(lambda: any(peer.user == "good" for peer, _ in hub.got))
        hub.got = [(peer, data) for peer, data in hub.got if peer.user != "good"]
    hub.until(lambda: hub.router.dropped["frames"] == 20 * 3)
    hub.until(lambda: len(hub.got) == 20 * 3)  # what one frame holds is the codec's to refuse
    hub.until(lambda: hub.router.dropped["silent"] >= 20 * 2)
    for stream_socket in streams:
        stream_socket.close()


def test_a_message_that_is_too_long_costs_its_sender_the_connection_and_nobody_else(hub: Hub) -> None:
    good = hub.dealer(hub.local)
    greedy = hub.dealer(hub.local)
    for dealer in (good, greedy):
        words(hub, dealer, LinkState.READY)
    greedy.send(b"\x81" + b"\0" * DOCUMENT_BYTES)
    words(hub, greedy, LinkState.DISCONNECTED)
    good.send(b"\x90")
    hub.until(lambda: bool(hub.got))
    assert [data for _, data in hub.got] == [b"\x90"]


def test_a_peer_that_does_not_read_is_full_and_holds_up_nobody(hub: Hub) -> None:
    deaf = hub.dealer(hub.local)
    words(hub, deaf, LinkState.READY)
    deaf.send(b"\x90")
    hub.until(lambda: bool(hub.met))
    answers = [hub.router.send(hub.met[0].routing_id, b"x" * 100_000) for _ in range(3000)]
    assert answers[0] is Sent.OK
    assert Sent.FULL in answers


@pytest.mark.parametrize(
    ("listen", "local", "words"),
    [
        (["ipc:///x"], "", "expected tcp://ADDRESS:PORT"),
        (["tcp://nonsense"], "", "cannot listen on tcp://nonsense"),
        ([], "/nowhere/at/all/b.sock", "cannot use /nowhere/at/all"),
        ([], "/" + "x" * 120, "longer than 107 bytes"),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_refused_in_words(
    listen: list[str], local: str, words: str
) -> None:
    with zmq.Context() as context, pytest.raises(ListenError, match=words):
        Router(
            listen=listen,
            local=local,
            key=keys.new("broker", "broker"),
            admit=lambda stranger: stranger,
            gone=lambda stranger: None,
            context=context,
        )


def test_a_directory_that_others_can_write_in_is_not_trusted(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with zmq.Context() as context, pytest.raises(ListenError, match="others can write in it"):
        Router(
            listen=[],
            local=str(tmp_path / "b.sock"),
            key=None,
            admit=lambda stranger: stranger,
            gone=lambda stranger: None,
            context=context,
        )


def test_tcp_without_keys_is_not_offered() -> None:
    with zmq.Context() as context, pytest.raises(ListenError, match="xce-broker key new"):
        Router(
            listen=["tcp://127.0.0.1:*"],
            local="",
            key=None,
            admit=lambda stranger: stranger,
            gone=lambda stranger: None,
            context=context,
        )


def test_an_address_that_is_taken_is_named_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, zmq.Context() as context:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ListenError) as refused:
            Router(
                listen=[endpoint],
                local="",
                key=keys.new("broker", "broker"),
                admit=lambda stranger: stranger,
                gone=lambda stranger: None,
                context=context,
            )
    assert str(refused.value) == f"cannot listen on {endpoint}: Address already in use"


def test_a_link_that_is_up_before_anybody_looks_is_told_without_another_wake_up(tmp_path: Path) -> None:
    """The monitor's descriptor is silent until the monitor was found empty once."""
    endpoint = f"ipc://{tmp_path}/up.sock"
    router: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    router.bind(endpoint)
    dealer = Dealer(endpoint)
    try:
        deadline = time.monotonic() + 20
        while not dealer.send(b"up"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert router.poll(20_000), "what has been received was sent after the link was up"
        assert dealer.readable()
        assert dealer.events()[-1].state is LinkState.READY
        assert not dealer.readable()
    finally:
        dealer.close()
        router.close(linger=0)
