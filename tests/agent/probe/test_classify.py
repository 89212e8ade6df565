"""Kinds of PCI functions and of networks, and which ports may be offered."""

import pytest

from xce.agent.probe import classify
from xce.agent.probe.facts import Card, Machine, Net, Pci, Rdma, RdmaPort
from xce.agent.probe.sysfs.cards import CLASSES
from xce.linux.classes import ACCELERATORS

AT = "0000:05:00.0"


def kind(klass: int | None, vendor: int | None, device: int | None = None, **more: object) -> str:
    pci = Pci(address=AT, klass=klass, vendor=vendor, device=device, **more)  # type: ignore[arg-type]
    return classify.kinds(Machine(pci=(pci,)))[AT]


@pytest.mark.parametrize(
    ("klass", "vendor", "device", "wanted"),
    [
        (0x030200, 0x10DE, 0x2330, "gpu"),  # H100
        (0x030000, 0x10DE, 0x2204, "gpu"),  # RTX 3090
        (0x040300, 0x10DE, 0x1AEF, "other"),  # its audio
        (0x068000, 0x10DE, 0x22A3, "nvswitch"),
        (0x060400, 0x10DE, 0x1234, "bridge"),
        (0x038000, 0x1002, 0x740F, "gpu"),  # MI210
        (0x120000, 0x1002, 0x74A1, "gpu"),  # MI300X
        (0x030000, 0x1002, 0x515E, "display_only"),  # ES1000
        (0x030000, 0x1002, 0x4752, "display_only"),  # Rage XL
        (0x030000, 0x1A03, 0x2000, "display_only"),  # ASPEED
        (0x030000, 0x102B, 0x0538, "display_only"),  # Matrox
        (0x030000, 0x1013, 0x00B8, "display_only"),  # Cirrus
        (0x038000, 0x1AF4, 0x1050, "display_only"),  # virtio
        (0x030000, 0x8086, 0x4680, "display_only"),  # in the processor
        (0x038000, 0x8086, 0x0BD5, "gpu"),  # Data Center GPU Max
        (0x030200, None, None, "gpu"),
        (0x030000, None, None, "display_only"),
        (0x0B4000, 0x8086, 0x225C, "accelerator"),  # Xeon Phi
        (0x0B4000, 0x1BCF, 0x001C, "accelerator"),  # Vector Engine
        (0x0B4000, 0x8086, 0x4940, "other"),  # QAT encrypts and compresses
        (0x120000, 0x1DA3, 0x1020, "accelerator"),  # Gaudi
        (0x088000, 0x1D0F, 0x7164, "accelerator"),  # Trainium
        (0x088000, 0x8086, 0x0B25, "other"),  # DSA
        (0x020000, 0x1AF4, 0x1041, "nic"),
        (0x028000, 0x15B3, 0x1003, "nic"),
        (0x0C0600, 0x1077, 0x7322, "nic"),  # QLogic TrueScale
        (0x010802, 0x144D, 0xA808, "nvme"),
        (0x060400, 0x8086, 0x1234, "bridge"),
        (0x0C0330, 0x8086, 0x1234, "other"),
        (0x000000, 0x0000, 0x0000, "other"),  # a switch of a DGX-2 that reads all zeros
        (None, None, None, "other"),
    ],
)
def test_kinds(klass: int | None, vendor: int | None, device: int | None, wanted: str) -> None:
    assert kind(klass, vendor, device) == wanted


def test_intel_cards_are_behind_a_bridge() -> None:
    assert kind(0x030000, 0x8086, 0x56A0, bridges=("0000:00:01.0",)) == "gpu"


def test_a_function_that_a_gpu_driver_holds_is_a_gpu_whatever_was_read_of_it() -> None:
    machine = Machine(pci=(Pci(address=AT, klass=0x030000),), nvidia_proc=(AT,))
    assert classify.kinds(machine) == {AT: "gpu"}


def test_what_hangs_on_a_function_tells_where_its_class_does_not() -> None:
    net = Machine(pci=(Pci(address=AT),), net=(Net(name="eth0", pci=AT),))
    assert classify.kinds(net) == {AT: "nic"}
    usb = Machine(pci=(Pci(address=AT, klass=0x0C0330),), net=(Net(name="eth0", pci=AT),))
    assert classify.kinds(usb) == {AT: "other"}, "an adapter on USB makes no NIC of the USB controller"
    for subsystem in ACCELERATORS:
        assert subsystem in CLASSES, "or it is never read"
        cards = (Card(subsystem=subsystem, name="0", pci=AT),)
        machine = Machine(pci=(Pci(address=AT, klass=0x088000),), cards=cards)
        assert classify.kinds(machine) == {AT: "accelerator"}


