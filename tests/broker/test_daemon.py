"""The broker as a process: crashes, a full disk, bad files, rubbish, a thousand peers."""

import contextlib
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from tests.fakes.descriptors import allowed
from tests.fakes.fed_agent import FedAgent
from tests.fakes.live_broker import PROGRAM, LiveBroker
from tests.linux.surroundings import own_mounts
from tests.wire.test_links import BAD_FRAMES, BAD_STREAMS
from xce.broker.client import Broker, BrokerError, BrokerRefused, Client
from xce.model import message as m
from xce.model.role import Role
from xce.wire import codec

pytestmark = pytest.mark.system


def until(condition: Callable[[], object], *, within_s: float = 20) -> None:
    """Wait for a condition; what cannot be asked now may be asked again."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            if condition():
                return
        except BrokerError:
            pass
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def status(broker: LiveBroker) -> m.BrokerStatus:
    with Client(broker.local, timeout=20) as client:
        return client.ask(m.StatusRequest(id=""))


def serves(address: Broker) -> bool:
    """Whether it answers who comes with these keys; raises `BrokerError` if it does not."""
    with Client(address, timeout=2) as client:
        return bool(client.ask(m.StatusRequest(id="")).roles)


# ------------------------------------------------------------------------------------------- durability


def test_no_order_that_was_answered_is_lost_when_the_broker_is_killed(tmp_path: Path) -> None:
    """Killed at random moments under orders; every `done` is there after the restart, each order once.

    So is its line in the audit log.
    """
    rounds, done = 4, dict[str, int]()
    stop = threading.Event()

    def give_orders(address: Broker, number: int) -> None:
        count = 0
        while not stop.is_set():
            count += 1
            name = f"h{number}-{count}"
            order = m.HostAdd(id=f"add-{name}", host=name)
            while not stop.is_set():
                try:
                    with Client(address, timeout=2) as client:
                        done[name] = client.ask(order).revision
                    break
                except BrokerError:
                    time.sleep(0.02)

    with LiveBroker(tmp_path) as broker:
        threads = [
            threading.Thread(target=give_orders, args=(broker.local, number), daemon=True)
            for number in range(3)
        ]
        for thread in threads:
            thread.start()
        for _ in range(rounds):
            before = len(done)
            until(lambda before=before: len(done) > before + 5)  # type: ignore[misc]
            time.sleep(random.random() * 0.1)
            broker.kill()
            broker.start()
        stop.set()
        for thread in threads:
            thread.join(20)
        epoch = status(broker).epoch
        with Client(broker.local) as client:
            known = client.snapshot().locations
            assert epoch == rounds + 1
            for name, revision in done.items():
                assert f"host:{name}" in known
                again = client.ask(m.HostAdd(id=f"add-{name}", host=name))
                assert again.revision == revision, "the same order got another answer"
        until(lambda: {f"add-{name}" for name in done} <= broker.audited())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB, seen by this process and its children alone."""
    own_mounts()
    point = tmp_path / "state"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(point)], check=True)
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


def fill(path: Path) -> None:
    """Leave no room on a file system."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


@pytest.mark.root
def test_on_a_full_disk_orders_are_refused_and_it_works_again_when_there_is_room(
    small_disk: Path, tmp_path: Path
) -> None:
    """C-STA-04, the broker's part of it."""
    directory = tmp_path / "broker"
    directory.mkdir()
    broker = LiveBroker(directory, state_directory=str(small_disk))
    with broker, FedAgent(broker.local, "node1", {"level": 1}) as agent, Client(broker.local) as client:
        agent.wait_welcome()
        client.ask(m.HostAdd(id="before", host="before"))
        filler = small_disk / "filler"
        fill(filler)
        refusals: list[BrokerRefused] = []

        def refused() -> bool:
            try:
                client.ask(m.HostAdd(id=f"full-{time.monotonic_ns()}", host="full" + "x" * 200))
            except BrokerRefused as error:
                refusals.append(error)
            return bool(refusals)

        until(refused)
        assert refusals[0].code == "not-durable"
        assert any("no space" in words for words in status(broker).trouble)
        agent.feed(level=2)
        until(lambda: client.snapshot().locations["host:node1"].values == {"level": 2})
        filler.unlink()
        until(lambda: client.ask(m.HostAdd(id="after", host="after")))
        assert status(broker).trouble == []
        assert {"host:before", "host:after"} <= client.snapshot().locations.keys()


