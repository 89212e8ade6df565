"""Listening when descriptors run out: nobody spins, and who must be heard is."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.fakes.descriptors import allowed, hoarded
from xce.linux import listen
from xce.linux.listen import Listener, Reserve
from xce.linux.loop import Loop


class Door:
    """A listener in a process whose descriptors can be used up."""

    def __init__(self, folder: Path) -> None:
        self.loop = Loop()
        self.taken: list[tuple[socket.socket, bool]] = []
        self.welcome = True
        self.reserve = Reserve(2)
        self.path = str(folder / "door")
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        listening.bind(self.path)
        listening.listen(64)
        self.listener = Listener(self.loop, listening, self._take, reserve=self.reserve)
        self.clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(40)]

    def _take(self, connection: socket.socket) -> bool:
        self.taken.append((connection, self.listener.scarce))
        return self.welcome

    def close(self) -> None:
        for connection, _ in self.taken:
            connection.close()
        for client in self.clients:
            client.close()
        self.listener.close()
        self.listener.close()
        self.reserve.close()
        self.loop.close()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with allowed(256), closing(Door(tmp_path)) as door:
        yield door


def test_without_descriptors_the_reserve_lets_some_in_and_then_the_loop_rests(door: Door) -> None:
    turns = 0
    with hoarded():
        for client in door.clients[:5]:
            client.connect(door.path)
        door.loop.turn(1)
        assert [scarce for _, scarce in door.taken] == [True, True]
        deadline = door.loop.now() + 0.3
        while (left := deadline - door.loop.now()) > 0:
            door.loop.turn(left)
            turns += 1
    assert turns <= 2
    assert door.loop.now() - deadline < listen.DRY_S


def test_when_there_are_descriptors_again_all_are_let_in_and_the_reserve_is_full_again(door: Door) -> None:
    with hoarded():
        for client in door.clients[:5]:
            client.connect(door.path)
        door.loop.turn(1)
    deadline = door.loop.now() + 20
    while len(door.taken) < 5 and door.loop.now() < deadline:
        door.loop.turn(0.1)
    assert len(door.taken) == 5
    assert not door.listener.scarce
    assert len(door.reserve._held) == 2


def test_a_few_are_taken_in_a_turn_and_who_is_turned_away_costs_a_rest(door: Door) -> None:
    door.welcome = False
    for client in door.clients:
        client.connect(door.path)
    door.loop.turn(0)
    assert len(door.taken) == listen.PER_TURN
    door.loop.turn(0)
    assert len(door.taken) == listen.PER_TURN
    deadline = door.loop.now() + 20
    while len(door.taken) < len(door.clients) and door.loop.now() < deadline:
        door.loop.turn(0.1)
    assert len(door.taken) == len(door.clients)


def test_the_soft_limit_is_raised_as_far_as_may_be() -> None:
    script = (
        "import resource; from xce.linux import listen\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512))\n"
        "print(listen.raise_limit(300), listen.raise_limit(10_000), listen.raise_limit(100))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "300 512 512\n"
