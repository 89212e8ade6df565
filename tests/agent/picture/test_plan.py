"""Who is close to whom, from instances alone: the recorded levels, and matrices that real servers printed."""

from functools import cache
from pathlib import Path

import pytest

from tests.hardware import recorded
from xce.agent.picture.matrix import matrix
from xce.agent.picture.plan import Plan
from xce.agent.picture.tree import ASCII, tree
from xce.agent.probe import instances, machinefile, topology
from xce.agent.probe.facts import Machine
from xce.model.instance import Instance

H100 = Path(__file__).parents[3] / "docs" / "examples" / "machine-h100.yaml"
GOLDEN = Path(__file__).parent / "golden"


@cache
def machine_of(name: str) -> Machine:
    return machinefile.load(H100 if name == "h100" else recorded.MACHINES / name)


@cache
def plan_of(name: str, *, groups: bool = True) -> Plan:
    """With an admin's groups, or, as the records have it, without."""
    folder = recorded.MACHINES / name
    admin = machinefile.load_admin(folder) if groups and folder.is_dir() else None
    machine = machine_of(name)
    return Plan(instances.found(machine, topology.topology(machine, admin)).instances)


@pytest.mark.parametrize("name", recorded.TREES)
def test_levels_are_those_of_the_record_though_only_attributes_are_known(name: str) -> None:
    """What is published of a machine is enough to see what the whole tree shows."""
    wanted = recorded.expected(name)
    plan = plan_of(name, groups=False)
    by_pci = {device.text("pci"): device for device in plan.devices}
    for key in ("gpu_nic", "gpu_gpu"):
        for a, b, level, common in wanted.get(key, []):
            pair = plan.pair(by_pci[a], by_pci[b])
            assert (pair.level, pair.common if level == "bridge" else common) == (level, common), (a, b)


def tsv(name: str) -> dict[tuple[str, str], str]:
    """A recorded matrix, by row and column."""
    lines = (recorded.HERE / "topo" / f"{name}.tsv").read_text().splitlines()
    table = [line.split("\t") for line in lines if not line.startswith("#")]
    return {(row[0], column): word for row in table[1:] for column, word in zip(table[0], row, strict=False)}


def words(plan: Plan) -> dict[tuple[str, str], str]:
    devices = [*plan.compute, *plan.nics]
    return {(a.name, b.name): plan.word(a, b) for a in devices for b in devices}


def test_the_matrix_of_nested_switches_is_the_one_that_such_a_server_prints() -> None:
    """Each GPU has its port at PIX and its neighbour's at PXB: nearest is not the same as same switch."""
    wanted = {
        key: word for key, word in tsv("xd670-h100").items() if key[1] not in {"", "cpu_affinity", "numa"}
    }
    found = words(plan_of("h100"))
    assert {key: found[key] for key in wanted} == wanted
    rows = {key: word for key, word in tsv("xd670-h100").items() if key[1] in {"cpu_affinity", "numa"}}
    for device in plan_of("h100").compute:
        assert device.text("cpus") == rows[device.name, "cpu_affinity"]
        assert device.text("numa") == rows[device.name, "numa"]


def test_a_power9_server_has_its_nics_where_another_of_its_kind_prints_them() -> None:
    """The recorded tree has no NVLinks in it: GPU pairs are compared by their switch alone."""
    wanted = {
        key: word
        for key, word in tsv("power9-4gpu").items()
        if key[0].startswith("GPU") and (key[1].startswith("mlx5") or word == "SYS")
    }
    found = words(plan_of("p9-lassen"))
    assert {key: found[key] for key in wanted} == wanted
    assert found["GPU0", "GPU1"] == "PIX"


def test_an_unknown_place_is_near_to_nothing() -> None:
    a, b = (Instance(id=f"GPU-{n}", kind="gpu", attributes={"index": n}) for n in (0, 1))
    assert words(Plan([a, b]))["GPU0", "GPU1"] == "?"


def test_links_are_named_by_kind_and_number() -> None:
    def gpu(number: int, peers: list[str], kind: str) -> Instance:
        attributes = {"index": number, "link_peers": peers, "link_kind": kind}
        return Instance(id=f"GPU-{number}", kind="gpu", attributes=attributes)  # type: ignore[arg-type]

    found = words(Plan([gpu(0, ["GPU-1=12"], "nvlink"), gpu(1, ["GPU-0=12"], "nvlink")]))
    assert found["GPU0", "GPU1"] == found["GPU1", "GPU0"] == "NV12"
    assert words(Plan([gpu(0, ["GPU-1"], "xgmi"), gpu(1, ["GPU-0"], "xgmi")]))["GPU0", "GPU1"] == "XGMI"


def test_gpus_are_numbered_as_the_vendors_tool_does_and_else_in_order() -> None:
    found = [Instance(id=f"GPU-{n}", kind="gpu", attributes={"index": n}) for n in (3, 1)]
    assert [device.name for device in Plan(found).devices] == ["GPU1", "GPU3"]
    bare = [Instance(id=f"pci:{n}", kind="gpu") for n in "ab"]
    assert [device.name for device in Plan([*found, *bare]).compute] == ["GPU0", "GPU1", "GPU2", "GPU3"]


def test_virtual_functions_are_not_in_the_matrix_beside_their_physical_one() -> None:
    physical = Instance(id="pci:0000:01:00.0", kind="nic", attributes={"nets": ["eth0"]})
    virtual = Instance(
        id="pci:0000:01:00.1", kind="nic", attributes={"nets": ["eth1"], "physical_function": physical.id}
    )
    assert [nic.name for nic in Plan([physical, virtual]).nics] == ["eth0"]


@pytest.mark.parametrize(
    "name", ["h100", "kfd-mi300x-cpx", "aws-p4d", "p9-lassen", "mic-mlx4", "nv-a100-mig-2x3g"]
)
@pytest.mark.parametrize("form", ["matrix", "tree"])
def test_what_people_see_is_what_was_looked_at_and_found_good(name: str, form: str) -> None:
    """A change in one of these files is a change in what people see: look at it."""
    plan = plan_of(name)
    lines = matrix(plan) if form == "matrix" else tree(plan, ASCII)
    assert "\n".join(lines) + "\n" == (GOLDEN / f"{name}.{form}").read_text()


def test_a_matrix_that_is_too_wide_goes_on_in_blocks_that_each_name_their_rows() -> None:
    plan = plan_of("h100")
    narrow = matrix(plan, width=80)
    assert max(map(len, narrow)) <= 80
    blocks = "\n".join(narrow).split("\n\n")
    assert all(block.splitlines()[1].startswith("GPU0 ") for block in blocks[:3])
    joined = {word for line in narrow for word in line.split()}
    assert {word for line in matrix(plan) for word in line.split()} <= joined
