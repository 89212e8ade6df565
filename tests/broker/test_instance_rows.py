"""What `xce-broker instances` shows: every instance once, with everything that stands against choosing it."""

from tests.broker.test_mirror import mirror
from xce.broker.cli.instances import _what
from xce.broker.instance_rows import InstanceRow, instance_rows, inventory_rows
from xce.broker.mirror import Mirror
from xce.model.claim import Binding, BindingState, Chosen, Consumer, Quarantine
from xce.model.instance import Health, Instance, Inventory, reference
from xce.model.message import BindingView, LocationView
from xce.model.supply import Source

GPU_1, GPU_2 = (Instance(id=name, kind="gpu", attributes={"numa": 1}) for name in ("GPU-1", "GPU-2"))
SLICES = [Instance(id=f"MIG-{n}", kind="mig", parent="GPU-1") for n in (1, 2)]
FOUND = Inventory(reporter="devices", generation=7, complete=True, instances=[*SLICES, GPU_2, GPU_1])
PORT = Instance(id="mlx5_0/1", kind="nic-port", health=Health.UNAVAILABLE, reason="down")


def chosen(name: str, *parents: str) -> Chosen:
    return Chosen(id=name, reporter="devices", generation=7, kind="gpu", parents=[*parents])


def bound(name: str, *instances: Chosen, state: BindingState = BindingState.READY) -> BindingView:
    consumer = Consumer(name=f"job-{name}")
    return BindingView(
        binding=Binding(
            id=name, claim=f"c-{name}", host="node1", consumer=consumer, instances=[*instances], state=state
        )
    )


def seen(
    *bindings: BindingView, quarantined: dict[str, str] | None = None, body: Inventory | None = FOUND
) -> Mirror:
    """A map with one host."""
    kept = {name: Quarantine(instance=chosen(name), reason=why) for name, why in (quarantined or {}).items()}
    host = LocationView(
        source=Source.CONFIG, state="available", inventories={"devices": reference(FOUND)}, quarantined=kept
    )
    made = mirror({"host:node1": host})
    made.bindings = {view.binding.id: view for view in bindings}
    if body:
        made.keep({"host:node1": {"devices": body}})
    return made


def rows_of(made: Mirror) -> dict[str, InstanceRow]:
    rows = instance_rows(made, ["node1"])
    by_id = {row.instance.id: row for row in rows}
    assert len(by_id) == len(rows), "each is shown once"
    return by_id


def holders(row: InstanceRow) -> list[tuple[str, str]]:
    return [(one.binding, one.instance) for one in row.holders]


def test_each_instance_stands_above_its_parts() -> None:
    assert list(rows_of(seen())) == ["GPU-2", "GPU-1", "MIG-1", "MIG-2"]
    assert all(not row.holders and not row.is_problem for row in rows_of(seen()).values())


def test_what_is_bound_names_who_has_it_and_so_do_its_whole_and_its_parts() -> None:
    rows = rows_of(seen(bound("b3", chosen("MIG-1", "GPU-1")), bound("b4", chosen("GPU-2"))))
    assert holders(rows["MIG-1"]) == [("b3", "MIG-1")]
    assert holders(rows["GPU-1"]) == [("b3", "MIG-1")], "a GPU with a slice in use is not free"
    assert holders(rows["MIG-2"]) == []
    assert [(one.claim, one.consumer, one.state) for one in rows["GPU-2"].holders] == [
        ("c-b4", "job-b4", "ready")
    ]
    rows = rows_of(seen(bound("b5", chosen("GPU-1"))))
    assert holders(rows["MIG-2"]) == [("b5", "GPU-1")], "a slice of a GPU in use is not free"


def test_a_binding_that_has_ended_holds_nothing() -> None:
    rows = rows_of(seen(bound("b3", chosen("GPU-2"), state=BindingState.RELEASED)))
    assert rows["GPU-2"].holders == []


def test_a_quarantine_is_the_health_that_is_shown_and_its_parts_name_it() -> None:
    rows = rows_of(seen(quarantined={"GPU-1": "its release was forced"}))
    assert (rows["GPU-1"].health, rows["GPU-1"].reason) == ("quarantined", "its release was forced")
    assert rows["GPU-1"].is_problem
    assert (rows["MIG-1"].health, rows["MIG-1"].reason) == (
        "available",
        "GPU-1, which it is a part of, is quarantined",
    )


def test_what_is_bound_and_in_no_inventory_is_shown_and_is_a_problem() -> None:
    rows = rows_of(seen(bound("b3", chosen("GPU-gone"))))
    gone = rows["GPU-gone"]
    assert (gone.listed, gone.health, holders(gone)) == (False, "unknown", [("b3", "GPU-gone")])
    assert gone.is_problem


def test_an_inventory_whose_instances_did_not_come_is_not_shown_as_complete() -> None:
    (whole,) = inventory_rows(seen(), ["node1"])
    assert (whole.reporter, whole.generation, whole.complete, whole.count) == ("devices", 7, True, 4)
    (without,) = inventory_rows(seen(body=None), ["node1"])
    assert (without.generation, without.complete, without.count) == (7, False, 4)
    assert not rows_of(seen(body=None))


def test_a_port_that_is_down_is_no_problem_and_a_lost_gpu_is_one() -> None:
    lost = Instance(id="GPU-2", kind="gpu", health=Health.LOST, reason="fell off the bus")
    rows = rows_of(
        seen(body=Inventory(reporter="devices", generation=8, complete=True, instances=[PORT, lost]))
    )
    assert [name for name, row in rows.items() if row.is_problem] == ["GPU-2"]


def test_parts_of_each_other_are_shown_too() -> None:
    """Nothing checks that an inventory's parents have an end."""
    ring = [Instance(id="a", kind="x", parent="b"), Instance(id="b", kind="x", parent="a")]
    rows = rows_of(seen(body=Inventory(reporter="devices", generation=8, complete=True, instances=ring)))
    assert sorted(rows) == ["a", "b"]


def test_an_instance_is_told_by_what_tells_it_from_its_like() -> None:
    found = {
        "3g.40gb": Instance(id="m", kind="mig", attributes={"profile": "3g.40gb", "product": "H100"}),
        "400 Gb/s infiniband": Instance(
            id="p", kind="nic-port", attributes={"port": 1, "gbps": 400, "fabric_kind": "infiniband"}
        ),
        "ConnectX-7": Instance(id="n", kind="nic", attributes={"product": "ConnectX-7", "gbps": 400}),
        "": Instance(id="x", kind="dongle"),
    }
    assert {_what(one): one for one in found.values()} == found