def nic(*nets: Net, rdma: tuple[Rdma, ...] = (), others: tuple[Net, ...] = (), **pci: object) -> classify.Nic:
    function = Pci(address=AT, klass=0x020000, **pci)  # type: ignore[arg-type]
    [found] = classify.nics(Machine(pci=(function,), net=(*nets, *others), rdma=rdma))
    return found


def eth(name: str = "eth0", **more: object) -> Net:
    return Net(name=name, pci=AT, **({"operstate": "up", "carrier": True} | more))  # type: ignore[arg-type]


def ib(state: str | None = "ACTIVE", layer: str = "InfiniBand", **more: object) -> Rdma:
    port = RdmaPort(number=1, state=state, layer=layer, physical="LinkUp", nets=("eth0",))
    return Rdma(name="mlx5_0", pci=AT, ports=(port,), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (nic(), "no network interface and no RDMA device (no driver)"),
        (nic(driver="vfio-pci"), "no network interface and no RDMA device (driver vfio-pci)"),
        (nic(eth(operstate="down", carrier=False)), "interface is down"),
        (nic(eth(operstate=None, carrier=None)), "state of its port is unknown"),
        (
            nic(eth(master="bond0"), others=(Net(name="bond0", info="bond"),)),
            "eth0 is a member of bond bond0",
        ),
        (nic(eth(), physfn="0000:04:00.0"), "virtual function of 0000:04:00.0"),
        (nic(eth(info="wlan")), "a wireless interface"),
        (nic(eth(), rdma=(ib("DOWN"),)), "port is DOWN, LinkUp"),
        (nic(eth(), rdma=(ib(None),)), "state of its port is unknown"),
        (nic(eth(), rdma=(Rdma(name="x", pci=AT),)), "state of its port is unknown"),
        (nic(eth(master="bond0"), rdma=(ib(layer="Ethernet"),)), "eth0 is a member of bond0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_why_a_nic_is_not_offered(found: classify.Nic, reason: str) -> None:
    assert found.reasons == (reason,)


@pytest.mark.parametrize(
    "found",
    [
        nic(eth()),
        nic(eth(master="rail0"), rdma=(ib(),), others=(Net(name="rail0", info="vrf"),)),
        nic(eth(), rdma=(ib(),)),
        nic(eth(operstate="unknown")),
        nic(eth(), eth("eth1", carrier=False)),
    ],
    ids=["interface", "in a routing domain", "rdma", "a driver that tells no state", "one of two ports"],
)
def test_a_nic_with_a_port_that_works_is_offered(found: classify.Nic) -> None:
    assert found.reasons == ()


def test_a_bond_of_rdma_ports_is_offered_through_its_one_device() -> None:
    """RoCE LAG: the port's interface is the bond itself, of which its function's interface is a member."""
    port = RdmaPort(number=1, state="ACTIVE", layer="Ethernet", nets=("bond0",))
    rdma = Rdma(name="mlx5_bond_0", pci=AT, ports=(port,))
    assert nic(eth(master="bond0"), rdma=(rdma,), others=(Net(name="bond0", info="bond"),)).reasons == ()


def test_representors_of_virtual_functions_are_no_ports() -> None:
    found = nic(eth(phys_port="p0", carrier=False, operstate="down"), eth("eth0_0", phys_port="pf0vf0"))
    assert [port.nets for port in found.ports] == [("eth0",)]
    assert found.reasons == ("interface is down",)


@pytest.mark.parametrize(
    ("device", "pci", "fabric"),
    [
        (ib(), {}, "infiniband"),
        (ib(layer="Ethernet", node_type="CA"), {}, "roce"),
        (ib(layer="Ethernet", node_type="RNIC"), {}, "iwarp"),
        (ib(node_type="usNIC UDP"), {}, "usnic"),
        (ib(driver="hfi1"), {}, "omnipath"),
        (ib(driver="ib_qib"), {}, "truescale"),
        (ib(), {"vendor": 0x1D0F, "device": 0xEFA2}, "efa"),
    ],
)
def test_the_network_of_a_port(device: Rdma, pci: dict[str, object], fabric: str) -> None:
    function = Pci(address=AT, klass=0x020000, **pci)  # type: ignore[arg-type]
    [found] = classify.nics(Machine(pci=(function,), net=(eth(),), rdma=(device,)))
    assert found.fabric == fabric


def test_an_rdma_device_of_no_known_function_is_listed_and_not_offered() -> None:
    device = Rdma(name="scif0", ports=(RdmaPort(number=1, state="ACTIVE", layer="Ethernet"),))
    [found] = classify.nics(Machine(rdma=(device,)))
    assert (found.pci, found.rdma, found.fabric) == ("", ("scif0",), "roce")
    assert found.reasons == found.ports[0].reasons == ("not on a PCI function that is known",)
