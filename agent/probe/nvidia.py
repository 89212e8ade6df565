"""NVIDIA GPUs and their MIG slices: from the library's answers, and PCI's word where it is silent.

Pure. A GPU is its UUID. One that PCI shows and the library does not know is `pci:ADDRESS`, lost or unknown;
that it is the same device as a UUID of before is for whoever remembers, by the attribute `pci`.
"""

from collections.abc import Iterator

import msgspec

from xce.agent.probe import attributes, facts, mig, units, verdict, xid
from xce.agent.probe.topology import Topology
from xce.agent.probe.units import Unit
from xce.agent.probe.verdict import Fault, Verdict
from xce.model.value import Value

VENDOR = "nvidia"
DRIVERS = frozenset({"", "nvidia"})
"""A GPU with another driver is held for something else, and not lost. '': not known."""
NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
_INHERITED = (
    *("vendor", "product", "architecture", "compute_capability", "driver_version", "cuda_version"),
    *("numa", "cpus", "rails", "nearest_nics", "nearest_level", "fabric"),
)
_ENGINES = {
    "ce": "copy_engines",
    "dec": "decoders",
    "enc": "encoders",
    "jpg": "jpeg_engines",
    "ofa": "flow_engines",
}


class _View(msgspec.Struct, frozen=True):
    """What every GPU is seen with."""

    machine: facts.Machine
    library: facts.Nvidia
    topology: Topology
    names: dict[str, str]
    """Ids by address."""
    xids: xid.Table


def found(
    machine: facts.Machine, addresses: list[str], topology: Topology, xids: xid.Table
) -> Iterator[Unit]:
    """Every NVIDIA GPU with its slices: those of `addresses` (of PCI), and what the library knows beside."""
    library = machine.nvidia or facts.Nvidia(error="the NVIDIA library was not asked")
    by_address = {gpu.pci: gpu for gpu in library.gpus if gpu.pci}
    on_pci = {pci.address: pci for pci in machine.pci}
    view = _View(machine, library, topology, {address: _id(gpu) for address, gpu in by_address.items()}, xids)
    for address in addresses:
        pci = on_pci.get(address) or facts.Pci(address=address)
        if gpu := by_address.get(address):
            yield from _known(gpu, pci, view)
        else:
            yield _silent(pci, library, topology)
    for gpu in library.gpus:
        if gpu.pci not in addresses:
            yield from _known(gpu, on_pci.get(gpu.pci or ""), view)


def _id(gpu: facts.NvidiaGpu) -> str:
    return gpu.uuid or (f"pci:{gpu.pci}" if gpu.pci else f"nvml:{gpu.index}")


def _silent(pci: facts.Pci, library: facts.Nvidia, topology: Topology) -> Unit:
    """A GPU of which the library says nothing: it knows it not, or says nothing at all."""
    layout, found_ill = "", Verdict()
    if pci.address in library.excluded:
        layout = "the NVIDIA driver was told to leave it out"
    elif pci.physfn:
        layout = f"virtual function of {pci.physfn}"
    elif pci.driver not in DRIVERS:
        held = pci.driver in units.PASSED_THROUGH
        layout = f"held by the driver {pci.driver}" + (" for a virtual machine" if held else "")
    elif library.error:
        found_ill = verdict.unreadable(library)
    else:
        found_ill = verdict.unlisted(pci.address)
    return Unit(
        id=f"pci:{pci.address}",
        kind="gpu",
        attributes={
            **units.device(pci, topology),
            "vendor": VENDOR,
            **units.nearest(pci.address, topology),
        },
        verdict=found_ill,
        layout=layout,
    )


def _known(gpu: facts.NvidiaGpu, pci: facts.Pci | None, view: _View) -> Iterator[Unit]:
    judged = verdict.judge(gpu, pci=pci, xids=view.library.xids, table=view.xids)
    offer = mig.offer(gpu)
    place = units.device(pci, view.topology) if pci else {}
    described = {
        **place,
        **units.nearest(gpu.pci or "", view.topology),
        **_attributes(gpu, view.library, view.machine),
        **_links(gpu, view.topology, view.names),
    }
    described |= _sharing(gpu) if offer.whole else {}
    layout = "" if offer.whole else offer.reason
    if layout == "" and gpu.compute_mode == "prohibited":
        layout = "its compute mode is prohibited"
    yield Unit(
        id=_id(gpu),
        kind="gpu",
        attributes=described,
        verdict=judged,
        layout=layout,
        notes=offer.notes,
        capacity=offer.capacity,
    )
    above = {name: described[name] for name in _INHERITED if name in described}
    for one in offer.slices:
        yield Unit(
            id=one.facts.uuid,
            kind="mig",
            parent=_id(gpu),
            attributes={**above, **_slice(one.facts)},
            verdict=_of_whole(judged),
            consumes=one.consumes,
        )


