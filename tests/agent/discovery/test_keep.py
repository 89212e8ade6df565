"""A discovery that finds less makes no inventory smaller, and a device is itself through everything."""

from typing import Any

import msgspec
import pytest

from xce.agent.discovery import keep
from xce.agent.discovery.keep import Memory, Moment
from xce.agent.probe.frame import KERNEL, NVIDIA, Line
from xce.agent.probe.verdict import Fault, Verdict
from xce.model.instance import Health, Instance

A, B = "GPU-aaaa", "GPU-bbbb"
A_AT, B_AT = "0000:0f:00.0", "0000:15:00.0"
NIC = "pci:0000:0c:00.0"


def gpu(id_: str, pci: str, **more: Any) -> Instance:
    return Instance(id=id_, kind="gpu", attributes={"vendor": "nvidia", "pci": pci, **more})


def mig(id_: str, parent: str) -> Instance:
    return Instance(id=id_, kind="mig", parent=parent, attributes={"vendor": "nvidia"})


def nic(id_: str = NIC) -> Instance:
    return Instance(id=id_, kind="nic", attributes={"vendor": "mellanox", "pci": id_.removeprefix("pci:")})


def says(health: Health, reason: str) -> Verdict:
    return Verdict(faults=(Fault(cause="test", reason=reason, health=health),))


WELL = Verdict()
LOST = says(Health.LOST, "GPU is lost")
PRESENT = [A_AT, B_AT, "0000:0c:00.0"]


class Kept:
    """A memory that is fed with readings; each ten seconds after the one before."""

    def __init__(self) -> None:
        self.memory, self.now = Memory(), 1000.0

    def moment(self) -> Moment:
        return Moment(self.now, f"t{self.now:.0f}", "boot")

    def read(self, *found: Instance, after: float = 10, present: Any = PRESENT, **line: Any) -> None:
        self.now += after
        verdicts = {one.id: WELL for one in found if one.kind in ("gpu", "nic")} | line.pop("verdicts", {})
        line = {"instances": list(found), "present": list(present), "verdicts": verdicts, **line}
        forget = line.pop("forget", lambda _: False)
        suspect = line.pop("suspect", False)
        self.memory = keep.after(self.memory, Line(**line), self.moment(), forget=forget, suspect=suspect)

    def __getitem__(self, id_: str) -> Instance:
        return self.memory.instances[id_]

    def health(self) -> dict[str, str]:
        return {id_: one.health.value for id_, one in self.memory.instances.items()}

    def clear(self, id_: str, verdict: Verdict = WELL) -> None:
        self.memory = keep.cleared(
            self.memory, id_, verdict, who="tester", why="for a test", moment=self.moment()
        )


@pytest.fixture
def kept() -> Kept:
    made = Kept()
    made.read(gpu(A, A_AT), gpu(B, B_AT, memory_mib=81920), nic())
    return made


def test_what_is_found_again_changes_nothing(kept: Kept) -> None:
    before = kept.memory
    kept.read(gpu(A, A_AT), gpu(B, B_AT, memory_mib=81920), nic())
    assert kept.memory == before


def test_a_gpu_of_which_only_the_address_is_left_is_the_same_one_and_lost(kept: Kept) -> None:
    kept.read(gpu(A, A_AT), gpu(f"pci:{B_AT}", B_AT), nic(), verdicts={f"pci:{B_AT}": LOST})
    assert kept.health() == {A: "available", B: "lost", NIC: "available"}
    assert (kept[B].attributes["memory_mib"], kept[B].since) == (81920, "t1020")
    kept.read(gpu(A, A_AT), gpu(B, B_AT, memory_mib=81920), nic(), after=60)
    assert kept.health()[B] == "available"
    assert kept[B].since == "t1080"


def test_a_gpu_that_comes_back_a_second_time_is_on_probation_first(kept: Kept) -> None:
    for _ in range(2):
        kept.read(gpu(A, A_AT), gpu(f"pci:{B_AT}", B_AT), nic(), verdicts={f"pci:{B_AT}": LOST})
        kept.read(gpu(A, A_AT), gpu(B, B_AT), nic())
    assert (kept.health()[B], kept[B].recovery) == (
        "unavailable",
        "by itself after 600 s without a fault",
    )
    assert keep.restless(kept.memory)
    kept.read(gpu(A, A_AT), gpu(B, B_AT), nic(), after=601)
    assert kept.health()[B] == "available"


def test_a_gpu_that_the_library_counts_and_cannot_name_is_the_one_that_is_missing(kept: Kept) -> None:
    nameless = Instance(id="nvml:1", kind="gpu", attributes={"vendor": "nvidia"})
    kept.read(gpu(A, A_AT), nameless, nic(), present=[], verdicts={"nvml:1": LOST})
    assert kept.health() == {A: "available", B: "lost", NIC: "available"}
    assert kept[B].reason == "GPU is lost"


