"""Netlink's word on interfaces: real ones, in a network namespace of their own."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from tests.project import tree
from xce.agent.probe import links, rdmalink
from xce.agent.probe.facts import Machine, Net, Pci, Rdma, RdmaPort

READ = """
import sys; from pathlib import Path
import msgspec
from xce.agent.probe import links, sysfs
machine = sysfs.read(Path(sys.argv[1]))
sys.stdout.buffer.write(msgspec.json.encode([machine, links.refine(machine)]))
"""


def in_namespace(folder: Path, commands: list[str]) -> tuple[dict[str, Net], dict[str, Net]]:
    """What sysfs alone, and with netlink, says after some `ip` commands in a namespace without anything."""
    (folder / "sys").mkdir()
    script = "; ".join(
        [
            "set -e",
            f"mount -t sysfs sysfs {folder}/sys",
            *(f"ip {command} || {{ echo cannot: ip {command} >&2; exit 77; }}" for command in commands),
            'exec "$@"',
        ]
    )
    run = subprocess.run(
        ["unshare", "-mn", "sh", "-c", script, "sh", sys.executable, "-c", READ, folder],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(tree.ROOT)},
    )
    if run.returncode == 77:
        pytest.skip(f"this kernel has no such interfaces: {run.stderr.decode().strip()}")
    assert run.returncode == 0, run.stderr.decode()
    before, after = msgspec.json.decode(run.stdout, type=tuple[Machine, Machine])
    assert after.faults == ()
    return {net.name: net for net in before.net}, {net.name: net for net in after.net}


pytestmark = pytest.mark.root


@pytest.mark.parametrize(
    ("kind", "commands"),
    [
        ("bridge", ["link add one0 type bridge"]),
        ("dummy", ["link add one0 type dummy"]),
        ("veth", ["link add one0 type veth peer name two0"]),
        ("vlan", ["link add base0 type dummy", "link add link base0 name one0 type vlan id 5"]),
        ("macvlan", ["link add base0 type veth peer name b", "link add link base0 name one0 type macvlan"]),
        ("bond", ["link add one0 type bond"]),
    ],
)
def test_the_kind_of_a_virtual_interface_is_known(kind: str, commands: list[str], tmp_path: Path) -> None:
    _, nets = in_namespace(tmp_path, commands)
    assert nets["one0"].info == kind
    assert nets["one0"].pci is None
    if "base0" in nets:
        assert nets["one0"].lower == ("base0",)


@pytest.mark.parametrize("kind", ["bridge", "bond"])
def test_a_member_and_its_master_name_each_other(kind: str, tmp_path: Path) -> None:
    commands = [
        f"link add top0 type {kind}",
        "link add low0 type veth peer name far0",
        "link set low0 master top0",
    ]
    before, nets = in_namespace(tmp_path, commands)
    assert (nets["low0"].master, nets["top0"].lower, nets["far0"].master) == ("top0", ("low0",), "")
    assert (before["low0"].master, before["top0"].lower) == ("top0", ("low0",)), "sysfs says it alone too"


def test_a_link_that_goes_up_and_down_is_told_by_both(tmp_path: Path) -> None:
    pair = ["link add low0 type veth peer name far0", "link set low0 up", "link set far0 up"]
    (tmp_path / "up").mkdir()
    (tmp_path / "down").mkdir()
    before, nets = in_namespace(tmp_path / "up", pair)
    assert (nets["low0"].operstate, nets["low0"].carrier) == ("up", True)
    assert (before["low0"].operstate, before["low0"].carrier) == ("up", True)
    before, nets = in_namespace(tmp_path / "down", [*pair, "link set far0 down"])
    assert nets["low0"].carrier is False
    assert before["low0"].carrier is False
    assert nets["low0"].operstate == before["low0"].operstate != "up"


def told(**changed: Any) -> dict[str, Any]:
    keys = ("address", "operstate", "carrier", "mtu", "master", "link", "link_netnsid", "kind")
    parts = dict.fromkeys([*keys, "phys_port_name", "parent_dev_name", "parent_dev_bus_name"])
    return {**parts, "name": "eth0", "index": 3, "type": 1, **changed}


def test_the_device_below_is_taken_from_netlink_where_sysfs_was_silent() -> None:
    machine = Machine(pci=(Pci(address="0000:05:00.0"),), net=(Net(name="eth0", index=3),))
    parent = {"parent_dev_name": "0000:05:00.0", "parent_dev_bus_name": "pci"}
    assert links.merged(machine, [told(**parent)])[0].pci == "0000:05:00.0"
    assert links.merged(machine, [told(**parent | {"parent_dev_bus_name": "virtio"})])[0].pci is None
    strange = parent | {"parent_dev_name": "0000:06:00.0"}
    assert links.merged(machine, [told(**strange)])[0].pci is None, "a function that is not there"


def test_an_interface_renamed_between_the_two_readings_is_not_mixed_up() -> None:
    machine = Machine(net=(Net(name="eth0", index=3, mac="aa"),))
    nets = links.merged(machine, [told(index=4, address="bb")])
    assert [(net.name, net.index, net.mac) for net in nets] == [("eth0", 3, "aa")]


def test_a_port_gets_the_interface_that_sysfs_does_not_name() -> None:
    ports = (RdmaPort(number=1), RdmaPort(number=2, nets=("bond0",)))
    device = links.joined(Rdma(name="siw0", ports=ports), {("siw0", 1): "eth0", ("siw0", 2): "eth1"})
    assert [port.nets for port in device.ports] == [("eth0",), ("bond0",)]
    assert device.nets == ("eth0", "bond0")


@hypothesis.given(st.binary(max_size=60))
def test_rubbish_from_netlink_ends_and_raises_nothing(data: bytes) -> None:
    for _, body in rdmalink.messages(data):
        assert len(body) <= len(data)
        assert all(len(value) <= len(body) for _, value in rdmalink.parts(body))


def test_an_answer_of_rdma_netlink_is_taken_apart() -> None:
    """A device's message as the kernel sends it: index, name with its zero byte and padding."""
    attributes = b"\x08\x00\x01\x00\x07\x00\x00\x00" + b"\x09\x00\x02\x00rxe0\x00\x00\x00\x00"
    data = (len(attributes) + 16).to_bytes(4, "little") + b"\x01\x14" + bytes(10) + attributes
    [(kind, body)] = rdmalink.messages(data)
    assert kind == 0x1401
    assert dict(rdmalink.parts(body)) == {1: b"\x07\x00\x00\x00", 2: b"rxe0\x00"}


def test_asking_often_leaves_nothing_open() -> None:
    machine = links.refine(Machine())
    assert "lo" in {net.name for net in machine.net}
    before = (len(os.listdir("/proc/self/fd")), threading.active_count())
    for _ in range(50):
        links.refine(machine)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_without_netlink_the_facts_stay_and_a_fault_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(links, "IPRoute", refused)
    machine = Machine(net=(Net(name="eth0", index=3),))
    assert links.refine(machine) == Machine(
        net=machine.net, faults=("netlink: [Errno 1] Operation not permitted",)
    )
