"""What went wrong for people with directories and ports, tried with all programs.

The steps alone, at every moment and with every fault, are tried in tests/prepare.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.linux.test_beneath import exchange
from tests.linux.test_mountapi import bind as bind_mount
from tests.prepare.test_names import NAMES, refused
from tests.system.harness import AgentProgram
from tests.system.one_node import FAILED, HOME, READY, RELEASING, Node, removed, starting
from tests.system.test_claims_killed import left
from xce.broker.client import BrokerRefused
from xce.linux import mountapi
from xce.model import message as m
from xce.model.claim import Ask, Claim, Consumer, PortsAsk
from xce.model.claim_check import text_problem
from xce.prepare import names
from xce.prepare.ports import is_free

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts and control groups need root"),
]


def own_range() -> tuple[int, int]:
    """Four ports that the kernel gives to outgoing connections, and nobody has."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for first in range(high - 4, low, -7):
        if all(is_free(port) for port in range(first, first + 4)):
            return first, first + 3
    pytest.skip("no four free ports in a row")


def with_the_kernels_ports(agent: AgentProgram) -> None:
    low, high = own_range()
    agent.settings["claims"]["profiles"]["default"]["ports"] = {"low": low, "high": high}


@starting(with_the_kernels_ports)
def test_c_dir_01_a_pool_in_the_kernels_own_range_is_told_and_what_connections_have_is_not_given(
    one: Node,
) -> None:
    low, high = (one.claims["profiles"]["default"]["ports"][key] for key in ("low", "high"))
    words = f"the kernel gives {low}-{high} to outgoing connections; reserve them"
    assert [words in line for line in one.agent.status()["trouble"]] == [True]
    assert words in one.agent.command("doctor", "--config", str(one.folder("agent.yaml"))).stdout
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = low + 1
        with socket.create_connection(server.getsockname(), source_address=("127.0.0.1", taken)):
            binding = one.ready("job", Ask(ports=[PortsAsk(name="http", count=3)]))
            assert one.view(binding).binding.ports == {"http": [low, low + 2, low + 3]}
            for port in (low, low + 2, low + 3):
                serve = f"import socket; socket.create_server(('', {port}))"
                assert one.run("job", "python3", "-c", serve).returncode == 0
            late = one.bound("late", Ask(ports=[PortsAsk(name="http", count=1)]))
            assert late.binding.state is FAILED
            assert f"only 0 of 1 are free from {low} to {high}" in late.binding.reason
    one.release("job", "late")
    one.ended(binding)


def squashed(agent: AgentProgram) -> None:
    """As if all shares squashed root. Its reporter runs as the agent does: it gives nothing away."""
    agent.prefix = ["setpriv", "--bounding-set=-chown", "--inh-caps=-all"]
    agent.settings["reporters"] |= {"user": "root", "allow_root": ["cards"]}


@starting(squashed)
def test_c_dir_03_where_nothing_can_be_given_to_a_user_the_claim_fails_and_nothing_is_left(one: Node) -> None:
    mine = one.ready("mine", HOME)  # root's own needs not to be given away
    view = one.bound("job", HOME, consumer=Consumer(name="j", user="nobody", job="7"))
    assert view.binding.state is FAILED
    words = f"{one.folder('home')}/nobody: cannot give to 65534 (root squashed?)"
    assert words in view.binding.reason
    assert [path.name for path in one.folder("home").iterdir()] == ["root"]
    one.release("mine")
    one.ended(mine)


def test_c_dir_04_every_name_of_a_job_is_one_directory_and_can_be_read_back(one: Node) -> None:
    good = [name for name in NAMES if not text_problem(name)]
    assert {"1042[7]", "1042_7", "1042%5B7%5D", "../../etc", "..", "*", "$(id)", "a/b"} <= set(good)
    jobs = [Consumer(name=f"j{number}", user="root", job=name) for number, name in enumerate(good)]
    jobs.append(Consumer(name="e", user="root", job="1042", index="[7]"))
    one.client.ask(m.ClaimCreate(id="", claim=Claim(id="job", ask=HOME)))
    places = [m.Place(claim="job", host="node1", consumer=job) for job in jobs]
    made = one.client.ask(m.ClaimBind(id="", places=places)).made
    views = one.client.wait_bindings(made, timeout=30)
    assert {view.binding.state for view in views.values()} == {READY}, views
    top = one.folder("home") / "root"
    found = os.listdir(top)
    assert sorted(map(names.decode, found)) == sorted(good)
    assert all(len(os.fsencode(name)) <= 255 for name in found)
    assert [path.name for path in one.folder("home").iterdir()] == ["root"]
    assert sorted(os.listdir(top / "1042")) == ["%5B7%5D", "err", "in", "out"]
    one.release("job")
    one.ended(*made)
    one.client.ask(m.ClaimCreate(id="", claim=Claim(id="next", ask=HOME)))
    for name in set(NAMES) - set(good) - {""}:  # '' is the consumer's name
        where = m.Place(claim="next", host="node1", consumer=Consumer(name="n", user="root", job=name))
        with pytest.raises(BrokerRefused, match=r"consumer\.job"):
            one.client.ask(m.ClaimBind(id="", places=[where]))
    assert left(one.agent) == []
    assert not any(refused(name) for name in good)


ROUNDS = 1000 if "XCE_TEST_FULL" in os.environ else 5


@contextlib.contextmanager
def swapping(inside: Callable[[], Path], outside: Path) -> Iterator[None]:
    """A loop that exchanges a directory of a job for a link to the outside, and back."""
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            exchange(inside(), outside)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_c_dir_05_a_release_removes_the_users_tree_and_nothing_else(one: Node, tmp_path: Path) -> None:
    """Links as last and as middle component, and a loop that swaps a directory for a link meanwhile."""
    outside, spare = tmp_path / "outside", one.folder("spare")
    (outside / "deep").mkdir(parents=True)
    for name in ("one", "deep/two"):
        (outside / name).write_text("precious")
    spare.symlink_to(outside)
    job = Consumer(name="job", user="root")
    out = one.folder("home") / "root/job/out"
    with swapping(lambda: out / "d", spare):
        for number in range(ROUNDS):
            binding = one.ready(f"job{number}", HOME, consumer=job)
            (out / "d").mkdir()
            for name in ("d/deep", "e/deep"):
                with contextlib.suppress(FileExistsError):
                    (out / name).mkdir(parents=True)
            (out / "last").symlink_to(outside)
            (out / "e/deep/middle").symlink_to(outside / "deep")
            one.release(f"job{number}")
            one.ended(binding)
            assert list(one.folder("home").iterdir()) == []
            if spare.is_dir() and not spare.is_symlink():
                removed(spare)
            if not os.path.lexists(spare):
                spare.symlink_to(outside)
    assert sorted(str(path.relative_to(outside)) for path in outside.rglob("*")) == [
        "deep",
        "deep/two",
        "one",
    ]


def test_c_dir_05_a_mount_in_the_users_tree_is_named_and_what_is_on_it_stays(one: Node) -> None:
    binding = one.ready("job", HOME)
    inside = one.folder("home") / "root/job/out/mounted"
    inside.mkdir()
    bind_mount(one.folder("data"), inside)
    one.release("job")
    view = one.told(binding, f"{inside}: a file system is mounted on it")
    assert (view.binding.state, view.conditions) == (RELEASING, ["blocked"])
    assert (one.folder("data") / "file").read_text() == "data"
    mountapi.unmount(str(inside))
    one.ended(binding)
    assert list(one.folder("home").iterdir()) == []