def test_a_damaged_store_is_refused_in_words_and_starting_empty_is_an_order(tmp_path: Path) -> None:
    broker = LiveBroker(tmp_path)
    with broker:
        with Client(broker.local) as client:
            client.ask(m.HostDrain(id="1", host="node1", reason="fan"))
        epoch = status(broker).epoch
        assert broker.stop() == 0
        (tmp_path / "state" / "facts.db").write_bytes(b"")
        argv = [sys.executable, "-c", PROGRAM, "run", "--config", str(tmp_path / "broker.yaml")]
        failed = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
        assert failed.returncode == 1
        assert "is empty" in failed.stderr
        assert "--start-empty" in failed.stderr
        with subprocess.Popen([*argv, "--start-empty"], stderr=subprocess.DEVNULL) as process:
            try:
                until(lambda: status(broker).epoch == epoch + 1, within_s=30)
            finally:
                process.terminate()
                process.wait(20)
        assert [path.name for path in (tmp_path / "state").iterdir() if "damaged" in path.name]


def test_a_second_broker_on_one_store_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with LiveBroker(tmp_path) as broker:
        argv = [sys.executable, "-c", PROGRAM, "run", "--config", str(tmp_path / "broker.yaml")]
        failed = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
        assert failed.returncode == 1
        assert f"the broker with pid {status(broker).pid} has it open" in failed.stderr
        assert status(broker).pid, "the first one serves on"


# ---------------------------------------------------------------------------------------------- restart


def test_values_are_there_after_a_restart_with_their_age_and_hosts_rejoin(tmp_path: Path) -> None:
    with LiveBroker(tmp_path) as broker:
        with (
            FedAgent(broker.local, "node1", {"level": 7, "label": "a"}) as agent,
            Client(broker.local) as client,
        ):
            agent.wait_welcome()
            until(lambda: client.snapshot().locations["host:node1"].values == {"level": 7, "label": "a"})
        assert broker.stop() == 0
        time.sleep(1.1)
        broker.start()
        with Client(broker.local) as client:
            seen = client.snapshot(detail=True).locations["host:node1"]
            assert seen.values == {"level": 7, "label": "a"}
            assert seen.conditions == ["rejoining"]
            assert 1000 <= seen.ages_ms["fed"] < 30_000
            with FedAgent(broker.local, "node1", {"level": 7, "label": "a"}) as agent:
                agent.wait_welcome()
                until(lambda: client.snapshot().locations["host:node1"].conditions == [])
                assert client.snapshot().locations["host:node1"].state == "available"


def test_a_bad_file_is_refused_whole_and_shown_until_it_is_good(tmp_path: Path) -> None:
    with LiveBroker(tmp_path) as broker, Client(broker.local) as client:
        hosts = tmp_path / "hosts.yaml"
        good = hosts.read_text()
        hosts.write_text(good + "  - {name: rack2, colour: red}\n")
        broker.reload()
        until(lambda: status(broker).trouble)
        (words,) = status(broker).trouble
        assert "hosts.yaml:5" in words
        assert "colour" in words
        assert "host:node1" in client.snapshot().locations
        hosts.write_text(good.replace("node[1-3]", "node[1-4]"))
        broker.reload()
        until(lambda: "host:node4" in client.snapshot().locations)
        assert status(broker).trouble == []


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"hosts: \xff\n", "not UTF-8 at byte 8"),
        (b"", "was not empty before"),
        (None, "there is no "),
    ],
)
def test_a_file_that_is_no_text_or_was_cut_to_nothing_takes_no_host_away(
    tmp_path: Path, content: bytes | None, told: str
) -> None:
    """An editor that was stopped, or a full disk, must not end the broker or empty the cluster."""
    with LiveBroker(tmp_path) as broker, Client(broker.local) as client:
        hosts = tmp_path / "hosts.yaml"
        good = hosts.read_bytes()
        if content is None:
            hosts.unlink()
        else:
            hosts.write_bytes(content)
        broker.reload()
        until(lambda: status(broker).trouble)
        assert told in status(broker).trouble[0]
        assert "host:node1" in client.snapshot().locations
        hosts.write_bytes(good)
        broker.reload()
        until(lambda: status(broker).trouble == [])


