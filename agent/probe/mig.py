"""What of an NVIDIA GPU can be allocated: the whole of it, its MIG slices, or a share.

Pure. Everything is taken from what the library stated, nothing from ids: a GPU instance's id says nothing of
its place, equal profiles differ in memory, and an index moves when another slice is made.

A GPU in MIG mode owns one counter for each memory slice (`memory-slice-0`, ...), and whatever is placed there
consumes those that it covers: two things that overlap cannot both be chosen, by comparing integers. Compute
instances that share one GPU instance share its memory, so its counters are as high as it has compute
instances, each takes one, and a new layout there would take all. A slice whose placement is unknown consumes
everything: it may then be alone where it need not, but is never thought beside something that it overlaps.
"""

from collections import Counter

import msgspec

from xce.agent.probe import facts
from xce.model.value import Count

ON_WITHOUT = "MIG on, no instances"
MPS_CLIENTS_SINCE_VOLTA, MPS_CLIENTS_BEFORE = 48, 16
"""Of the vendor's MPS documentation: client contexts for each GPU."""
VOLTA = 7.0


class Choice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU instance that could be made: data for whoever plans a layout, never offered by itself."""

    profile: str
    placement: tuple[int, int]
    memory: int | None = None
    sm: int | None = None
    engines: dict[str, int] = {}
    consumes: dict[str, Count] = {}


class Slice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A MIG device that exists and can be allocated."""

    facts: facts.MigSlice
    parent: str
    """UUID of its GPU."""
    consumes: dict[str, Count] = {}


class Sharing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many may use a GPU at one time, and by what means."""

    time_slicing: bool
    """Processes take turns; nothing divides or protects its memory."""
    mps_clients: int
    """Clients of an MPS server at the most; 0: MPS cannot be used here."""
    processes: int | None = None
    """1 in exclusive-process mode (one process, or one MPS server), 0 if prohibited, None: no limit."""


class Offer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one GPU offers."""

    whole: bool
    reason: str = ""
    """Why it is not offered whole."""
    capacity: dict[str, Count] = {}
    slices: tuple[Slice, ...] = ()
    choices: tuple[Choice, ...] = ()
    sharing: Sharing | None = None
    """None: its compute mode is unknown."""
    notes: tuple[str, ...] = ()


def offer(gpu: facts.NvidiaGpu) -> Offer:
    """What can be allocated of a GPU. Its health is another question."""
    mig = gpu.mig
    notes: tuple[str, ...] = ()
    if mig.pending is not None and mig.current is not None and mig.pending != mig.current:
        notes = (f"MIG is to be {'on' if mig.pending else 'off'} after a GPU reset",)
    if mig.current is None and mig.error:
        return Offer(whole=False, reason=f"MIG mode unknown: {mig.error}", notes=notes)
    if not mig.current:  # False, or None: it has no MIG at all
        return Offer(whole=True, sharing=sharing(gpu), notes=notes)
    capacity = _capacity(mig)
    slices = tuple(
        Slice(facts=each, parent=gpu.uuid, consumes=_consumed(each, capacity)) for each in mig.slices
    )
    bare = tuple(f"GPU instance {gi} has no compute instance" for gi in mig.bare)
    return Offer(
        whole=False,
        reason=_why_not_whole(mig),
        capacity=capacity,
        slices=slices,
        choices=_choices(mig, capacity),
        notes=(*notes, *bare),
    )


def _why_not_whole(mig: facts.Mig) -> str:
    if mig.error:
        return f"MIG on, instances unknown: {mig.error}"
    return "MIG on" if mig.slices else ON_WITHOUT


def _covers(placement: tuple[int, int]) -> range:
    start, size = placement
    return range(start, start + size)


def _counter(memory_slice: int) -> str:
    return f"memory-slice-{memory_slice}"


def _capacity(mig: facts.Mig) -> dict[str, Count]:
    """One counter for each memory slice that any placement known here reaches, at least one."""
    placements = [place for profile in mig.profiles for place in profile.placements]
    placements += [each.placement for each in mig.slices if each.placement is not None]
    count = max((start + size for start, size in placements), default=1)
    users = Counter(at for each in mig.slices if each.placement is not None for at in _covers(each.placement))
    return {_counter(at): max(1, users[at]) for at in range(count)}


def _consumed(each: facts.MigSlice, capacity: dict[str, Count]) -> dict[str, Count]:
    if each.placement is None:
        return dict(capacity)
    return {_counter(at): 1 for at in _covers(each.placement)}


def _choices(mig: facts.Mig, capacity: dict[str, Count]) -> tuple[Choice, ...]:
    """Every profile at every place that the library names, whether or not something is there now."""
    return tuple(
        Choice(
            profile=profile.name,
            placement=place,
            memory=profile.memory,
            sm=profile.sm,
            engines=profile.engines,
            consumes={_counter(at): capacity[_counter(at)] for at in _covers(place)},
        )
        for profile in mig.profiles
        for place in profile.placements
    )


def sharing(gpu: facts.NvidiaGpu) -> Sharing | None:
    """By what means several may use a whole GPU at one time."""
    if gpu.compute_mode is None:
        return None
    if gpu.compute_mode == "prohibited":
        return Sharing(time_slicing=False, mps_clients=0, processes=0)
    clients = 0
    if gpu.compute_capability is not None:
        volta = float(gpu.compute_capability) >= VOLTA
        clients = MPS_CLIENTS_SINCE_VOLTA if volta else MPS_CLIENTS_BEFORE
    exclusive = gpu.compute_mode == "exclusive-process"
    return Sharing(time_slicing=not exclusive, mps_clients=clients, processes=1 if exclusive else None)