def test_a_gpu_that_the_library_leaves_out_and_pci_shows_is_lost(kept: Kept) -> None:
    kept.read(gpu(A, A_AT), nic())
    assert (kept.health()[B], kept[B].evidence) == ("lost", f"PCI {B_AT}")


def test_a_library_that_says_nothing_leaves_all_gpus_where_they_are_and_unknown(kept: Kept) -> None:
    kept.read(nic(), present=[], blind={NVIDIA: "driver/library version mismatch"})
    assert kept.health() == {A: "unknown", B: "unknown", NIC: "available"}
    assert kept[A].reason == "driver/library version mismatch"
    kept.read(gpu(A, A_AT), gpu(B, B_AT), nic())
    assert set(kept.health().values()) == {"available"}


def test_a_library_that_has_not_been_asked_yet_changes_nothing(kept: Kept) -> None:
    before = kept.memory
    unasked = {f"pci:{at}": says(Health.UNKNOWN, "not asked") for at in (A_AT, B_AT)}
    kept.read(
        *(gpu(id_, id_.removeprefix("pci:")) for id_ in unasked), nic(), pending=[NVIDIA], verdicts=unasked
    )
    assert kept.memory == before
    kept.read(nic(), present=[], pending=[NVIDIA])
    assert kept.memory == before


def test_a_gpu_met_while_the_library_hangs_has_its_silence_for_a_reason() -> None:
    """It was said that the library was not asked, which sends an admin the wrong way."""
    never = Verdict(
        faults=(Fault(cause="unread", reason="the library was not asked", health=Health.UNKNOWN),)
    )
    line = Line(
        instances=[gpu("pci:" + A_AT, A_AT), nic()],
        complete=False,
        pending=[NVIDIA],
        verdicts={"pci:" + A_AT: never},
    )
    memory = keep.after(Memory(), keep.deafened(line, {NVIDIA: "not read for 60 s"}), Moment(1, "", "boot"))
    assert memory.instances["pci:" + A_AT].reason == "not read for 60 s"
    assert memory.instances[NIC].health is Health.AVAILABLE
    assert not memory.complete


def test_what_was_lost_stays_lost_while_nobody_can_look(kept: Kept) -> None:
    kept.read(gpu(A, A_AT), nic())
    kept.read(nic(), present=[], blind={NVIDIA: "no driver"})
    assert kept.health() == {A: "unknown", B: "lost", NIC: "available"}


def test_a_removed_device_is_shown_until_an_admin_clears_it(kept: Kept) -> None:
    kept.read(gpu(A, A_AT), present=[A_AT])
    assert kept.health() == {A: "available", B: "lost", NIC: "lost"}
    assert kept[B].reason.startswith("removed")
    kept.clear(B)
    assert kept.health() == {A: "available", NIC: "lost"}


def test_what_is_lost_and_still_there_cannot_be_cleared_away(kept: Kept) -> None:
    kept.read(gpu(A, A_AT), nic())
    with pytest.raises(ValueError, match="cannot clear"):
        kept.clear(B)
    with pytest.raises(ValueError, match="cannot clear"):
        kept.clear(A)
    with pytest.raises(ValueError, match="no instance is called so"):
        kept.clear("GPU-none")


def test_an_admin_ends_a_probation(kept: Kept) -> None:
    for _ in range(2):
        kept.read(gpu(A, A_AT), nic())
        kept.read(gpu(A, A_AT), gpu(B, B_AT), nic())
    assert kept.health()[B] == "unavailable"
    kept.clear(B)
    kept.read(gpu(A, A_AT), gpu(B, B_AT), nic())
    assert kept.health()[B] == "available"


def test_a_removed_device_goes_by_itself_where_the_configuration_lets_it(kept: Kept) -> None:
    kept.read(gpu(A, A_AT), nic(), present=[A_AT, "0000:0c:00.0"], forget=lambda kind: kind == "gpu")
    assert kept.health() == {A: "available", NIC: "available"}


def test_another_device_in_the_same_place_is_not_the_old_one(kept: Kept) -> None:
    kept.read(gpu(A, A_AT), gpu("GPU-cccc", B_AT), nic())
    assert kept.health() == {A: "available", B: "lost", "GPU-cccc": "available", NIC: "available"}
    assert kept[B].reason == "removed: GPU-cccc is in its place"