def test_something_that_is_no_key_file_among_the_keys_is_named_and_the_others_count(tmp_path: Path) -> None:
    with LiveBroker(tmp_path, tcp=True) as broker:
        accepted = Path(next(tmp_path.rglob("accepted")))
        (accepted / "folder.pub").mkdir()
        os.mkfifo(accepted / "pipe.pub")
        late = broker.new_key("late", Role.CONTROLLER)
        broker.reload()
        until(lambda: "folder.pub" in " ".join(status(broker).trouble))
        assert "not a regular file" in " ".join(status(broker).trouble)
        until(lambda: serves(late))


def test_more_peers_after_a_reload_may_have_as_many_descriptors(tmp_path: Path) -> None:
    with allowed(1024), LiveBroker(tmp_path, max_peers=10) as broker:
        pid = status(broker).pid
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] == 1024
        settings = tmp_path / "broker.yaml"
        settings.write_text(settings.read_text().replace('"max_peers":10', '"max_peers":1000'))
        broker.reload()
        until(lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] == 1256)


def test_a_key_that_is_put_into_the_directory_is_taken_up_by_a_reload(tmp_path: Path) -> None:
    with LiveBroker(tmp_path, tcp=True) as broker:
        late = broker.new_key("late", Role.CONTROLLER)
        with Client(late, timeout=2) as client, pytest.raises(BrokerError):
            client.ask(m.StatusRequest(id=""))
        broker.reload()
        until(lambda: serves(late))
        assert status(broker).counters["refused.key"] >= 1


# ------------------------------------------------------------------------------------------------- peers


def test_rubbish_in_every_form_is_dropped_and_counted_and_orders_are_answered(tmp_path: Path) -> None:
    """C-MSG-04 against the process: all inputs, thirty times, over TCP and the local socket."""
    with LiveBroker(tmp_path, tcp=True) as broker, Client(broker.local) as client, zmq.Context() as context:
        streams: list[socket.socket] = []
        for number in range(30):
            for stream in BAD_STREAMS:
                streams.append(socket.create_connection(("127.0.0.1", broker.port)))
                streams[-1].sendall(stream)
            for frames in [*BAD_FRAMES, [b'{"type":"host.drain","id":"x"}'], [b"\x93\xa1r\x01\x90"]]:
                bad = context.socket(zmq.DEALER)
                bad.linger = 1000
                bad.connect(f"ipc://{tmp_path}/b.sock")
                bad.send_multipart(frames)
                bad.close()
            client.ask(m.HostAdd(id=f"{number}", host=f"n{number}"))
        for stream_socket in streams:
            stream_socket.close()
        until(lambda: status(broker).counters.get("dropped.frames", 0) == 30 * 3)
        until(lambda: status(broker).counters.get("rubbish", 0) == 30 * 4)
        until(lambda: status(broker).counters.get("refused.forbidden", 0) == 30)
        assert "internal_errors" not in status(broker).counters


def test_a_message_that_lacks_something_is_answered_with_its_id_and_the_reason(tmp_path: Path) -> None:
    with LiveBroker(tmp_path), zmq.Context() as context:
        dealer = context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.connect(f"ipc://{tmp_path}/b.sock")
        dealer.send(b'{"type":"host.drain","id":"mine","host":"node1"}')
        assert dealer.poll(10_000)
        answer = codec.decode_from_broker(dealer.recv())
        dealer.close()
        assert isinstance(answer, m.Failed)
        assert (answer.id, answer.code) == ("mine", "invalid")
        assert "missing required field `reason`" in answer.message


