"""Rails: which NIC of every host hangs on the same switch of the fabric.

Pure. The rule, which gives the same numbers on all hosts that are built alike, whatever is up or down now:

1. Rail NICs are the functions with an RDMA fabric that are the nearest such NICs of a GPU, at level `bridge`,
   `hostbridge` or `numa`. Virtual functions count where their physical one is not to be seen.
2. Rail k is the k-th of them in PCI order.
3. GPUs with the same nearest rail NICs share them out in PCI order: with as many NICs as GPUs, one each; with
   fewer, neighbours share; with more, each gets as many neighbours.

An admin's list replaces all of it.
"""

from collections.abc import Mapping, Sequence

from xce.agent.probe.peers import order


def rails(nearest: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, ...]]:
    """The rails of GPUs and NICs, by address. `nearest` names each GPU's nearest rail NICs."""
    numbers = {nic: number for number, nic in enumerate(sorted(set().union(*nearest.values()), key=order))}
    found: dict[str, tuple[int, ...]] = {nic: (number,) for nic, number in numbers.items()}
    sharing: dict[tuple[str, ...], list[str]] = {}
    for gpu, nics in nearest.items():
        if nics:
            sharing.setdefault(tuple(sorted(nics, key=order)), []).append(gpu)
    for nics, gpus in sharing.items():
        for place, gpu in enumerate(sorted(gpus, key=order)):
            first, last = place * len(nics) // len(gpus), (place + 1) * len(nics) // len(gpus)
            found[gpu] = tuple(numbers[nic] for nic in nics[first : max(last, first + 1)])
    return found


def given(lists: Sequence[Sequence[str]]) -> dict[str, tuple[int, ...]]:
    """The rails that an admin gave: one list of addresses per rail."""
    found: dict[str, tuple[int, ...]] = {}
    for number, members in enumerate(lists):
        for member in members:
            found[member] = (*found.get(member, ()), number)
    return found
