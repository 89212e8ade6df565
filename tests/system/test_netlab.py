"""The network lab itself: hosts reach each other, cuts are silent and can be healed, nothing is left."""

import subprocess
import sys

import pytest

from tests.system.netlab import Lab

pytestmark = pytest.mark.root

LISTEN = """
import socket
server = socket.create_server(("", 7400))
print("up", flush=True)
while True:
    server.accept()
"""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 7400), timeout=0.5)"


def reaches(lab: Lab, host: int, other: int) -> bool:
    return lab.run(host, [sys.executable, "-c", CONNECT, lab.address(other)]).returncode == 0


def test_a_cut_is_silent_and_ends_with_healing() -> None:
    with Lab(hosts=3) as lab:
        command = lab.command(1, [sys.executable, "-c", LISTEN])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout
                server.stdout.readline()
                assert reaches(lab, 2, 1)
                lab.cut(2)
                refused = lab.run(2, [sys.executable, "-c", CONNECT, lab.address(1)])
                assert "timed out" in refused.stderr or "TimeoutError" in refused.stderr
                assert reaches(lab, 3, 1)
                lab.heal()
                assert reaches(lab, 2, 1)
            finally:
                server.kill()


def test_two_labs_do_not_meet_and_nothing_is_left() -> None:
    with Lab(hosts=1) as one, Lab(hosts=1) as two:
        names = [one.namespace(1), two.namespace(1), one.namespace(0), two.namespace(0)]
        assert len(set(names)) == len(names)
    listed = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not set(names) & set(listed)