def _of_whole(judged: Verdict) -> Verdict:
    """A slice of a GPU that is ill is ill; its own notes and events are another matter."""
    worst = judged.worst
    if worst is None:
        return Verdict()
    fault = Fault(
        cause=worst.cause,
        reason=f"its GPU: {worst.reason}",
        evidence=worst.evidence,
        recovery=worst.recovery,
        health=worst.health,
    )
    return Verdict(faults=(fault,))


def _attributes(gpu: facts.NvidiaGpu, library: facts.Nvidia, machine: facts.Machine) -> dict[str, Value]:
    platform = gpu.platform
    return attributes.known(
        pci=gpu.pci,
        vendor=VENDOR,
        product=gpu.name,
        architecture=gpu.architecture,
        brand=gpu.brand,
        memory_mib=units.mebibytes(gpu.memory),
        cores=gpu.cores,
        index=gpu.index,
        minor=gpu.minor,
        module=gpu.module,
        serial=gpu.serial,
        board=f"{gpu.board_id:#x}" if gpu.board_id is not None else None,
        board_part=gpu.board_part,
        vbios=gpu.vbios,
        firmware=gpu.gsp,
        driver_version=library.driver,
        cuda_version=library.cuda,
        compute_capability=gpu.compute_capability,
        bar1_mib=units.mebibytes(gpu.bar1),
        pcie_gen=gpu.pcie_gen_max,
        pcie_width=gpu.pcie_width_max,
        ecc=gpu.ecc,
        compute_mode=gpu.compute_mode,
        persistence=gpu.persistence,
        mig=gpu.mig.current,
        mig_pending=gpu.mig.pending if gpu.mig.pending != gpu.mig.current else None,
        mig_profiles=tuple(profile.name for profile in gpu.mig.profiles),
        addressing=gpu.addressing,
        c2c=gpu.c2c,
        memory_numa=gpu.numa_memory
        if gpu.numa_memory is not None
        else machine.nvidia_numa.get(gpu.pci or ""),
        virtualization=gpu.virtualization,
        fabric=_fabric(gpu.fabric),
        fabric_guid=platform.get("gpu_fabric_guid"),
        chassis=platform.get("chassis_serial_number"),
        slot=platform.get("slot_number"),
        tray=platform.get("tray_index"),
    )


def _fabric(fabric: facts.Fabric | None) -> str | None:
    """`CLUSTER.CLIQUE`; a cluster of zeros is none, any clique is a real one."""
    if fabric is None or fabric.cluster in (None, "", NO_CLUSTER) or fabric.clique is None:
        return None
    return f"{fabric.cluster}.{fabric.clique}"


def _links(gpu: facts.NvidiaGpu, topology: Topology, names: dict[str, str]) -> dict[str, Value]:
    up = [link for link in gpu.links if link.active]
    versions = {link.version for link in up if link.version is not None}
    peers = [
        f"{names[other]}={pair.links}" if pair.links else names[other]
        for pair in topology.gpu_gpu
        if pair.link == "nvlink" and gpu.pci in (pair.a, pair.b)
        for other in [pair.b if pair.a == gpu.pci else pair.a]
        if other in names
    ]
    place = topology.places.get(gpu.pci or "")
    switches = {link.remote for link in up if link.remote_type == 2 and link.remote}
    return attributes.known(
        nvlink_version=max(versions, default=None),
        nvlinks=len(up) or None,
        nvlink_switches=len(switches) or None,
        link_kind="nvlink" if peers else None,
        link_peers=tuple(peers),
        link_domain=place.domain if place else None,
    )


def _sharing(gpu: facts.NvidiaGpu) -> dict[str, Value]:
    sharing = mig.sharing(gpu)
    if sharing is None:
        return {}
    ways = ("mps",) * bool(sharing.mps_clients) + ("time-slicing",) * sharing.time_slicing
    return attributes.known(sharing=ways, mps_clients=sharing.mps_clients or None)


def _slice(one: facts.MigSlice) -> dict[str, Value]:
    engines = {_ENGINES[name]: count for name, count in one.engines.items() if name in _ENGINES}
    return attributes.known(
        profile=one.profile,
        gi=one.gi,
        ci=one.ci,
        placement="{}:{}".format(*one.placement) if one.placement else None,
        memory_mib=units.mebibytes(one.memory),
        multiprocessors=one.sm,
        gpu_slices=one.gpu_slices,
        compute_slices=one.compute_slices,
        **engines,
    )
