"""What was read of a machine, as the kernel and the vendor's library said it, without any conclusion.

Pure. `None` is *unknown* everywhere: not asked, not answered, not readable; never a number, never equal to
another unknown. A `Machine` is plain data: it is written as JSON to stand in for a real machine
(`xce-agent inventory --from FILE`), and every rule of `topology.py`, `classify.py` and `instances.py` is a
function of it. PCI addresses are lower case with a domain of at least four digits: `0000:82:00.0`.
"""

import re

import msgspec

_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE)


def address(text: str) -> str | None:
    """A PCI address in the one form used here, of any of the spellings in use; None if it is none.

    The kernel writes `0000:82:00.0`, NVML `00000000:82:00.0` in upper case, people `82:00.0`; domains above
    65535 are real (`10000:e1:00.0`).
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    if int(device, 16) > 0x1F:
        return None
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function}"


class Pci(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One PCI function, of /sys/bus/pci/devices/ADDRESS."""

    address: str
    klass: int | None = None
    """24 bits: class, subclass, programming interface."""
    vendor: int | None = None
    device: int | None = None
    subsystem_vendor: int | None = None
    subsystem_device: int | None = None
    driver: str = ""
    numa: int | None = None
    numa_silent: bool = False
    """The kernel has no file for it, which is not the same as its word that it does not know."""
    local_cpus: str | None = None
    """CPU list, as in `0-7,16-23`."""
    bridges: tuple[str, ...] = ()
    """Every PCI bridge above it, from the root down."""
    root: str | None = None
    """Its host bridge (`pci0000:17`); None where the path could not be read."""
    physfn: str = ""
    """A virtual function's physical function."""
    virtfns: tuple[str, ...] = ()
    sriov_total: int | None = None
    sriov_now: int | None = None
    speed: str | None = None
    """Current link speed, as the kernel writes it: `8.0 GT/s PCIe`."""
    width: int | None = None
    max_speed: str | None = None
    max_width: int | None = None


