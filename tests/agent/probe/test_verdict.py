"""What one reading says of a GPU's health, and the table of XIDs."""

import pytest

from xce.agent.probe import facts, instances, topology, verdict, xid
from xce.model.instance import Health


def judged(**changes: object) -> verdict.Verdict:
    return verdict.judge(facts.NvidiaGpu(index=2, uuid="GPU-2", **changes))  # type: ignore[arg-type]


def told(number: int, **changes: object) -> verdict.Verdict:
    gpu = facts.NvidiaGpu(index=2, uuid="GPU-2")
    event = facts.Xid(xid=number, uuid="GPU-2", at=77.0, **changes)  # type: ignore[arg-type]
    return verdict.judge(gpu, xids=(event, facts.Xid(xid=79, uuid="GPU-other", at=76.0)))


@pytest.mark.parametrize(
    "gpu",
    [
        {},
        {"remapped_uncorrectable": 2, "remap_pending": False, "remap_failed": False},  # an A40 in service
        {"pcie_gen": 1, "pcie_gen_max": 4, "pcie_width": 16, "pcie_width_max": 16},  # idle
        {"recovery": "none", "retired_pages": 7, "retired_pending": False},
        {"fabric": facts.Fabric(state=0)},
        {"fabric": facts.Fabric(state=3, status=0, cluster="00000000-0000-0000-0000-000000000000")},
        {"fabric": facts.Fabric()},
        {"uncorrected": 3, "recovery": "none"},  # contained, says the driver
    ],
)
def test_what_is_no_fault(gpu: dict[str, object]) -> None:
    assert judged(**gpu).health == Health.AVAILABLE
    assert judged(**gpu).worst is None


@pytest.mark.parametrize(
    ("gpu", "cause", "health"),
    [
        ({"error": "GetMemoryInfo: GPU is lost", "code": 15}, "lost", Health.LOST),
        ({"error": "GetHandleByIndex: Unknown Error", "code": 999}, "lost", Health.LOST),
        ({"error": "GetHandleByPciBusId: Not Found", "code": 6}, "lost", Health.LOST),
        ({"error": "GetUUID: GPU requires restart", "code": 16}, "reset-required", Health.UNAVAILABLE),
        ({"error": "GetHandleByIndex: Insufficient Permissions", "code": 4}, "library", Health.UNKNOWN),
        ({"recovery": "reset"}, "recovery", Health.UNAVAILABLE),
        ({"recovery": "action-12"}, "recovery", Health.UNAVAILABLE),
        ({"remap_pending": True, "remapped_uncorrectable": 1}, "remap-pending", Health.UNAVAILABLE),
        ({"remap_failed": True}, "remap-failed", Health.UNAVAILABLE),
        ({"retired_pending": True}, "retirement-pending", Health.UNAVAILABLE),
        ({"uncorrected": 3}, "uncorrected", Health.UNAVAILABLE),
        ({"fabric": facts.Fabric(state=1)}, "fabric", Health.UNAVAILABLE),
        ({"fabric": facts.Fabric(state=2)}, "fabric", Health.UNAVAILABLE),
        ({"fabric": facts.Fabric(state=3, status=999)}, "fabric-status", Health.UNAVAILABLE),
        ({"fabric": facts.Fabric(state=3, status=0, summary=2)}, "fabric-unhealthy", Health.UNAVAILABLE),
    ],
)
def test_what_is_a_fault(gpu: dict[str, object], cause: str, health: Health) -> None:
    found = judged(**gpu)
    assert found.health == health
    assert found.worst is not None
    assert found.worst.cause == cause
    assert found.worst.reason
    assert found.worst.evidence
    assert found.worst.recovery


def test_all_faults_are_named_the_worst_first() -> None:
    found = judged(remap_failed=True, recovery="drain-and-reset", fabric=facts.Fabric(state=2))
    assert [fault.cause for fault in found.faults] == ["recovery", "remap-failed", "fabric"]


def test_a_narrow_link_is_a_note_and_sysfs_is_the_witness_where_the_library_is_silent() -> None:
    assert judged(pcie_width=8, pcie_width_max=16).notes == ("PCIe width 8 of 16",)
    found = verdict.judge(
        facts.NvidiaGpu(index=0), pci=facts.Pci(address="0000:82:00.0", width=4, max_width=16)
    )
    assert found.notes == ("PCIe width 4 of 16",)
    assert found.health == Health.AVAILABLE


