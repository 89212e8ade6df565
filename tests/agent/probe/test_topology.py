"""Levels, an admin's groups, rails, links and domains: the rules, away from any one machine."""

from random import Random

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from xce.agent.probe.facts import (
    Fabric,
    KfdLink,
    KfdNode,
    Machine,
    Numa,
    Nvidia,
    NvidiaGpu,
    NvLink,
    Pci,
)
from xce.agent.probe.topology import LEVELS, AdminGroup, AdminTopology, topology

GPU, NIC = {"klass": 0x030200, "vendor": 0x10DE}, {"klass": 0x020700, "vendor": 0x15B3}


def gpu(address: str, **more: object) -> Pci:
    return msgspec.convert({"address": address, **GPU, **more}, Pci)


def nic(address: str, **more: object) -> Pci:
    return msgspec.convert({"address": address, **NIC, **more}, Pci)


def level(a: Pci, b: Pci, **machine: object) -> str:
    found = topology(msgspec.structs.replace(Machine(pci=(a, b)), **machine))
    return found.pair(a.address, b.address).level


# --- levels ---


def test_a_shared_host_bridge_is_near_unless_its_devices_are_on_different_nodes() -> None:
    """A guest's only host bridge holds the devices of both sockets."""
    root = {"root": "pci0000:00"}
    assert level(gpu("0000:00:1b.0", **root), nic("0000:00:1c.0", **root)) == "hostbridge"
    far = {**root, "numa": 1}
    assert level(gpu("0000:00:1b.0", **root, numa=0), nic("0000:00:1c.0", **far)) == "system"


def test_cpus_tell_the_node_only_where_the_kernel_has_no_file_for_it() -> None:
    nodes = (Numa(node=0, cpus="0-7"), Numa(node=8, cpus="8-15"), Numa(node=255, cpus=""))
    silent = {"numa_silent": True, "local_cpus": "8-11"}
    found = topology(Machine(numa=nodes, pci=(gpu("0000:01:00.0", **silent),)))
    assert found.places["0000:01:00.0"].numa == 8
    assert found.host_nodes == (0, 8)
    said = silent | {"numa_silent": False}
    assert (
        topology(Machine(numa=nodes, pci=(gpu("0000:01:00.0", **said),))).places["0000:01:00.0"].numa is None
    )
    across = silent | {"local_cpus": "4-11"}
    found = topology(Machine(numa=nodes, pci=(gpu("0000:01:00.0", **across),)))
    assert found.places["0000:01:00.0"].numa is None


