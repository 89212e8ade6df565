"""C-DIR-01: ports that nobody else has, in whatever way he has them."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.prepare.world import World
from xce.linux import listening, local_ports
from xce.linux.cgroup import Cgroup
from xce.model.claim import Ask, BindingState, Condition, PortsAsk
from xce.prepare import ports
from xce.prepare.step import Ports


class Count:
    """How often something is called."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self.calls = call, 0

    def __call__(self, *given: Any) -> Any:
        self.calls += 1
        return self.call(*given)


@pytest.fixture
def free() -> int:
    """A range of ports that nobody uses at the moment."""
    for low in range(21_000, 29_000, 10):
        if all(ports.is_free(port) for port in range(low, low + 4)):
            return low
    pytest.skip("no four free ports in a row")


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def test_c_dir_01_a_port_of_an_outgoing_connection_is_not_free(free: int, server: socket.socket) -> None:
    with socket.create_connection(server.getsockname(), source_address=("127.0.0.1", free)):
        assert not ports.is_free(free)
        assert ports.is_free(free + 1)


@pytest.mark.parametrize(
    ("family", "kind", "address"),
    [
        (socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1"),
        (socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1"),
        (socket.AF_INET6, socket.SOCK_STREAM, "::1"),
    ],
)
def test_a_port_that_is_bound_on_any_address_is_not_free(
    free: int, family: int, kind: int, address: str
) -> None:
    with socket.socket(family, kind) as other:
        other.bind((address, free))
        assert not ports.is_free(free)


def kernels(place: Path, own: str, reserved: str = "") -> str:
    """A /proc whose kernel gives these ports to outgoing connections."""
    folder = place / "sys/net/ipv4"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ip_local_port_range").write_text(own.replace("-", "\t") + "\n")
    (folder / "ip_local_reserved_ports").write_text(reserved + "\n")
    return str(place)


def test_c_dir_01_a_range_that_the_kernel_uses_itself_is_reported(tmp_path: Path) -> None:
    proc = kernels(tmp_path, "32768-60999")
    assert str(local_ports.overlap(32_000, 33_767, proc)) == (
        "the kernel gives 32768-33767 to outgoing connections; reserve them "
        "(sysctl net.ipv4.ip_local_reserved_ports=32768-33767) or choose others"
    )
    assert local_ports.overlap(20_000, 29_999, proc) is None
    proc = kernels(tmp_path, "32768-60999", "32768-33767,40000")
    assert local_ports.overlap(32_000, 33_767, proc) is None
    assert "40001" in str(local_ports.overlap(40_000, 40_001, proc))
    assert local_ports.overlap(1, 65_535, str(tmp_path / "none")) is None, "nobody knows"


def test_what_the_kernel_uses_itself_is_picked_last(free: int) -> None:
    step = Ports(name="a", count=2, low=free, high=free + 3)
    assert ports.pick(step, set(), [(1, free + 1)]) == [free + 2, free + 3]
    assert ports.pick(step, {free + 3}, [(1, free + 1)]) == [free + 2, free]


@pytest.mark.root
def test_evidence_says_which_ports_can_be_lost_to_an_outgoing_connection(
    world: World, free: int, tmp_path: Path
) -> None:
    own = world.executor.node
    proc = kernels(tmp_path, f"{free + 1}-{free + 1}")
    world.executor.node = own._replace(proc=proc)
    report = world.bind(Ask(ports=[PortsAsk(name="a", count=2, low=free, high=free + 1)]))
    world.executor.node = own
    assert report.state is BindingState.READY
    assert world.evidence(report.binding, "ports")["shared with outgoing connections"] == [free + 1]


@pytest.mark.root
def test_c_dir_01_a_claim_gets_other_ports_than_connections_have(
    world: World, free: int, server: socket.socket
) -> None:
    ask = Ask(ports=[PortsAsk(name="a", count=3, low=free, high=free + 3)])
    with socket.create_connection(server.getsockname(), source_address=("127.0.0.1", free + 1)):
        assert world.bind(ask).ports == {"a": [free, free + 2, free + 3]}


@pytest.mark.root
def test_a_port_that_a_stranger_took_over_a_reboot_is_not_said_to_be_the_jobs(
    world: World, free: int
) -> None:
    report = world.bind(Ask(ports=[PortsAsk(name="a", exact=[free])]))
    assert report.state is BindingState.READY
    world.reboot()
    with socket.create_server(("127.0.0.1", free)):
        world.executor.resume(world.instances)
        failed = world.settled(report.binding)
    assert (failed.state, failed.reason) == (BindingState.FAILED, f"ports a: {free} is in use on this host")


LISTEN = """
import socket, sys
held = socket.socket(socket.AF_INET, {kind})
held.bind(("127.0.0.1", {port}))
if {listens}: held.listen()
print("here", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def listener(
    command: Callable[[list[str]], list[str]], port: int, kind: int, *, listens: bool = True
) -> Iterator[int]:
    listens = listens and kind == socket.SOCK_STREAM
    code = LISTEN.format(port=port, kind=int(kind), listens=listens)
    own = command([sys.executable, "-I", "-S", "-c", code])
    with subprocess.Popen(own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        yield process.pid
        process.kill()


@pytest.mark.root
@pytest.mark.parametrize(
    ("kind", "listens"),
    [(socket.SOCK_STREAM, True), (socket.SOCK_STREAM, False), (socket.SOCK_DGRAM, False)],
    ids=["listens", "bound", "UDP"],
)
def test_whoever_takes_a_port_that_is_a_claims_is_named_and_the_claim_is_degraded(
    world: World, free: int, kind: int, listens: bool
) -> None:
    if kind == socket.SOCK_STREAM and not (listens or listening.lists_bound()):
        pytest.skip("this kernel does not list sockets that are only bound: Linux 6.8 does")
    report = world.bind(Ask(ports=[PortsAsk(name="a", exact=[free])]))
    with listener(lambda own: world.inside(report.binding, own), free, kind, listens=listens):
        time.sleep(0.3)
        world.executor.check()
        assert world.report(report.binding).conditions == [], "it is its consumer's"
    with listener(list, free, kind, listens=listens) as pid:
        world.until(lambda: world.report(report.binding).conditions == [Condition.DEGRADED])
        note = world.report(report.binding).note
        assert note.startswith(f"port {free} is used by another than its consumer: pid {pid} (python"), note
    world.until(lambda: world.report(report.binding).conditions == [])


CROWD = 300


@pytest.mark.root
def test_very_many_sockets_on_a_claims_port_cost_one_look_and_few_words(
    world: World, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = world.bind(Ask(ports=[PortsAsk(name="a", exact=[free])]))
    listed = Count(os.listdir)
    monkeypatch.setattr(os, "listdir", listed)
    with contextlib.ExitStack() as crowd:
        for number in range(1, CROWD):
            crowd.enter_context(socket.create_server((f"127.0.{number // 250}.{number % 250 + 1}", free)))
        crowd.enter_context(listener(list, free, socket.SOCK_DGRAM))
        time.sleep(0.3)
        listed.calls = 0
        world.executor.check()
        shown = world.report(report.binding)
        assert shown.conditions == [Condition.DEGRADED]
        assert shown.note.count("is used by another") == 2, "two processes, not each socket"
        assert listed.calls < 20 + 4 * len(os.listdir("/proc"))


@pytest.mark.root
def test_a_job_that_closed_its_port_since_the_sockets_were_listed_was_no_stranger(
    world: World, free: int
) -> None:
    report = world.bind(Ask(ports=[PortsAsk(name="a", exact=[free])]))
    [group] = world.evidence(report.binding, "group")["groups"]
    part = Cgroup(group).child("step")
    part.create()
    world.until(lambda: not world.executor.node.listening.at(free))
    time.sleep(0.3)
    with listener(lambda own: part_of(part, own), free, socket.SOCK_STREAM):
        assert world.executor.node.listening.at(free)
    part.remove()
    world.executor.check()
    assert world.report(report.binding).conditions == []


def part_of(group: Cgroup, command: list[str]) -> list[str]:
    return ["sh", "-c", f'echo $$ > {group.path}/cgroup.procs; exec "$@"', "sh", *command]


@pytest.mark.root
def test_where_the_kernel_does_not_list_sockets_the_evidence_says_so(
    world: World, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> Iterator[listening.Socket]:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(listening, "sockets", refused)
    report = world.bind(Ask(ports=[PortsAsk(name="a", exact=[free])]))
    assert (report.state, report.conditions) == (BindingState.READY, [])
    words = "the kernel does not list sockets: No such file or directory"
    assert world.evidence(report.binding, "ports")["not watched"] == words


@pytest.mark.root
def test_a_job_that_had_its_port_before_it_came_into_the_group_is_no_stranger(
    world: World, free: int
) -> None:
    report = world.bind(Ask(ports=[PortsAsk(name="a", exact=[free])]))
    with listener(list, free, socket.SOCK_STREAM) as pid:
        for group in world.evidence(report.binding, "group")["groups"]:
            Path(group, "cgroup.procs").write_text(str(pid))
        time.sleep(0.3)
        world.executor.check()
        assert world.report(report.binding).conditions == []


@pytest.mark.root
def test_no_port_is_given_to_two(world: World, free: int) -> None:
    def ask(name: str, count: int) -> PortsAsk:
        return PortsAsk(name=name, count=count, low=free, high=free + 3)

    one = world.bind(Ask(ports=[ask("a", 2), ask("b", 1)]))
    given = [*one.ports["a"], *one.ports["b"]]
    assert len(set(given)) == 3
    world.restart()
    two = world.bind(Ask(ports=[ask("c", 1)]))
    assert set(two.ports["c"]) | set(given) == set(range(free, free + 4))
    full = world.bind(Ask(ports=[ask("d", 1)]))
    assert full.state is BindingState.FAILED
    assert f"ports d: only 0 of 1 are free from {free} to {free + 3}" in full.reason
    taken = world.bind(Ask(ports=[PortsAsk(name="e", exact=[given[0]])]))
    assert taken.reason == f"ports e: {given[0]} is another claim's"
    world.release(one.binding)
    assert world.bind(Ask(ports=[PortsAsk(name="e", exact=[given[0]])])).state is BindingState.READY


@pytest.mark.root
def test_ports_outside_of_the_profile_are_refused(world: World) -> None:
    report = world.bind(Ask(ports=[PortsAsk(name="a", exact=[80])]))
    assert report.reason == "ports a: 80 to 80 are not within 20000 to 29999"
