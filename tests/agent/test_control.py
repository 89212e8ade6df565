"""The local socket with real clients: who may ask what, and that no client can hurt the agent."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from xce.agent import control
from xce.agent.cli.client import NotRunning, ask, follow
from xce.agent.control import Control, Operation, Pace, Reply
from xce.linux import listen
from xce.linux.loop import Loop

NOBODY = 65534


class Desk:
    """A control socket with a few operations, and clients of it."""

    def __init__(self, folder: Path) -> None:
        self.loop = Loop()
        self.path = str(folder / "agent.sock")
        self.followers: list[Reply] = []
        self.clients: list[socket.socket] = []
        self.control = Control(
            self.loop,
            self.path,
            {
                "echo": Operation(self._echo),
                "reset": Operation(self._echo, changes=True),
                "fail": Operation(self._fail),
                "follow": Operation(self._follow),
            },
        )

    def _echo(self, request: Mapping[str, Any], reply: Reply) -> None:
        reply({"got": request.get("text")})

    def _fail(self, request: Mapping[str, Any], reply: Reply) -> None:
        raise KeyError("oops")

    def _follow(self, request: Mapping[str, Any], reply: Reply) -> Callable[[], None]:
        self.followers.append(reply)
        return lambda: self.followers.remove(reply)

    def client(self, uid: int = 0) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.clients.append(client)
        client.setblocking(False)
        if uid:
            os.seteuid(uid)
        try:
            client.connect(self.path)
        finally:
            if uid:
                os.seteuid(0)
        return client

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "did not happen in time"
            self.loop.turn(0.01)

    def read(self, client: socket.socket) -> Any:
        """The next answer; None at the end of the connection."""
        data = bytearray()

        def got_line() -> bool:
            try:
                chunk = client.recv(1 << 20)
            except BlockingIOError:
                return False
            except ConnectionError:
                chunk = b""
            data.extend(chunk)
            return not chunk or data.endswith(b"\n")

        self.until(got_line)
        return json.loads(data) if data else None

    def ask(self, text: bytes | dict[str, Any]) -> Any:
        client = self.client()
        client.sendall(text if isinstance(text, bytes) else json.dumps(text).encode() + b"\n")
        return self.read(client)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    for client in desk.clients:
        client.close()
    desk.control.close()
    desk.control.close()
    desk.loop.close()
    assert not Path(desk.path).exists()


def test_a_question_is_answered_in_one_line(desk: Desk) -> None:
    assert desk.ask({"op": "echo", "text": "häuser"}) == {"got": "häuser"}


def test_a_client_may_ask_several_times(desk: Desk) -> None:
    client = desk.client()
    client.sendall(b'{"op":"echo","text":1}\n{"op":"ec')
    assert desk.read(client) == {"got": 1}
    client.sendall(b'ho","text":2}\n')
    assert desk.read(client) == {"got": 2}


@pytest.mark.parametrize(
    "line",
    [b"\n", b"hello\n", b"[]\n", b'{"op":7}\n', b"\xff\xfe\n", b'{"op":"\\ud800"}\n', b"[" * 10000 + b"\n"],
)
def test_what_is_no_request_is_answered_with_what_would_be_one(desk: Desk, line: bytes) -> None:
    assert "cannot read the request" in desk.ask(line)["error"]


def test_an_unknown_operation_is_answered_with_the_known_ones(desk: Desk) -> None:
    assert desk.ask({"op": "x" * 1000})["error"].endswith("known are echo, fail, follow, reset")


def test_a_failing_operation_is_answered_and_told_to_the_loop(desk: Desk) -> None:
    told: list[Exception] = []
    desk.loop.on_error = lambda error, _: told.append(error)
    assert desk.ask({"op": "fail"}) == {"error": "internal error: KeyError('oops')"}
    assert [type(error) for error in told] == [KeyError]
    assert desk.ask({"op": "echo"}) == {"got": None}


def test_the_user_of_the_agent_may_change_things(desk: Desk) -> None:
    assert desk.ask({"op": "reset", "text": 1}) == {"got": 1}


@pytest.fixture
def open_desk(desk: Desk, tmp_path: Path) -> Desk:
    """A desk that other users can reach."""
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o111)
    return desk


@pytest.mark.root
def test_another_user_may_ask_but_not_change(open_desk: Desk) -> None:
    client = open_desk.client(NOBODY)
    client.sendall(b'{"op":"reset"}\n')
    said = {"error": f"cannot reset: only root or the agent's user may, not uid {NOBODY}"}
    assert open_desk.read(client) == said
    client.sendall(b'{"op":"echo","text":1}\n')
    assert open_desk.read(client) == {"got": 1}


@pytest.mark.root
def test_users_have_their_share_of_the_places_and_root_has_some_for_itself(open_desk: Desk) -> None:
    """Any local user could once take all places and keep root from asking."""
    for uid in range(60_000, 60_010):
        clients = [open_desk.client(uid) for _ in range(control.PER_USER + 1)]
        assert open_desk.read(clients[-1]) is None
    assert len(open_desk.control._clients) == control.OTHERS
    assert open_desk.ask({"op": "echo", "text": 1}) == {"got": 1}


@pytest.mark.root
def test_whoever_knocks_all_the_time_keeps_the_agent_neither_busy_nor_from_root(open_desk: Desk) -> None:
    for _ in range(control.PER_USER):
        open_desk.client(NOBODY)
    open_desk.until(lambda: len(open_desk.control._clients) == control.PER_USER)
    begun = time.monotonic()
    while time.monotonic() < begun + 0.5:
        for _ in range(4):
            with contextlib.suppress(BlockingIOError):  # the kernel's queue is full
                open_desk.client(NOBODY)
        open_desk.loop.turn(0.01)
    rounds = (time.monotonic() - begun) / listen.REST_S + 1
    assert 0 < open_desk.control.refused <= rounds * listen.PER_TURN
    before = time.monotonic()
    for _ in range(5):  # the kernel's queue is emptied while nobody knocks
        open_desk.loop.turn(0.03)
    assert open_desk.ask({"op": "echo", "text": 1}) == {"got": 1}
    assert time.monotonic() - before < 10


@pytest.mark.root
def test_a_user_s_requests_beyond_some_a_second_wait_and_root_s_do_not(open_desk: Desk) -> None:
    greedy = open_desk.client(NOBODY)
    greedy.sendall(b'{"op":"follow"}\n' * 1000)
    open_desk.until(lambda: len(open_desk.followers) >= control.REQUESTS)
    begun = time.monotonic()
    assert open_desk.ask({"op": "echo", "text": 1}) == {"got": 1}
    for _ in range(20):
        open_desk.loop.turn(0.01)
    most = control.REQUESTS + 1 + (time.monotonic() - begun) * control.PER_S + 1
    assert len(open_desk.followers) <= most


def test_requests_of_a_client_are_served_one_after_another_turn_by_turn(desk: Desk) -> None:
    client = desk.client()
    client.sendall(b'{"op":"follow"}\n' * 5)
    desk.until(lambda: bool(desk.control._clients))
    seen = []
    while len(desk.followers) < 5:
        desk.loop.turn(1)
        seen.append(len(desk.followers))
    assert seen in ([1, 2, 3, 4, 5], [2, 3, 4, 5])  # the second may be due in the first one's turn


def test_a_pace_is_forgotten_when_it_slows_nobody_down() -> None:
    pace = Pace()
    waits = [pace.wait(NOBODY, 100) for _ in range(control.REQUESTS + 1)]
    assert waits[:-1] == [0.0] * control.REQUESTS
    assert waits[-1] == pytest.approx(1 / control.PER_S)
    assert pace.wait(NOBODY, 100 + waits[-1] + 0.001) == 0
    assert pace.wait(NOBODY + 1, 1000) == 0
    assert list(pace._until) == [NOBODY + 1]


def test_a_socket_that_was_removed_is_missed_and_made_anew(desk: Desk) -> None:
    kept = desk.client()
    desk.until(lambda: bool(desk.control._clients))
    assert not desk.control.missing()
    os.unlink(desk.path)
    assert desk.control.missing()
    Path(desk.path).write_text("somebody else's\n")
    assert desk.control.missing()
    desk.control.listen()
    assert not desk.control.missing()
    assert desk.ask({"op": "echo", "text": 1}) == {"got": 1}
    kept.sendall(b'{"op":"echo","text":2}\n')
    assert desk.read(kept) == {"got": 2}


def test_a_line_without_end_is_cut_off(desk: Desk) -> None:
    client = desk.client()
    data = b"x" * (control.LINE_BYTES + 1)

    def sent() -> bool:
        nonlocal data
        try:
            data = data[client.send(data) :]
        except BlockingIOError:
            return False
        return not data

    desk.until(sent)
    assert "longer than" in desk.read(client)["error"]
    assert desk.read(client) is None
    assert desk.control.refused == 1


def test_a_client_that_does_not_read_is_cut_off_and_its_memory_freed(desk: Desk) -> None:
    client = desk.client()
    client.sendall(b'{"op":"follow"}\n')
    desk.until(lambda: bool(desk.followers))
    for _ in range(control.UNREAD_BYTES // 100_000 + 50):
        if desk.followers:
            desk.followers[0]({"text": "x" * 100_000})
    assert not desk.followers
    assert desk.control.refused == 1


@pytest.mark.root
def test_a_command_waits_in_line_while_others_fill_the_queue(open_desk: Desk) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            open_desk.client(NOBODY)
    with ThreadPoolExecutor(1) as other:
        answer = other.submit(ask, open_desk.path, op="echo", text=1)
        assert not wait([answer], 0.1).done, "it gave up, or was served"
        open_desk.until(answer.done)
    assert answer.result() == {"got": 1}
    assert open_desk.control.refused > 0


def test_more_clients_than_allowed_are_turned_away(desk: Desk) -> None:
    clients = [desk.client() for _ in range(control.BACKLOG)]
    desk.until(lambda: len(desk.control._clients) == control.CLIENTS)
    assert desk.read(desk.client()) is None
    assert desk.control.refused == 1
    clients[0].close()
    desk.until(lambda: len(desk.control._clients) < control.CLIENTS)
    assert desk.ask({"op": "echo", "text": 1}) == {"got": 1}


def test_a_follower_that_leaves_is_forgotten(desk: Desk) -> None:
    client = desk.client()
    client.sendall(b'{"op":"follow"}\n')
    desk.until(lambda: bool(desk.followers))
    client.close()
    desk.until(lambda: not desk.followers)


def test_who_follows_waits_for_the_next_answer_for_as_long_as_nothing_changes(tmp_path: Path) -> None:
    """A quiet agent was said not to answer."""
    path = str(tmp_path / "quiet.sock")

    def serve(server: socket.socket) -> None:
        with server.accept()[0] as client:
            client.recv(1024)
            for number in range(2):
                client.sendall(json.dumps({"number": number, "more": "x" * 300_000}).encode() + b"\n")
                time.sleep(0.3)

    with socket.socket(socket.AF_UNIX) as server, ThreadPoolExecutor(1) as pool:
        server.bind(path)
        server.listen()
        pool.submit(serve, server)
        answers = follow(path, within_s=0.1, idle=lambda: None, op="watch")
        assert [next(answers)["number"] for _ in range(2)] == [0, 1]
        with pytest.raises(NotRunning, match="ended"):
            next(answers)