def test_an_unknown_node_stays_unknown_on_a_machine_with_one_node_and_may_be_shown_as_it() -> None:
    found = topology(Machine(numa=(Numa(node=0, cpus="0-7"),), pci=(gpu("0000:01:00.0"),)))
    assert (found.places["0000:01:00.0"].numa, found.only_node) == (None, 0)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Random PCI trees: each device on some bridge of some root, on a node that may be unknown."""
    found = []
    for number in range(draw(st.integers(2, 8))):
        root = draw(st.sampled_from([None, "pci0000:00", "pci0000:80"]))
        ports = [root[3:7] + "a", root[3:7] + "b"] if root else []
        path = draw(st.lists(st.sampled_from(ports), max_size=4)) if ports else []
        bridges = tuple("".join(path[:at]) for at in range(1, len(path) + 1))
        of = draw(st.sampled_from([gpu, nic]))
        numa = draw(st.sampled_from([None, 0, 1]))
        found.append(of(f"0000:{number:02x}:00.0", root=root, bridges=bridges, numa=numa))
    return Machine(pci=tuple(found))


@hypothesis.given(machines())
def test_levels_are_the_same_both_ways(machine: Machine) -> None:
    found = topology(machine)
    for a in found.places:
        for b in found.places:
            ours, theirs = found.pair(a, b), found.pair(b, a)
            assert (ours.level, ours.common, ours.below) == (theirs.level, theirs.common, theirs.below)


@hypothesis.given(machines())
def test_two_unknown_nodes_are_never_one(machine: Machine) -> None:
    found = topology(machine)
    for pair in (*found.gpu_gpu, *found.gpu_nic):
        a, b = found.places[pair.a], found.places[pair.b]
        if pair.level == "numa":
            assert a.numa is not None
            assert a.numa == b.numa
        if pair.level == "system":
            assert None not in (a.numa, b.numa)
        if pair.level == "unknown":
            assert None in (a.numa, b.numa)


@hypothesis.given(machines(), st.randoms())
def test_the_order_of_the_facts_means_nothing(machine: Machine, random: Random) -> None:
    shuffled = list(machine.pci)
    random.shuffle(shuffled)
    assert topology(msgspec.structs.replace(machine, pci=tuple(shuffled))) == topology(machine)


@hypothesis.given(machines())
def test_the_nearest_nics_are_those_and_no_others_at_the_best_level(machine: Machine) -> None:
    found = topology(machine)
    for one in found.nearest:
        pairs = [pair for pair in found.gpu_nic if pair.a == one]
        how_near = {pair.b: (LEVELS.index(pair.level), -pair.depth) for pair in pairs}
        best = min(how_near.values())
        assert found.nearest[one].level == LEVELS[best[0]]
        assert set(found.nearest[one].nics) == {nic for nic, near in how_near.items() if near == best}


@hypothesis.given(machines())
def test_a_switch_group_is_what_shares_its_bridge(machine: Machine) -> None:
    found = topology(machine)
    for group in found.switch_groups:
        below = {address for address, place in found.places.items() if group.bridge in place.bridges}
        assert set(group.members) == below
    for pair in (*found.gpu_gpu, *found.gpu_nic):
        if pair.level == "bridge":
            assert pair.common in {group.bridge for group in found.switch_groups}


# --- what an admin says ---

GUEST = Machine(
    numa=(Numa(node=0, cpus="0-3"), Numa(node=1, cpus="4-7")),
    pci=(
        gpu("0001:00:00.0", root="pci0001:00", numa=0),
        gpu("0002:00:00.0", root="pci0002:00"),
        nic("0101:00:00.0", root="pci0101:00", numa=0),
        nic("0102:00:00.0", root="pci0102:00", numa=1),
    ),
)


def admin(*members: str, numa: int | None = None) -> AdminTopology:
    return AdminTopology(groups=(AdminGroup(members=members, numa=numa, name="board A"),))


def test_members_of_an_admins_group_count_as_below_one_switch() -> None:
    found = topology(GUEST, admin("00000001:00:00.0", "0002:00:00.0", "0101:00:00.0", numa=0))
    assert found.conflicts == ()
    assert found.nearest["0002:00:00.0"].nics == ("0101:00:00.0",)
    assert found.places["0002:00:00.0"].numa == 0, "what the kernel does not know is filled in"
    pair = found.pair("0001:00:00.0", "0101:00:00.0")
    assert (pair.level, pair.common, pair.word) == ("bridge", "board A", "PIX")


def test_the_kernels_node_wins_over_the_admins_and_is_told() -> None:
    found = topology(GUEST, admin("0001:00:00.0", "0102:00:00.0", numa=0))
    assert found.conflicts == ("board A: 0102:00:00.0 is on NUMA node 1, not 0, as the kernel sees it",)
    assert found.places["0102:00:00.0"].numa == 1
    assert found.pair("0001:00:00.0", "0102:00:00.0").level == "system"


def test_a_switch_that_the_kernel_sees_wins_over_the_admins_group() -> None:
    pci = (
        gpu("0000:05:00.0", root="pci0000:00", bridges=("0000:00:01.0", "0000:02:00.0"), numa=0),
        nic("0000:06:00.0", root="pci0000:00", bridges=("0000:00:02.0", "0000:03:00.0"), numa=0),
    )
    found = topology(Machine(pci=pci), admin("0000:05:00.0", "0000:06:00.0"))
    assert found.conflicts == ("board A: 0000:06:00.0 is below another switch, as the kernel sees it",)
    assert found.pair("0000:05:00.0", "0000:06:00.0").level == "hostbridge"


def test_what_an_admin_says_of_devices_that_are_not_there_is_told() -> None:
    given = AdminTopology(
        groups=(AdminGroup(members=("0009:00:00.0", "0001:00:00.0")), AdminGroup(members=("0001:00:00.0",))),
        rails=(("0008:00:00.0",),),
    )
    assert topology(GUEST, given).conflicts == (
        "group 1: 0009:00:00.0 is not on this machine",
        "group 2: 0001:00:00.0 is in group 1 already",
        "rails: 0008:00:00.0 is not on this machine",
    )


# --- rails ---


def host(gpus: int, nics: int, *, first: int = 0) -> Machine:
    """One switch with some GPUs and some NICs."""
    common = {"root": "pci0000:00", "bridges": ("0000:00:01.0",), "numa": 0}
    return Machine(
        pci=(
            *(gpu(f"0000:{0x20 + first + n:02x}:00.0", **common) for n in range(gpus)),
            *(nic(f"0000:{0x40 + first + n:02x}:00.0", **common) for n in range(nics)),
        )
    )


@pytest.mark.parametrize(
    ("gpus", "nics", "wanted"),
    [
        (2, 2, [(0,), (1,)]),
        (4, 2, [(0,), (0,), (1,), (1,)]),
        (2, 1, [(0,), (0,)]),
        (2, 4, [(0, 1), (2, 3)]),
        (3, 2, [(0,), (0,), (1,)]),
        (1, 0, [()]),
    ],
)
def test_gpus_on_one_switch_share_its_rails_out(gpus: int, nics: int, wanted: list[tuple[int, ...]]) -> None:
    found = topology(host(gpus, nics))
    assert [found.places[one].rails for one in found.of_kind("gpu")] == wanted
    assert [found.places[one].rails for one in found.of_kind("nic")] == [(number,) for number in range(nics)]


def test_a_nic_without_rdma_or_near_no_gpu_is_on_no_rail() -> None:
    common = {"root": "pci0000:00", "bridges": ("0000:00:01.0",), "numa": 0}
    machine = Machine(
        pci=(
            gpu("0000:20:00.0", **common),
            nic("0000:10:00.0", klass=0x020000, vendor=0x8086, **common),
            nic("0000:40:00.0", **common),
            nic("0000:41:00.0", root="pci0000:80", numa=1),
        )
    )
    found = topology(machine)
    rails = {address: place.rails for address, place in found.places.items()}
    assert rails == {
        "0000:10:00.0": (),
        "0000:20:00.0": (0,),
        "0000:40:00.0": (0,),
        "0000:41:00.0": (),
    }


def test_an_admins_rails_replace_the_rule() -> None:
    given = AdminTopology(rails=(("0000:41:00.0",), ("0000:40:00.0", "0000:20:00.0")))
    places = topology(host(1, 2), given).places
    assert [places[one].rails for one in ("0000:20:00.0", "0000:40:00.0", "0000:41:00.0")] == [
        (1,),
        (1,),
        (0,),
    ]


# --- links and domains ---


def library(**links: list[NvLink]) -> Machine:
    """GPUs a, b, ... with what each says of its links; their addresses are 000a:00:00.0, ..."""
    gpus = [
        NvidiaGpu(index=index, pci=f"000{name}:00:00.0", links=tuple(said))
        for index, (name, said) in enumerate(links.items())
    ]
    return Machine(nvidia=Nvidia(gpus=tuple(gpus)))


def to(name: str, count: int, *, active: bool | None = True, kind: int = 0) -> list[NvLink]:
    remote = f"0000{name}:00:00.0".upper() if len(name) == 4 else f"0000000{name}:00:00.0".upper()
    return [NvLink(link=number, active=active, remote=remote, remote_type=kind) for number in range(count)]


def test_links_between_two_gpus_are_counted_once() -> None:
    found = topology(
        library(a=to("b", 3) + to("c", 2, active=False), b=to("a", 3), c=to("a", 2, active=None))
    )
    assert [(link.a, link.b, link.count) for link in found.links] == [("000a:00:00.0", "000b:00:00.0", 3)]
    assert {(pair.b, pair.word) for pair in found.gpu_gpu if pair.a == "000a:00:00.0"} == {
        ("000b:00:00.0", "NV3"),
        ("000c:00:00.0", "?"),
    }
    assert [domain.members for domain in found.domains] == [("000a:00:00.0", "000b:00:00.0")]


def test_links_to_a_processor_join_no_gpus() -> None:
    """POWER9: NVLink goes to the CPU too."""
    found = topology(library(a=to("f", 3, kind=1), b=to("f", 3, kind=1)))
    assert [(pair.link, pair.word) for pair in found.gpu_gpu] == [("", "?")]
    assert found.domains == ()


def test_gpus_on_switches_reach_each_other_by_as_many_links_as_the_weaker_has() -> None:
    unnamed = [NvLink(link=number, active=True, remote_type=2) for number in range(18)]
    found = topology(library(a=unnamed, b=unnamed[:17], c=[]))
    assert {(pair.a[3], pair.b[3]): pair.word for pair in found.gpu_gpu} == {
        ("a", "b"): "NV17",
        ("a", "c"): "?",
        ("b", "c"): "?",
    }


def test_a_switch_is_known_by_its_kind_where_the_library_does_not_say_what_it_is() -> None:
    switch = Pci(address="000f:00:00.0", klass=0x068000, vendor=0x10DE)
    one = library(a=to("f", 6, kind=255), b=to("f", 6, kind=255))
    assert {pair.word for pair in topology(one).gpu_gpu} == {"?"}
    found = topology(msgspec.structs.replace(one, pci=(switch,)))
    assert [(pair.word, pair.links) for pair in found.gpu_gpu] == [("NV6", 6)]


@pytest.mark.parametrize(
    ("fabric", "domain"),
    [
        (Fabric(state=3, cluster="00000000-0000-0000-0000-000000000000", clique=0), ""),
        (
            Fabric(state=3, cluster="00000001-0000-0000-0000-00000000000A", clique=32766),
            "00000001-0000-0000-0000-00000000000a.32766",
        ),
        (Fabric(state=2, cluster="00000001-0000-0000-0000-000000000001", clique=2), ""),
        (Fabric(state=3, cluster=None, clique=2), ""),
        (None, ""),
    ],
)
def test_a_fabric_of_zeros_or_not_complete_is_no_domain(fabric: Fabric | None, domain: str) -> None:
    machine = Machine(nvidia=Nvidia(gpus=(NvidiaGpu(index=0, pci="0008:06:00.0", fabric=fabric),)))
    found = topology(machine)
    assert found.places["0008:06:00.0"].fabric == domain
    assert [one.id for one in found.domains] == [domain] * bool(domain)


def test_gpus_of_two_fabrics_are_not_joined_by_their_switches() -> None:
    one = [NvLink(link=0, active=True, remote_type=2)]
    gpus = [
        NvidiaGpu(
            index=number,
            pci=f"000{number}:00:00.0",
            links=tuple(one),
            fabric=Fabric(state=3, cluster="00000001-0000-0000-0000-000000000001", clique=number // 2),
        )
        for number in range(4)
    ]
    found = topology(Machine(nvidia=Nvidia(gpus=tuple(gpus))))
    assert {(pair.a[3], pair.b[3]) for pair in found.gpu_gpu if pair.link} == {("0", "1"), ("2", "3")}


def test_xgmi_is_between_devices_and_not_between_partitions_of_one() -> None:
    nodes = (
        KfdNode(node=0, simd=0),
        KfdNode(
            node=1,
            simd=4,
            pci="0000:05:00.0",
            unique_id="77",
            links=(
                KfdLink(to=2, type=11, weight=13),
                KfdLink(to=3, type=11, weight=15, max_mbps=50000),
                KfdLink(to=0, type=2),
            ),
        ),
        KfdNode(node=2, simd=4, pci="0000:05:00.0", unique_id="77"),
        KfdNode(node=3, simd=4, pci="0000:06:00.0", unique_id="78", links=(KfdLink(to=1, type=11),)),
    )
    found = topology(Machine(kfd=nodes))
    assert [(link.a, link.b, link.kind, link.mbps, link.weight) for link in found.links] == [
        ("0000:05:00.0", "0000:06:00.0", "xgmi", 50000, 15)
    ]
    assert [(one.pci, one.nodes) for one in found.physical] == [
        ("0000:05:00.0", (1, 2)),
        ("0000:06:00.0", (3,)),
    ]
    assert [pair.word for pair in found.gpu_gpu] == ["XGMI"]
    assert [(domain.kind, domain.id) for domain in found.domains] == [("xgmi", "xgmi:0000:05:00.0")]
