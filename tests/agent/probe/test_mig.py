"""What is offered of a GPU with and without MIG."""

import hypothesis
import hypothesis.strategies as st
import pytest

from xce.agent.probe import facts, mig

GPU = facts.NvidiaGpu(
    index=3, uuid="GPU-7", pci="0000:0f:00.0", compute_mode="default", compute_capability="8.0"
)
PROFILES = (
    facts.MigProfile(id=19, name="1g.5gb", placements=tuple((at, 1) for at in range(7))),
    facts.MigProfile(id=9, name="3g.20gb", placements=((0, 4), (4, 4))),
    facts.MigProfile(id=0, name="7g.40gb", placements=((0, 8),)),
)


def gpu(**changes: object) -> facts.NvidiaGpu:
    return facts.NvidiaGpu(
        index=3,
        uuid="GPU-7",
        compute_mode="default",
        compute_capability="8.0",
        mig=facts.Mig(**changes),  # type: ignore[arg-type]
    )


def piece(uuid: str, placement: tuple[int, int] | None, gi: int = 1, ci: int = 0) -> facts.MigSlice:
    return facts.MigSlice(uuid=uuid, gi=gi, ci=ci, profile="3g.20gb", placement=placement)


@pytest.mark.parametrize("current", [None, False])
def test_a_gpu_without_mig_is_offered_whole(current: bool | None) -> None:
    offer = mig.offer(gpu(current=current))
    assert offer.whole
    assert not offer.slices
    assert not offer.capacity


def test_mig_on_without_instances_offers_nothing_and_says_why() -> None:
    """C-GPU-01."""
    offer = mig.offer(gpu(current=True, pending=True, profiles=PROFILES))
    assert not offer.whole
    assert offer.slices == ()
    assert offer.reason == "MIG on, no instances"


def test_slices_that_could_not_be_read_are_not_no_slices() -> None:
    offer = mig.offer(gpu(current=True, error="GetMigDeviceHandleByIndex: Unknown Error (999)"))
    assert not offer.whole
    assert offer.reason == "MIG on, instances unknown: GetMigDeviceHandleByIndex: Unknown Error (999)"


def test_a_gpu_whose_mig_mode_could_not_be_read_is_not_offered_whole() -> None:
    offer = mig.offer(gpu(error="MigMode: Unknown Error (999)"))
    assert not offer.whole
    assert offer.reason == "MIG mode unknown: MigMode: Unknown Error (999)"


def test_a_slice_consumes_the_memory_slices_of_its_placement_whatever_its_ids_say() -> None:
    offer = mig.offer(gpu(current=True, slices=(piece("MIG-a", (4, 4), gi=1), piece("MIG-b", (0, 4), gi=2))))
    assert offer.slices[0].consumes == {f"memory-slice-{at}": 1 for at in (4, 5, 6, 7)}
    assert offer.slices[1].consumes == {f"memory-slice-{at}": 1 for at in (0, 1, 2, 3)}
    assert offer.capacity == {f"memory-slice-{at}": 1 for at in range(8)}
    assert {each.parent for each in offer.slices} == {"GPU-7"}


def test_a_slice_of_unknown_placement_is_never_beside_another() -> None:
    offer = mig.offer(gpu(current=True, slices=(piece("MIG-a", (4, 4)), piece("MIG-b", None, gi=2))))
    assert offer.slices[1].consumes == offer.capacity


def test_where_no_placement_is_known_at_all_one_counter_is_left() -> None:
    offer = mig.offer(gpu(current=True, slices=(piece("MIG-a", None), piece("MIG-b", None, gi=2))))
    assert offer.capacity == {"memory-slice-0": 1}
    assert all(each.consumes == offer.capacity for each in offer.slices)


def test_compute_instances_of_one_gpu_instance_can_be_chosen_together_and_no_layout_beside_them() -> None:
    offer = mig.offer(
        gpu(
            current=True,
            profiles=PROFILES,
            slices=(piece("MIG-a", (0, 4), ci=0), piece("MIG-b", (0, 4), ci=1)),
        )
    )
    both = add(offer.slices[0].consumes, offer.slices[1].consumes)
    assert fits(both, offer.capacity)
    at_zero = next(choice for choice in offer.choices if choice.placement == (0, 1))
    assert not fits(add(offer.slices[0].consumes, at_zero.consumes), offer.capacity)


def add(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {*one, *other}}


def fits(wanted: dict[str, int], capacity: dict[str, int]) -> bool:
    return all(amount <= capacity[name] for name, amount in wanted.items())


def test_mig_that_is_to_change_with_the_next_reset_is_noted() -> None:
    assert mig.offer(gpu(current=False, pending=True)).notes == ("MIG is to be on after a GPU reset",)


def test_a_gpu_instance_without_compute_instance_is_noted_and_not_offered() -> None:
    offer = mig.offer(gpu(current=True, bare=(5,)))
    assert offer.notes == ("GPU instance 5 has no compute instance",)
    assert offer.slices == ()


@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 8)), min_size=2, max_size=6, unique=True)
)
def test_two_choices_exclude_each_other_exactly_if_they_overlap(places: list[tuple[int, int]]) -> None:
    profile = facts.MigProfile(id=1, name="x", placements=tuple(places))
    offer = mig.offer(gpu(current=True, profiles=(profile,)))
    for one in offer.choices:
        for other in offer.choices:
            overlap = set(range(one.placement[0], sum(one.placement))) & set(
                range(other.placement[0], sum(other.placement))
            )
            assert fits(add(one.consumes, other.consumes), offer.capacity) == (not overlap)


@pytest.mark.parametrize(
    ("mode", "capability", "expected"),
    [
        ("default", "9.0", mig.Sharing(time_slicing=True, mps_clients=48)),
        ("default", "6.0", mig.Sharing(time_slicing=True, mps_clients=16)),
        ("exclusive-process", "10.0", mig.Sharing(time_slicing=False, mps_clients=48, processes=1)),
        ("prohibited", "9.0", mig.Sharing(time_slicing=False, mps_clients=0, processes=0)),
        ("default", None, mig.Sharing(time_slicing=True, mps_clients=0)),
        (None, "9.0", None),
    ],
)
def test_how_a_gpu_can_be_shared(
    mode: str | None, capability: str | None, expected: mig.Sharing | None
) -> None:
    assert mig.sharing(facts.NvidiaGpu(index=0, compute_mode=mode, compute_capability=capability)) == expected