def test_a_gpu_that_a_virtual_machine_has_is_the_same_one_and_not_offered(kept: Kept) -> None:
    held = msgspec.structs.replace(
        gpu(f"pci:{B_AT}", B_AT, driver="vfio-pci"), health=Health.UNAVAILABLE, reason="held by vfio-pci"
    )
    kept.read(gpu(A, A_AT), held, nic())
    assert kept.health() == {A: "available", B: "unavailable", NIC: "available"}
    assert kept[B].reason == "held by vfio-pci"
    kept.read(gpu(A, A_AT), gpu(B, B_AT), nic())
    assert kept.health()[B] == "available"


def test_a_device_first_met_by_its_address_is_the_one_whose_uuid_is_read_later() -> None:
    kept = Kept()
    unknown = {f"pci:{A_AT}": says(Health.UNKNOWN, "no driver")}
    kept.read(gpu(f"pci:{A_AT}", A_AT), verdicts=unknown, blind={NVIDIA: "no driver"})
    assert kept.health() == {f"pci:{A_AT}": "unknown"}
    kept.read(gpu(A, A_AT))
    assert kept.health() == {A: "available"}


def test_a_reading_that_could_not_look_everywhere_loses_nothing(kept: Kept) -> None:
    kept.read(gpu(A, A_AT), gpu(B, B_AT), present=[], holes=["cannot read /sys/bus/pci: I/O error"])
    assert kept.health() == {A: "available", B: "available", NIC: "unknown"}


def test_slices_go_when_their_gpu_was_read_well_and_only_then(kept: Kept) -> None:
    def read(*slices: Instance, **more: Any) -> None:
        kept.read(gpu(A, A_AT), gpu(B, B_AT), nic(), *slices, **more)

    read(mig("MIG-1", A), mig("MIG-2", A))
    read(mig("MIG-1", A), partial=[A])
    assert kept.health()["MIG-2"] == "unknown"
    kept.read(gpu(B, B_AT), nic(), verdicts={})
    assert (kept.health()["MIG-1"], kept.health()["MIG-2"]) == ("lost", "lost")
    read(mig("MIG-1", A))
    assert kept.health()["MIG-1"] == "available"
    assert "MIG-2" not in kept.health()


def test_a_slice_is_no_better_than_a_gpu_on_probation(kept: Kept) -> None:
    for _ in range(2):
        kept.read(gpu(B, B_AT), nic())
        kept.read(gpu(A, A_AT), gpu(B, B_AT), mig("MIG-1", A), nic())
    assert kept.health()[A] == kept.health()["MIG-1"] == "unavailable"
    assert kept["MIG-1"].reason.startswith("its GPU: on probation")


def test_a_slice_of_a_gpu_that_is_not_offered_whole_is_offered(kept: Kept) -> None:
    """That a GPU in MIG mode is not to be had as a whole is its layout, and no fault of its slices."""
    whole = Instance(
        id=A,
        kind="gpu",
        health=Health.UNAVAILABLE,
        reason="MIG is on",
        attributes={"vendor": "nvidia", "pci": A_AT},
    )
    kept.read(whole, gpu(B, B_AT), mig("MIG-1", A), nic())
    assert (kept.health()[A], kept[A].reason) == ("unavailable", "MIG is on")
    assert kept.health()["MIG-1"] == "available"


def test_a_bond_that_is_taken_down_is_gone_and_a_virtual_function_too(kept: Kept) -> None:
    bond = Instance(id="net:bond0", kind="nic")
    function = Instance(id="pci:0000:0c:00.1", kind="nic", parent=NIC, attributes={"pci": "0000:0c:00.1"})
    kept.read(gpu(A, A_AT), gpu(B, B_AT), nic(), bond, function)
    kept.read(gpu(A, A_AT), gpu(B, B_AT), nic())
    assert set(kept.health()) == {A, B, NIC}


def test_sources_that_fall_silent_make_what_is_theirs_unknown(kept: Kept) -> None:
    kept.memory = keep.blinded(kept.memory, {NVIDIA: "not read for 180 s"}, kept.moment())
    assert kept.health() == {A: "unknown", B: "unknown", NIC: "available"}
    again = keep.blinded(kept.memory, {NVIDIA: "not read for 180 s"}, kept.moment())
    assert again == kept.memory
    kept.memory = keep.blinded(kept.memory, {KERNEL: "x", NVIDIA: "x"}, kept.moment())
    assert set(kept.health().values()) == {"unknown"}


def test_after_a_damaged_memory_what_is_met_is_on_probation() -> None:
    """Nobody knows any more who was in quarantine: nothing unknown is treated as free."""
    kept = Kept()
    kept.read(gpu(A, A_AT), suspect=True)
    assert (kept.health()[A], kept[A].reason) == (
        "unavailable",
        "on probation after: what was known of its faults is lost",
    )
    kept.read(gpu(A, A_AT), suspect=True, after=601)
    assert kept.health()[A] == "available"