def test_a_library_that_answers_nothing_leaves_gpus_unknown() -> None:
    found = verdict.unreadable(facts.Nvidia(error="driver/library version mismatch", code=18))
    assert found.health == Health.UNKNOWN
    assert found.worst is not None
    assert found.worst.reason == "driver/library version mismatch"
    assert found.worst.evidence == "NVML: driver/library version mismatch (18)"


@pytest.mark.parametrize("number", [8, 13, 31, 32, 43, 45, 63, 68, 94, 109])
def test_an_xid_of_an_application_condemns_no_gpu(number: int) -> None:
    found = told(number)
    assert found.health == Health.AVAILABLE
    assert found.events == ()
    assert found.notes[0].startswith(f"XID {number} (")


@pytest.mark.parametrize("number", [46, 48, 62, 64, 74, 79, 95, 119, 120, 140, 143, 156, 158, 171])
def test_an_xid_that_asks_for_more_condemns_the_gpu_that_it_names_and_no_other(number: int) -> None:
    found = told(number)
    assert found.health == Health.UNAVAILABLE
    assert [event.cause for event in found.events] == [f"xid-{number}"]
    assert found.events[0].at == 77.0


def test_an_xid_that_nobody_described_is_not_taken_for_harmless() -> None:
    assert told(977).events[0].reason == "XID 977: not in the table"


def test_an_xid_without_a_gpu_condemns_none() -> None:
    found = verdict.judge(facts.NvidiaGpu(index=0, error="gone", code=15), xids=(facts.Xid(xid=79, at=1.0),))
    assert found.events == ()


def test_a_site_changes_a_row_with_its_own_table() -> None:
    mine = xid.with_site([94], [79, 977])
    assert (mine[79].condemns, mine[977].condemns, mine[13]) == (False, False, xid.TABLE[13])
    found = verdict.judge(
        facts.NvidiaGpu(index=0, uuid="GPU-2"), xids=(facts.Xid(xid=94, uuid="GPU-2", at=5.0),), table=mine
    )
    assert [event.cause for event in found.events] == ["xid-94"]


def test_repeated_xids_of_an_application_are_one_note() -> None:
    gpu = facts.NvidiaGpu(index=0, uuid="GPU-2")
    events = tuple(facts.Xid(xid=31, uuid="GPU-2", at=at, gi=5) for at in (1.0, 2.0, 3.0))
    assert verdict.judge(gpu, xids=events).notes == (
        "XID 31 (memory page fault of an application) in GPU instance 5: restart-app, 3 times",
    )


def test_the_table_is_sound() -> None:
    assert list(xid.TABLE) == sorted(xid.TABLE)
    assert all(row.xid == number and row.name for number, row in xid.TABLE.items())
    assert all(row.condemns == (row.action in xid.CONDEMNING) or row.why for row in xid.TABLE.values()), (
        "an exception to the rule has its reason"
    )
    assert len(xid.TABLE) == sum(len(names) for names in xid._NAMES.values()) + sum(
        len(numbers) for numbers, _, _ in xid._ENGINES
    ), "no number is described twice"


def test_what_faults_are_laid_over_has_the_layout_and_no_fault() -> None:
    """An admin's clear, or the driver's word, ends a fault that readings still tell, and no layout."""
    slice_ = facts.MigSlice(uuid="MIG-1", placement=(0, 4))
    ill = facts.NvidiaGpu(
        index=0, uuid="GPU-2", remap_pending=True, mig=facts.Mig(current=True, slices=(slice_,))
    )
    machine = facts.Machine(nvidia=facts.Nvidia(gpus=(ill,)))
    found = instances.found(machine, topology.topology(machine))
    assert [(one.id, one.health, one.reason) for one in found.laid_out] == [
        ("GPU-2", Health.UNAVAILABLE, "MIG on"),
        ("MIG-1", Health.AVAILABLE, ""),
    ]
    assert [one.evidence[:8] for one in found.instances] == ["remapped", "remapped"]
    assert [one.evidence for one in found.laid_out] == ["", ""]


def test_a_sites_word_on_an_xid_reaches_the_instances() -> None:
    machine = facts.Machine(
        nvidia=facts.Nvidia(
            gpus=(facts.NvidiaGpu(index=0, uuid="GPU-2"),), xids=(facts.Xid(xid=94, uuid="GPU-2", at=1.0),)
        )
    )
    place = topology.topology(machine)
    assert instances.found(machine, place).verdicts["GPU-2"].health == Health.AVAILABLE
    found = instances.found(machine, place, xids=xid.with_site([94], []))
    assert found.verdicts["GPU-2"].health == Health.UNAVAILABLE
