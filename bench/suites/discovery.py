"""Finding hardware: a full reading of a large server's /sys (G31), the topology of 64 GPUs (G32), and all of
a discovery, with eight GPUs that a stand-in answers for: first, steady, and on the wire (G34).

The tree is two recorded machines in one: eight MI300X with a NIC each, and a two-socket server with 137 PCI
functions, so that both what counts and what is only passed by is there. The floor opens and reads the same
files by their paths and does nothing with them.
"""

import json
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from bench.figures import Cell, Result, figure, ratio
from bench.suite import Lines, Options
from tests.fakes.nvml import stand_in
from tests.fakes.nvml.stand_in import StandIn
from xce.agent.probe import sysfs
from xce.agent.probe.facts import Machine, Numa, Nvidia, NvidiaGpu, NvLink, Pci
from xce.agent.probe.frame import Line
from xce.agent.probe.reading import Reader
from xce.agent.probe.topology import topology
from xce.model.configuration import Discovery
from xce.model.instance import Inventory
from xce.model.message import InventoryNews
from xce.wire import codec

GOALS = ("G31", "G31.floor", "G32", "G34", "G34.steady", "G34.wire")
_RECORDED = Path(__file__).parents[2] / "tests" / "hardware" / "machines"
_EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "machine-h100.yaml"
_TREES = ("mic-mlx4", "mi300x-8nic")
_NAMES = {
    "sys/bus/pci/devices": "uevent numa_node local_cpulist current_link_speed current_link_width",
    "sys/class/net": "uevent ifindex type address operstate carrier speed mtu dev_port phys_port_name",
    "sys/class/infiniband": "node_guid sys_image_guid node_type fw_ver board_id hca_type ports/1/state "
    "ports/1/phys_state ports/1/link_layer ports/1/rate ports/1/lid ports/1/sm_lid",
    "sys/devices/system/node": "cpulist meminfo distance",
}
"""What the floor reads, where it is there: what the product reads too."""
_BATCH = 10


def run(options: Options) -> Lines:
    """Readings of a tree in memory, where there is such a folder, and then no reading at all."""
    batch = options.pick(_BATCH, 2)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(prefix="xce-bench-", dir=memory) as folder:
        root = Path(folder)
        for name in _TREES:
            with tarfile.open(_RECORDED / name / "tree.tar.xz") as archive:
                archive.extraction_filter = lambda member, _: member
                archive.extractall(root)
        files = _files(root)
        full, floor = [], []
        for _ in range(options.repetitions):
            full.append(_best(batch, lambda: sysfs.read(root)))
            floor.append(_best(batch, lambda: _plain(files)))
            yield Cell(suite="discovery", side="read", values={"full_ms": full[-1], "floor_ms": floor[-1]})
        machine = sysfs.read(root)
        yield from _whole(root, options)
    note = f"{len(machine.pci)} PCI functions, {len(machine.rdma)} RDMA devices, {len(files)} files"
    yield Result(
        goal="G31", judged=figure(full), measured=figure(full), floor=figure(floor), unit="ms", note=note
    )
    yield Result(
        goal="G31.floor",
        judged=ratio(full, floor),
        measured=figure(full),
        floor=figure(floor),
        unit="ms",
        note=note,
    )
    large = _large(64)
    times = [_best(batch, lambda: topology(large)) for _ in range(options.repetitions)]
    yield Cell(suite="discovery", side="topology", values={"ms": times[-1]})
    yield Result(goal="G32", judged=figure(times), measured=figure(times), unit="ms")


def _whole(root: Path, options: Options) -> Lines:
    """What the probe does for each reading, up to the line that it prints."""
    recorded = json.loads((_RECORDED / "nv-h100x8" / "nvml.json").read_text())
    gpus = StandIn(root / "nvml", stand_in.recorded(recorded))
    os.environ.update(gpus.environment)  # its library is this process's own from now on
    reader = Reader(Discovery(root=str(root), library=str(gpus.library.parent)))
    reader.line()
    first = [_best(1, lambda: _text(reader.line())) for _ in range(options.repetitions)]
    steady = [_best(1, lambda: _text(reader.line(everything=False))) for _ in range(options.repetitions)]
    count = len(reader.line().instances or ())
    reader.close()
    yield Cell(suite="discovery", side="whole", values={"first_ms": first[-1], "steady_ms": steady[-1]})
    note = f"{count} instances"
    yield Result(goal="G34", judged=figure(first), measured=figure(first), unit="ms", note=note)
    yield Result(goal="G34.steady", judged=figure(steady), measured=figure(steady), unit="ms", note=note)
    example = Reader(Discovery(machine=str(_EXAMPLE))).line()
    units = list(example.instances or ())
    inventory = Inventory(reporter="discovery", generation=1, complete=True, instances=units)
    size = [float(len(codec.encode(InventoryNews(inventory=inventory))))]
    note = f"{len(units)} instances; nothing is sent while nothing changes"
    yield Result(goal="G34.wire", judged=figure(size), measured=figure(size), unit="B", note=note)


def _text(line: Line) -> bytes:
    return msgspec.json.encode(line)


def _best(batch: int, work: Callable[[], object]) -> float:
    """Milliseconds of CPU of the quickest of some: nothing here waits."""
    times = []
    for _ in range(batch):
        start = time.thread_time()
        work()
        times.append((time.thread_time() - start) * 1e3)
    return min(times)


def _files(root: Path) -> list[str]:
    paths = [
        f"{root}/{folder}/{entry}/{name}"
        for folder, names in _NAMES.items()
        for entry in os.listdir(root / folder)
        for name in names.split()
    ]
    return [path for path in paths if os.path.isfile(path)]


def _plain(files: list[str]) -> None:
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.read(fd, 1 << 16)
        os.close(fd)


def _large(count: int) -> Machine:
    """As many GPUs and NICs: four GPUs and four NICs below each switch, NVLink between all GPUs."""
    functions, gpus = [], []
    for number in range(count):
        switch, domain = number // 4, f"{number // 16:04x}"
        bus = 0x10 + (number % 16) * 4
        above = (f"{domain}:00:{switch % 4:02x}.0", f"{domain}:0{switch % 4}:00.0")
        common = {"numa": number * 8 // count, "root": f"pci{domain}:00"}
        for at, klass, vendor in ((bus, 0x030200, 0x10DE), (bus + 2, 0x020700, 0x15B3)):
            functions.append(
                Pci(
                    address=f"{domain}:{at:02x}:00.0",
                    klass=klass,
                    vendor=vendor,
                    bridges=(*above, f"{domain}:{at + 1:02x}:00.0"),
                    **common,  # type: ignore[arg-type] # one literal
                )
            )
        links = tuple(NvLink(link=link, active=True, remote_type=2) for link in range(18))
        gpus.append(NvidiaGpu(index=number, pci=f"{domain}:{bus:02x}:00.0", links=links))
    numa = tuple(Numa(node=node, cpus=f"{node * 16}-{node * 16 + 15}") for node in range(8))
    return Machine(pci=tuple(functions), numa=numa, nvidia=Nvidia(count=count, gpus=tuple(gpus)))