def test_a_thousand_peers_are_served_although_the_shell_allows_a_thousand_files(tmp_path: Path) -> None:
    """C-MSG-03, its first half: the limit is raised at the start; beyond it peers are told."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"the hard limit on open files is {hard}")
    count = 1200
    with ExitStack() as stack:
        with allowed(1024):
            broker = stack.enter_context(LiveBroker(tmp_path, discovered="admit", max_peers=count + 1))
        with allowed(4096), zmq.Context() as context:
            context.max_sockets = 4096
            dealers = []
            for number in range(count + 10):
                dealer = context.socket(zmq.DEALER)
                dealer.linger = 0
                dealer.connect(f"ipc://{tmp_path}/b.sock")
                hello = m.Hello(protocol=m.PROTOCOL, role="agent", name=f"p{number}", nonce=f"{number}")
                dealer.send(codec.encode(hello))
                dealers.append(dealer)
            answers = []
            for dealer in dealers:
                assert dealer.poll(20_000)
                answers.append(codec.decode_from_broker(dealer.recv()))
            welcomed = sum(isinstance(answer, m.Welcome) for answer in answers)
            refused = [answer for answer in answers if isinstance(answer, m.Refused)]
            assert count - 2 <= welcomed <= count + 1
            assert {answer.code for answer in refused} == {"busy"}
            assert f"serves {count + 1} peers already (max_peers)" in refused[0].message
            for dealer in dealers[:20]:
                dealer.close()
            until(lambda: sum(status(broker).roles.values()) < count)
            for dealer in dealers:
                dealer.close()


def test_connections_of_whoever_never_use_up_the_last_descriptors(tmp_path: Path) -> None:
    """libzmq would end the process at the next local connection; anybody can connect, and wait."""
    with ExitStack() as stack:
        with allowed(128):
            broker = stack.enter_context(LiveBroker(tmp_path, tcp=True, max_peers=20))
        client = stack.enter_context(Client(broker.local))
        for _ in range(400):
            stack.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
            time.sleep(0.001)
        until(lambda: any("too many connections" in one for one in status(broker).trouble))
        seen = client.ask(m.StatusRequest(id=""))
        assert seen.counters["dropped.crowded"] >= 200
        assert len(os.listdir(f"/proc/{seen.pid}/fd")) < 200
        until(lambda: status(broker).trouble == [])


# ----------------------------------------------------------------------------------------------- systemd


def test_systemd_is_told_when_it_is_ready_how_it_is_and_that_it_is_alive(tmp_path: Path) -> None:
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(str(tmp_path / "notify"))
    told.settimeout(10)
    os.environ["NOTIFY_SOCKET"] = str(tmp_path / "notify")
    try:
        broker = LiveBroker(tmp_path)
        broker.start()
    finally:
        del os.environ["NOTIFY_SOCKET"]
    messages = [told.recv(4096).decode()]
    while messages[-1].startswith("EXTEND_TIMEOUT_USEC=120000000\nSTATUS="):
        messages.append(told.recv(4096).decode())
    assert messages[0].endswith("checking the store"), "a start that takes long says that it gets on"
    assert messages[-1].startswith("READY=1\nSTATUS=0 of 3 hosts available")
    while "WATCHDOG=1" not in messages[-1]:
        messages.append(told.recv(4096).decode())
    broker.reload()
    while "READY=1" not in messages[-1]:
        messages.append(told.recv(4096).decode())
    assert any(message.startswith("RELOADING=1\nMONOTONIC_USEC=") for message in messages)
    assert broker.stop() == 0
    while "STOPPING=1" not in messages[-1]:
        messages.append(told.recv(4096).decode())
    told.close()


def test_it_stops_in_time_with_peers_connected_and_rests_when_nothing_comes(tmp_path: Path) -> None:
    with LiveBroker(tmp_path) as broker, FedAgent(broker.local, "node1", {"level": 1}) as agent:
        agent.wait_welcome()
        pid = status(broker).pid
        before, began = _cpu_s(pid), time.monotonic()
        time.sleep(1.5)
        share = (_cpu_s(pid) - before) / (time.monotonic() - began)
        assert share < 0.25, f"{share:.0%} of a core for one agent that says little"
        asked = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        assert broker.stop() == 0
        assert time.monotonic() - asked < 10


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
