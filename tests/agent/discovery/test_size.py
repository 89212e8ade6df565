"""64 GPUs with all their slices fit into one line of the probe and one message to the broker."""

import msgspec

from xce.agent.discovery.keep import Memory, Moment, after
from xce.agent.probe import instances
from xce.agent.probe.facts import Machine, Mig, MigSlice, Nvidia, NvidiaGpu, NvLink, Pci
from xce.agent.probe.frame import FRAME_BYTES, Line
from xce.agent.probe.topology import topology
from xce.model.instance import Inventory
from xce.model.message import DOCUMENT_BYTES


def gpu(number: int, address: str) -> NvidiaGpu:
    slices = tuple(
        MigSlice(
            uuid=f"MIG-{number:04d}{gi:04d}-1111-2222-3333-444455556666",
            gi=gi,
            ci=0,
            profile="1g.10gb",
            placement=(gi, 1),
            memory=9 << 30,
        )
        for gi in range(7)
    )
    links = tuple(
        NvLink(link=link, active=True, version=4, remote=f"{number // 8:04x}:c{link % 4}:00.0", remote_type=2)
        for link in range(18)
    )
    return NvidiaGpu(
        index=number,
        uuid=f"GPU-{number:08d}-1111-2222-3333-444455556666",
        pci=address,
        name="NVIDIA H100 80GB HBM3",
        memory=80 << 30,
        mig=Mig(current=True, pending=True, slices=slices),
        links=links,
    )


def test_sixty_four_gpus_with_seven_slices_each_fit() -> None:
    addresses = [f"{number // 8:04x}:{0x10 + number % 8 * 8:02x}:00.0" for number in range(64)]
    functions = tuple(
        Pci(
            address=at,
            klass=0x030200,
            vendor=0x10DE,
            driver="nvidia",
            local_cpus="0-95,192-287",
            bridges=(at,),
        )
        for at in addresses
    )
    gpus = tuple(gpu(number, address) for number, address in enumerate(addresses))
    machine = Machine(pci=functions, nvidia=Nvidia(driver="550.54.15", count=64, gpus=gpus))
    found = instances.found(machine, topology(machine))
    line = Line(xce=1, instances=list(found.laid_out), verdicts=found.verdicts)
    said = msgspec.json.encode(line)
    assert len(said) < FRAME_BYTES / 2
    memory = after(Memory(), msgspec.json.decode(said, type=Line), Moment(1.0, "now", "boot"))
    assert len(memory.instances) == 64 * 8
    told = Inventory(
        reporter="discovery", generation=1, complete=True, instances=list(memory.instances.values())
    )
    assert len(msgspec.msgpack.encode(told)) < DOCUMENT_BYTES / 2