class Net(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One network interface, of /sys/class/net (and netlink, where it was asked)."""

    name: str
    pci: str | None = None
    """The PCI function that it hangs on, however many levels below; None: it is virtual."""
    index: int | None = None
    kind: int | None = None
    """ARPHRD_* of <linux/if_arp.h>: 1 Ethernet, 32 InfiniBand."""
    info: str = ""
    """IFLA_INFO_KIND or DEVTYPE: `bond`, `vlan`, `bridge`, `dummy`; '' for a device of its own."""
    mac: str | None = None
    operstate: str | None = None
    carrier: bool | None = None
    mbps: int | None = None
    mtu: int | None = None
    master: str = ""
    """The bond or bridge that it is a member of."""
    lower: tuple[str, ...] = ()
    port: int | None = None
    """`dev_port`: which port of its PCI function, from 0."""
    bus: str = ""
    """What it hangs on: `pci`, `virtio`, `usb`, `vmbus`; '' for a virtual one."""
    phys_port: str = ""
    """`phys_port_name`: `p0` an uplink, `pf0vf3` a representor of a virtual function."""


class RdmaPort(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One port of an RDMA device: /sys/class/infiniband/NAME/ports/N."""

    number: int
    state: str | None = None
    """`ACTIVE`, `DOWN`, `INIT`, `ARMED`: the word after the number."""
    physical: str | None = None
    """`LinkUp`, `Polling`, `Disabled`."""
    layer: str | None = None
    """`InfiniBand` or `Ethernet`."""
    rate: str | None = None
    """In the kernel's words: `400 Gb/sec (4X NDR)`."""
    gbps: float | None = None
    lid: int | None = None
    sm_lid: int | None = None
    nets: tuple[str, ...] = ()
    """Interfaces on this port, of gid_attrs/ndevs."""


class Rdma(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One RDMA device: /sys/class/infiniband/NAME."""

    name: str
    pci: str | None = None
    node_guid: str | None = None
    sys_image_guid: str | None = None
    node_type: str | None = None
    firmware: str | None = None
    board: str | None = None
    hca: str | None = None
    """`hca_type`: `MT4129`."""
    driver: str = ""
    uverbs: str = ""
    umads: tuple[str, ...] = ()
    nets: tuple[str, ...] = ()
    ports: tuple[RdmaPort, ...] = ()


class KfdLink(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One entry of a node's io_links."""

    to: int
    type: int
    """2 PCIe, 11 xGMI (enum CRAT_IOLINK_TYPE)."""
    weight: int | None = None
    min_mbps: int | None = None
    max_mbps: int | None = None


class KfdNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One node of /sys/class/kfd/kfd/topology/nodes; a CPU if `simd` is 0."""

    node: int
    simd: int = 0
    pci: str | None = None
    """Of its function 0: the low three bits of location_id are no function."""
    location: int | None = None
    """`location_id` as it is."""
    gpu_id: int | None = None
    unique_id: str | None = None
    hive: str | None = None
    gfx: int | None = None
    xcc: int | None = None
    vendor: int | None = None
    device: int | None = None
    render: int | None = None
    """The minor of its render node, as the kernel says it."""
    memory: int | None = None
    """Bytes of its local memory banks."""
    cores: int | None = None
    links: tuple[KfdLink, ...] = ()
    """Of the first node of each device alone: its further partitions repeat them."""


class Card(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A card of another class directory than PCI: drm (`card0`, `renderD128`), accel, ve, mic, nvme."""

    subsystem: str
    name: str
    pci: str | None = None
    minor: int | None = None
    attributes: dict[str, str] = {}


class Numa(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One NUMA node. One without CPUs is a device's memory, not the host's."""

    node: int
    cpus: str = ""
    memory: int | None = None
    """Bytes."""
    distances: tuple[int, ...] = ()


class MigSlice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One MIG device: a compute instance within a GPU instance, as the library states them."""

    uuid: str
    gi: int | None = None
    ci: int | None = None
    profile: str | None = None
    """`3g.20gb`."""
    name: str | None = None
    placement: tuple[int, int] | None = None
    """Start and size of its GPU instance, in memory slices."""
    memory: int | None = None
    """Bytes."""
    sm: int | None = None
    gpu_slices: int | None = None
    compute_slices: int | None = None
    engines: dict[str, int] = {}
    """`ce`, `dec`, `enc`, `jpg`, `ofa`."""


class MigProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A GPU instance profile that the library offers on this GPU."""

    id: int
    name: str
    slices: int | None = None
    memory: int | None = None
    placements: tuple[tuple[int, int], ...] = ()
    instances: int | None = None
    remaining: int | None = None
    sm: int | None = None
    engines: dict[str, int] = {}


class Mig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """MIG of one GPU. `current` None: the GPU cannot, which is not the same as False."""

    current: bool | None = None
    pending: bool | None = None
    profiles: tuple[MigProfile, ...] = ()
    slices: tuple[MigSlice, ...] = ()
    bare: tuple[int, ...] = ()
    """GPU instances without a compute instance in them."""
    error: str = ""
    """Why slices could not be read; they are unknown then, and not absent."""


class NvLink(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One NVLink of a GPU."""

    link: int
    active: bool | None = None
    version: int | None = None
    remote: str | None = None
    """PCI address of the other end."""
    remote_type: int | None = None
    """0 GPU, 1 IBM NPU, 2 switch, 255 unknown (nvmlIntNvLinkDeviceType_t)."""


class Fabric(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """GPU fabric, of nvmlDeviceGetGpuFabricInfoV. `cluster` as the library says it, all zero included."""

    state: int | None = None
    """0 not supported, 1 not started, 2 in progress, 3 completed."""
    status: int | None = None
    cluster: str | None = None
    clique: int | None = None
    health: int | None = None
    summary: int | None = None


class Xid(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One XID event as the library told it."""

    xid: int
    uuid: str = ""
    """The GPU or MIG device; '' if the library could not say."""
    age_s: float = 0.0
    """Seconds before this reading."""
    at: float = 0.0
    """CLOCK_MONOTONIC at its arrival: the same event has the same number in every reading of one boot."""
    gi: int | None = None
    ci: int | None = None


class NvidiaGpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One GPU as NVML states it. `error` is set when the library could not give its handle or lost it."""

    index: int | None = None
    """The library's numbering, only for showing; None: it was not found there, but asked for by address."""
    uuid: str = ""
    pci: str | None = None
    error: str = ""
    """`GPU is lost`, `Unknown Error`: the library's words, with the call."""
    code: int = 0
    minor: int | None = None
    name: str | None = None
    serial: str | None = None
    board_id: int | None = None
    board_part: str | None = None
    multi_board: bool | None = None
    module: int | None = None
    brand: str | None = None
    architecture: str | None = None
    compute_capability: str | None = None
    """`9.0`."""
    cores: int | None = None
    memory: int | None = None
    """Bytes, all of it."""
    reserved: int | None = None
    bar1: int | None = None
    ecc: bool | None = None
    ecc_pending: bool | None = None
    compute_mode: str | None = None
    """`default`, `exclusive-process`, `prohibited`."""
    persistence: bool | None = None
    addressing: str | None = None
    """`hmm`, `ats`, `none`."""
    c2c: bool | None = None
    vbios: str | None = None
    gsp: str | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    pcie_gen_max: int | None = None
    pcie_width_max: int | None = None
    numa_memory: int | None = None
    """NUMA node of the GPU's own memory (nvmlDeviceGetNumaNodeId), where it is one."""
    virtualization: str | None = None
    links: tuple[NvLink, ...] = ()
    fabric: Fabric | None = None
    platform: dict[str, str] = {}
    mig: Mig = Mig()
    remapped_correctable: int | None = None
    remapped_uncorrectable: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pending: bool | None = None
    retired_pages: int | None = None
    uncorrected: int | None = None
    """Volatile uncorrected ECC errors."""
    recovery: str | None = None
    """What the driver asks for (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION): `none`, `reset`, `reboot`, `drain-p2p`,
    `drain-and-reset`, `recover-imex`, `bus-reset`, `system-reboot`, or `action-N` for one not known here."""
    mps: bool | None = None
    """Processes run on it through an MPS server."""
    unanswered: tuple[str, ...] = ()
    """Calls that failed in a way other than not supported, with the library's words."""


class Nvidia(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """All that NVML answered."""

    error: str = ""
    """Why nothing can be said: `driver/library version mismatch`, `library not found`."""
    code: int = 0
    driver: str | None = None
    nvml: str | None = None
    cuda: str | None = None
    count: int | None = None
    gpus: tuple[NvidiaGpu, ...] = ()
    xids: tuple[Xid, ...] = ()
    excluded: tuple[str, ...] = ()
    """PCI addresses of GPUs that the driver was told to leave out."""


class Machine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Everything that one reading of a machine gave."""

    pci: tuple[Pci, ...] = ()
    net: tuple[Net, ...] = ()
    rdma: tuple[Rdma, ...] = ()
    kfd: tuple[KfdNode, ...] = ()
    cards: tuple[Card, ...] = ()
    numa: tuple[Numa, ...] = ()
    nvidia: Nvidia | None = None
    """None: the library was not asked (no such hardware)."""
    nvidia_proc: tuple[str, ...] = ()
    """PCI addresses of /proc/driver/nvidia/gpus: a second witness of what the driver holds."""
    nvidia_numa: dict[str, int] = {}
    """Of /proc/driver/nvidia/gpus/ADDRESS/numa_status: the NUMA node that is a GPU's memory."""
    faults: tuple[str, ...] = ()
    """What could not be read at all, in words with the path. A reading with faults is incomplete."""
